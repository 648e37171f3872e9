"""Forms in which each process has a part of the weights, which are PyTorch's distributed tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.optim import Optimizer

from transept.errors import UnsupportedError
from transept.parallel.forms import Form, local
from transept.parallel.streams import Piece


class Distributed(Form):
    """What these forms have in common."""

    same_passes = True

    def take_whole(self, model: nn.Module) -> None:
        """Let ``load_state_dict`` of a model take whole tensors."""
        model.register_load_state_dict_pre_hook(self._share_all)  # type: ignore[no-untyped-call]  # PyTorch's

    def _share_all(self, model: nn.Module, state: dict[str, Any], *_: Any) -> None:
        own = model.state_dict()
        state.update({name: self.share(each, own[name]) for name, each in state.items() if name in own})

    def optimizer(self, kind: type[Optimizer], groups: Sequence[dict[str, Any]], options: dict[str, Any]) -> Optimizer:
        """The optimizer, with a group of its own for the weights of each grid, since PyTorch's kernels take no mixture.

        Raises:
            UnsupportedError: it cannot update weights of which each process has a part.
        """
        mesh = next((each.device_mesh for group in groups for each in group["params"] if isinstance(each, DTensor)), None)
        if mesh is not None:
            _try(kind, options, mesh)
        return kind([each for group in groups for each in _by_grid(group)], **options)

    def pieces(self, tensors: Mapping[str, Tensor]) -> dict[str, Piece]:
        return pieces(tensors)

    def collect(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for name, piece in self.pieces(tensors).items():
            gathered = piece.whole()
            if dist.get_rank() == 0:
                found[name] = gathered.cpu()
        return found

    def share(self, tensor: Tensor, like: Tensor) -> Tensor:
        if not isinstance(like, DTensor) or isinstance(tensor, DTensor) or not tensor.ndim:
            return tensor
        # A mean over some of a weight's axes, as Adafactor keeps, is whole everywhere.
        where = like.placements if tensor.shape == like.shape else [Replicate()] * like.device_mesh.ndim
        # No source: every process has read the whole tensor, and takes its part without asking another.
        return distribute_tensor(tensor.to(like.device), like.device_mesh, where, src_data_rank=None)

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        return whole_norm(gradients)

    def scale(self, gradients: Sequence[Tensor], factor: Tensor) -> None:
        torch._foreach_mul_([local(each) for each in gradients], factor)


def _try(kind: type[Optimizer], options: dict[str, Any], mesh: Any) -> None:
    """Make an update of a small weight that the processes share, and refuse an optimizer that cannot."""
    size = 2 * mesh.size()
    value, gradient = (
        distribute_tensor(torch.ones(size, size, device=mesh.device_type), mesh, [Shard(0)] * mesh.ndim, src_data_rank=None)
        for _ in range(2)
    )
    weight = nn.Parameter(value)
    weight.grad = gradient
    try:
        kind([{"params": [weight]}], **options).step()
    except Exception as error:  # whatever a class of anybody's may raise
        what = f"{kind.__name__} cannot update weights of which each process has a part ({str(error).splitlines()[0][:200]})."
        hint = "Use `zero_stage=1` or plain data parallelism with it, or AdamW, Adafactor, SGD, Adagrad or RMSprop."
        raise UnsupportedError(what, hint=hint) from error


def _by_grid(group: dict[str, Any]) -> list[dict[str, Any]]:
    """The same settings for the parameters of each grid of processes."""
    grids = [getattr(weight, "device_mesh", None) for weight in group["params"]]
    names = [name for name in ("params", "param_names") if name in group]
    return [
        {**group, **{name: [each for each, own in zip(group[name], grids) if own == grid] for name in names}}
        for grid in dict.fromkeys(grids)
    ]


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor; the processes that have parts of it must ask for it together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def pieces(tensors: Mapping[str, Tensor]) -> dict[str, Piece]:
    """Tensors of which each process has a part, to be put together one after the other."""
    return {name: Piece.of(tensor, _gathered) for name, tensor in tensors.items()}


def _gathered(piece: Piece) -> Tensor:
    assert piece.tensor is not None
    return whole(piece.tensor)


def whole_norm(gradients: Iterable[Tensor]) -> Tensor:
    """The norm of gradients of which each process has parts; those of one grid of processes are added up together."""
    by_mesh: dict[Any, list[Tensor]] = {}
    for each in gradients:
        by_mesh.setdefault(getattr(each, "device_mesh", None), []).append(each)
    norms = [whole(nn.utils.get_total_norm(each)) for each in by_mesh.values()]
    return torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros(())
