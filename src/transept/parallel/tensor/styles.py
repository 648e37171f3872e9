"""Tensor-parallel styles that PyTorch does not have, and randomness that differs between processes where it should.

Shapes: B batch, H heads of all processes, T queries, S keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, loss_parallel
from torch.distributed.tensor.placement_types import Placement

from transept.layers.attention import Attention
from transept.layers.context import Attended, Context
from transept.objectives.classification import Entropy, is_scoring_apart, summed_entropy, widened

WHOLE, SUMMED = (Replicate(),), (Partial(),)


def split(x: Tensor, mesh: DeviceMesh, axis: int) -> DTensor:
    """What all processes have alike, each with its own part; the gradient is put together again."""
    return DTensor.from_local(x, mesh, WHOLE, run_check=False).redistribute(placements=(Shard(axis),))


def whole(x: Tensor) -> Tensor:
    """What is in parts, on all processes; each takes its own part of the gradient."""
    return x.redistribute(placements=WHOLE).to_local() if isinstance(x, DTensor) else x


def used_by_parts(x: Tensor, mesh: DeviceMesh) -> Tensor:
    """What all processes have alike and each uses for its own part of a result: its gradients are added up."""
    return DTensor.from_local(x, mesh, WHOLE, run_check=False).to_local(grad_placements=SUMMED)


def added_up(x: Tensor, mesh: DeviceMesh) -> Tensor:
    """The sum over the processes."""
    return whole(DTensor.from_local(x, mesh, SUMMED, run_check=False))


def share_parameters(module: nn.Module, mesh: DeviceMesh, placements: Callable[[str], Placement], source: Any) -> None:
    """Make a module's own parameters distributed ones; ``source`` is the rank whose values count."""
    for name, parameter in list(module.named_parameters(recurse=False)):
        placed = distribute_tensor(parameter, mesh, [placements(name)], src_data_rank=source)
        module.register_parameter(name, nn.Parameter(placed, requires_grad=parameter.requires_grad))


