"""The forms in which processes have a model that is trained: those of this module give each of them all of it.

``sharded`` has those that divide weights or matrices, and ``pipeline`` the one that divides layers. A form adds up
the gradients of the R processes that take other rows, once an update; PyTorch averages, so losses are taken times R.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import torch.distributed as dist
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from transept.objectives.terms import Items
from transept.outputs import ModelOutput
from transept.parallel.streams import Piece


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process has; all of one that is not shared."""
    return cast(Tensor, tensor.to_local()) if hasattr(tensor, "to_local") else tensor  # as `whole` asks


class Form:
    """One process by itself, and what the other forms have in common."""

    same_passes = False  # whether all processes must make the same number of passes
    model: nn.Module | None = None  # the one that has this form
    stored: Sequence[str] = ()  # the names in a file of the whole model, where those of this process are fewer

    def wrap(self, model: nn.Module) -> nn.Module:
        """Put a model into this form, in place; returns the module that is called in training."""
        return model

    def gradient_sync(self, wrapped: nn.Module, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Around a forward and a backward pass; in the ``last`` of an update, gradients are added up."""
        return contextlib.nullcontext()

    def passes(self, usual: Callable[[], Tensor], inputs: Any, items: Items | None, parts: int, share: float) -> Tensor:
        """Make the passes of a micro-batch, by ``usual`` where a model is called as a whole.

        Returns its part of the update's loss, for which ``items`` and ``parts`` are those of ``total``. It counts for
        ``share``, which is 0 in a pass that only keeps the number of passes the same.
        """
        return usual()

    def finish_gradients(self) -> None:
        """Complete the gradients after the passes of an update."""

    def for_evaluation(self, model: nn.Module) -> Any:
        """What is called for outputs that are evaluated."""
        return model

    def optimizer(self, kind: type[Optimizer], groups: Sequence[dict[str, Any]], options: dict[str, Any]) -> Optimizer:
        return kind(groups, **options)

    def inner(self, optimizer: Optimizer) -> Optimizer:
        """The optimizer that makes this process's updates, whatever divides its state."""
        return optimizer

    def optimizer_state(self, optimizer: Optimizer) -> Mapping[Tensor, dict[str, Any]]:
        """The state of each parameter, whole or sharded; on the first process at least, and asked for by all."""
        return optimizer.state

    def take_optimizer_state(self, optimizer: Optimizer, states: Mapping[Tensor, dict[str, Any]]) -> None:
        """Put the states of parameters into an optimizer, in which each process has only those of its share."""
        inner = self.inner(optimizer)
        inner.state.update({weight: states[weight] for weight in _parameters(inner) if weight in states})

    def original_class(self, model: nn.Module) -> contextlib.AbstractContextManager[Any]:
        """Around saving: the model has its own class, whose name is saved."""
        return contextlib.nullcontext()

    def own_names(self, names: Iterable[str]) -> list[str]:
        """Of the names of a whole model's tensors those of which this process has something."""
        return [*names]

    def joined(self, document: dict[str, Any]) -> dict[str, Any]:
        """The JSON part of an optimizer's state, of the parameters of all processes; asked for by all."""
        return document

    def pieces(self, tensors: Mapping[str, Tensor]) -> dict[str, Piece]:
        """The whole tensors, to be put together one after the other."""
        return {name: Piece.of(tensor) for name, tensor in tensors.items()}

    def collect(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The whole tensors, on the first process; all of them ask for these together."""
        is_first = not dist.is_initialized() or dist.get_rank() == 0
        gathered = ((name, piece.whole()) for name, piece in self.pieces(tensors).items())
        return {name: tensor.cpu() for name, tensor in gathered if is_first}

    def share(self, tensor: Tensor, like: Tensor) -> Tensor:
        """The part of a whole tensor that belongs to this process, laid out like another one."""
        return tensor

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """The norm of all gradients together, the same on all processes."""
        return nn.utils.get_total_norm(gradients)


class Replicated(Form):
    """Every process has the whole model; ``options`` are those of PyTorch's ``DistributedDataParallel``."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    def wrap(self, model: nn.Module) -> nn.Module:
        device = next(model.parameters()).device
        index = device.index if device.type == "cuda" else None
        devices: Any = {} if index is None else {"device_ids": [index], "output_device": index}
        return DistributedDataParallel(model, **devices, **self.options)

    def gradient_sync(self, wrapped: nn.Module, last: bool) -> contextlib.AbstractContextManager[Any]:
        assert isinstance(wrapped, DistributedDataParallel)
        return contextlib.nullcontext() if last else wrapped.no_sync()


class ShardedOptimizer(Replicated):
    """The same, but each process has the optimizer's state of its own share of the weights (ZeRO stage 1)."""

    def optimizer(self, kind: type[Optimizer], groups: Sequence[dict[str, Any]], options: dict[str, Any]) -> Optimizer:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(groups, optimizer_class=kind, **options)

    def inner(self, optimizer: Any) -> Optimizer:
        return cast(Optimizer, optimizer.optim)

    def optimizer_state(self, optimizer: Any) -> Mapping[Tensor, dict[str, Any]]:
        optimizer.consolidate_state_dict(to=0)
        state = {} if dist.get_rank() else optimizer.state_dict()["state"]
        return {weight: state[number] for number, weight in enumerate(_parameters(optimizer)) if number in state}


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


class Copied(Form):
    """One process copies the model to several devices for each batch, as the user's ``nn.DataParallel`` says.

    The copies' terms of the loss are added up: the mean of their losses would not be the batch's.
    """

    def __init__(self, wrapper: nn.DataParallel[nn.Module]) -> None:
        self.wrapper = wrapper
        wrapper.gather = _gathered  # type: ignore[assignment, method-assign]  # called with these two

    def wrap(self, model: nn.Module) -> nn.Module:
        return self.wrapper

    for_evaluation = wrap


def _gathered(outputs: Sequence[Any], device: Any) -> Any:
    """The output for a batch, of those for its rows on each device."""
    if not isinstance(outputs[0], ModelOutput):
        return nn.parallel.gather(outputs, device)
    from transept.parallel.pipeline.stage import joined  # PyTorch's stages take a while to import

    return joined([pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), output) for output in outputs])
