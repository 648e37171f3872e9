"""The forms in which processes hold a model that is trained: here, those in which each of them has all of it.

The others are in ``sharded`` (shards of all weights, and parts of matrices) and ``pipeline`` (other layers). A form
adds up the gradients of the processes that take other rows, once an update, and never averages them: PyTorch does, so
the trainer multiplies losses by the number R of these processes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
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
    # Asked by the method: the class takes a while to import, and those who share nothing do without.
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


class Form:
    """One process by itself, and what the other forms have in common."""

    same_passes = False  # whether all processes must make the same number of passes
    model: nn.Module | None = None  # which is held
    stored: Sequence[str] = ()  # the names in a file of the whole model, where those of this process are fewer

    def hold(self, model: nn.Module) -> nn.Module:
        """Put a model into this form, in place; returns the module that is called in training."""
        self.model = model
        return self.wrap(model)

    def wrap(self, model: nn.Module) -> nn.Module:
        """The module that is called in training."""
        return model

    def added_up(self, wrapped: nn.Module, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Around a forward and a backward pass; in the ``last`` of an update, gradients are added up."""
        return contextlib.nullcontext()

    def passes(self, usual: Callable[[], Tensor], inputs: Any, items: Items | None, parts: int, share: float) -> Tensor:
        """The forward and the backward pass of a micro-batch, and its part of the update's loss.

        Args:
            usual: both passes of a model that is called as a whole.
            inputs: the micro-batch.
            items, parts: see :func:`transept.objectives.terms.total`.
            share: what its loss counts for in the update; 0 where it stands in for one that is not there.
        """
        return usual()

    def finish_gradients(self) -> None:
        """Complete the gradients after the passes of an update."""

    def answering(self, model: nn.Module) -> Any:
        """What is called for outputs that are evaluated."""
        return model

    def optimizer(self, kind: type[Optimizer], groups: Sequence[dict[str, Any]], options: dict[str, Any]) -> Optimizer:
        return kind(groups, **options)

    def optimizer_state(self, optimizer: Any) -> Mapping[Tensor, dict[str, Any]]:
        """The state of each parameter, whole or sharded; on the first process at least, and asked for by all."""
        state: Mapping[Tensor, dict[str, Any]] = optimizer.state
        return state

    def inner(self, optimizer: Any) -> Any:
        """The optimizer that makes this process's updates, whatever divides its state."""
        return optimizer

    def take_optimizer_state(self, optimizer: Any, states: Mapping[Tensor, dict[str, Any]]) -> None:
        """Put the states of parameters into an optimizer, of which each process keeps its own."""
        inner = self.inner(optimizer)
        own = {parameter: states[parameter] for parameter in _parameters(inner) if parameter in states}
        inner.state.update(own)

    def optimizer_name(self, optimizer: Any) -> str:
        return type(self.inner(optimizer)).__name__

    def ordinary(self, model: nn.Module) -> contextlib.AbstractContextManager[Any]:
        """Around saving: the model has its own class, whose name is saved."""
        return contextlib.nullcontext()

    def mine(self, names: Iterable[str]) -> list[str]:
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

    def scale(self, gradients: Sequence[Tensor], factor: Tensor) -> None:
        """Multiply gradients by a number."""
        torch._foreach_mul_([local(gradient) for gradient in gradients], factor)


class Replicated(Form):
    """Every process has the whole model; ``options`` are those of PyTorch's ``DistributedDataParallel``."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    def wrap(self, model: nn.Module) -> nn.Module:
        device = next(model.parameters()).device
        places: Any = {}
        if device.type == "cuda":
            places = {"device_ids": [device.index], "output_device": device.index}
        return DistributedDataParallel(model, **places, **self.options)

    def added_up(self, wrapped: nn.Module, last: bool) -> contextlib.AbstractContextManager[Any]:
        assert isinstance(wrapped, DistributedDataParallel)
        return contextlib.nullcontext() if last else wrapped.no_sync()


class ShardedOptimizer(Replicated):
    """The same, but each process has the optimizer's state of its own share of the weights (ZeRO stage 1)."""

    def optimizer(self, kind: type[Optimizer], groups: Sequence[dict[str, Any]], options: dict[str, Any]) -> Optimizer:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(groups, optimizer_class=kind, **options)

    def optimizer_state(self, optimizer: Any) -> Mapping[Tensor, dict[str, Any]]:
        optimizer.consolidate_state_dict(to=0)
        state = {} if dist.get_rank() else optimizer.state_dict()["state"]
        parameters = enumerate(_parameters(optimizer))
        return {parameter: state[number] for number, parameter in parameters if number in state}

    def inner(self, optimizer: Any) -> Any:
        return optimizer.optim


def _parameters(optimizer: Any) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


class Copied(Form):
    """One process copies the model to several devices for each batch, as the user's ``nn.DataParallel`` says.

    Each copy's loss is a mean over its own rows, whose mean would be another than the batch's: terms are added up.
    """

    def __init__(self, wrapper: nn.DataParallel[nn.Module]) -> None:
        self.wrapper = wrapper
        wrapper.gather = _gathered  # type: ignore[assignment, method-assign]  # called with these two

    def wrap(self, model: nn.Module) -> nn.Module:
        return self.wrapper

    answering = wrap


def _gathered(outputs: Sequence[Any], device: Any) -> Any:
    """The output for a batch, of those for its rows on each device."""
    if not isinstance(outputs[0], ModelOutput):
        return nn.parallel.gather(outputs, device)
    from transept.parallel.pipeline.stage import joined  # PyTorch's stages take a while to import

    return joined([pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), output) for output in outputs])