class ExpertsParallel(ParallelStyle):
    """Every expert's columns, and then its rows, are split, so that the processes have equal work whatever is chosen."""

    def __init__(self, axes: dict[str, int]) -> None:
        self.axes = axes

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        share_parameters(module, device_mesh, lambda name: Shard(self.axes[name]), self.src_data_rank)
        module.register_forward_pre_hook(partial(self._enter, device_mesh))
        module.register_forward_hook(partial(self._leave, device_mesh))
        return module

    @staticmethod
    def _enter(mesh: DeviceMesh, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        x, weights, experts = inputs
        return used_by_parts(x, mesh), used_by_parts(weights, mesh), experts

    @staticmethod
    def _leave(mesh: DeviceMesh, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return added_up(output, mesh)


class SharedHeads(ParallelStyle):
    """Keys or values of fewer heads than there are processes: all have the weights, and each takes the heads that it needs.

    Args:
        heads: how many queries have.
        shared: how many keys and values have.
    """

    def __init__(self, heads: int, shared: int) -> None:
        self.heads, self.shared = heads, shared

    def needed(self, rank: int, size: int) -> list[int]:
        """The heads of keys that a process needs, each for as many of its queries; where that is uneven, one for each query."""
        own = range(rank * self.heads // size, (rank + 1) * self.heads // size)
        each = [query * self.shared // self.heads for query in own]
        once = list(dict.fromkeys(each))
        return once if len({each.count(head) for head in once}) == 1 else each

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def enter(module: Any, inputs: tuple[Any, ...], mesh: DeviceMesh) -> Any:
            x = inputs[0]
            return x if isinstance(x, DTensor) else DTensor.from_local(x, mesh, WHOLE, run_check=False)

        def leave(module: Any, output: DTensor, mesh: DeviceMesh) -> Any:
            local = output.to_local(grad_placements=SUMMED)
            heads = local.view(*local.shape[:-1], self.shared, -1)
            return heads[..., self.needed(mesh.get_local_rank(), mesh.size()), :].flatten(-2)

        share_parameters(module, device_mesh, lambda name: Replicate(), self.src_data_rank)
        return distribute_module(module, device_mesh, None, enter, leave)


class LogitsParallel(ColwiseParallel):
    """A layer over the vocabulary, whose logits are put together unless a loss alone is wanted of them."""

    def __init__(self, keeps_apart: bool) -> None:
        super().__init__(use_local_output=False)
        self.keeps_apart = keeps_apart

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        super()._apply(module, device_mesh).register_forward_hook(self._leave)
        return module

    def _leave(self, module: nn.Module, inputs: Any, output: DTensor) -> Any:
        return output if self.keeps_apart and is_scoring_apart() else whole(output)


class _SplitEntropy(torch.autograd.Function):
    """The sum of cross-entropies of logits (N, C) that are split by classes, by PyTorch's ``loss_parallel``.

    The gradient is made in the forward pass, since the other one would have to run within ``loss_parallel`` too.
    """

    @staticmethod
    def forward(ctx: Any, logits: DTensor, labels: Tensor) -> Tensor:
        with torch.enable_grad(), loss_parallel():
            leaf = logits.detach().requires_grad_()
            loss: Any = F.cross_entropy(widened(leaf), labels, reduction="sum")
            ctx.gradient = torch.autograd.grad(loss, leaf)[0] if logits.requires_grad else None
        return loss.detach().to_local()  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, None]:
        own = ctx.gradient
        return own * DTensor.from_local(gradient[0].to(own.dtype), own.device_mesh, WHOLE, run_check=False), None


@summed_entropy.register
def _(logits: DTensor, labels: Tensor, smoothing: float) -> Tensor:
    """Without smoothing, which ``loss_parallel`` does not know, no process has all logits."""
    if smoothing or len(labels) == 0:
        return Entropy.apply(whole(logits), labels, smoothing)  # type: ignore[no-untyped-call, no-any-return]
    return _SplitEntropy.apply(logits, labels)  # type: ignore[no-untyped-call, no-any-return]


# --- what is by head, and what is drawn ---------------------------------------------------------------------------------


def attend_by_parts(attention: Attention, mesh: DeviceMesh, heads: int) -> None:
    """Let attention whose heads are split take its own heads of masks for all of them, and show the weights of all.

    Biases of scores, learned or not, are made for all heads by all processes.
    """
    attention.attend = partial(_attend, attention, mesh, heads)  # type: ignore[method-assign]


def _attend(
    attention: Attention,
    mesh: DeviceMesh,
    heads: int,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: bool,
    ctx: Context,
) -> Attended:
    if mask is not None and mask.shape[1] == heads:
        mask = split(mask, mesh, 1).to_local()
    with apart(mesh, attention.training and attention.dropout > 0):
        out, weights = type(attention).attend(attention, q, k, v, mask, causal, ctx)
    shown = ctx.attentions is not None or ctx.cross_attentions is not None
    if weights is not None and shown:
        weights = whole(DTensor.from_local(weights, mesh, (Shard(1),), run_check=False))
    return out, weights


@contextmanager
def apart(mesh: DeviceMesh, wanted: bool = True) -> Iterator[None]:
    """Inside, each process draws its own random numbers; behind it all of them draw the same again."""
    if not wanted:
        yield
        return
    seed = int(torch.randint(2**48, ()))  # the same on all, which have drawn alike until now
    devices: Sequence[int] = [torch.cuda.current_device()] if mesh.device_type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed + mesh.get_local_rank())
        yield


class PartDropout(nn.Dropout):
    """Dropout of what is in parts, each of which has a mask of its own."""

    def __init__(self, like: nn.Dropout, mesh: DeviceMesh) -> None:
        super().__init__(like.p)
        self.mesh = mesh
        self.train(like.training)

    def forward(self, input: Any) -> Tensor:
        if not self.training or self.p == 0:
            return input  # type: ignore[no-any-return]
        with apart(self.mesh):
            if not isinstance(input, DTensor):
                return super().forward(input)
            options: dict[str, Any] = {"run_check": False, "shape": input.shape, "stride": input.stride()}
            return DTensor.from_local(super().forward(input.to_local()), self.mesh, input.placements, **options)
