"""How single layers work where each process has a part of their weights: PyTorch's styles, and others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from transept.layers.linear import matrix
from transept.layers.moe import held
from transept.objectives.classification import is_scoring_apart

WHOLE, SUMMED = (Replicate(),), (Partial(),)


def distributed(x: Tensor, mesh: DeviceMesh, placements: Sequence[Placement] = WHOLE) -> DTensor:
    """The tensor of which each process has what the placements say; one that is distributed stays as it is."""
    return x if isinstance(x, DTensor) else DTensor.from_local(x, mesh, placements, run_check=False)


def split(x: Tensor, mesh: DeviceMesh, axis: int) -> DTensor:
    """What all processes have alike, each with its own part; the gradient is put together again."""
    return distributed(x, mesh).redistribute(placements=(Shard(axis),))


def whole(x: Tensor) -> Tensor:
    """What is in parts, on all processes; each takes its own part of the gradient."""
    return x.redistribute(placements=WHOLE).to_local() if isinstance(x, DTensor) else x


def placed(axis: int, blocks: int) -> Placement:
    """How a tensor is split along an axis, in each of so many equal blocks of it."""
    return Shard(axis) if blocks == 1 else _StridedShard(axis, split_factor=blocks)


def share_parameters(module: nn.Module, mesh: DeviceMesh, source: Any, forms: Mapping[str, Placement] | None = None) -> None:
    """Distribute a module's own parameters; ``source`` is the rank whose values count. Those that ``forms``
    do not name are whole.
    """
    for name, parameter in list(module.named_parameters(recurse=False)):
        placement = (forms or {}).get(name, Replicate())
        placed = distribute_tensor(parameter, mesh, [placement], src_data_rank=source)
        module.register_parameter(name, nn.Parameter(placed, requires_grad=parameter.requires_grad))


class OwnParameters(ParallelStyle):
    """What a module holds for others is split."""

    def __init__(self, forms: Mapping[str, Placement]) -> None:
        self.forms = forms

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        share_parameters(module, device_mesh, self.src_data_rank, self.forms)
        return module


class ColumnsOfBlocks(ParallelStyle):
    """A layer's outputs are split, in each of so many equal blocks of them: queries, keys and values for example.

    Each process multiplies by what it holds of the weight (``forms``).
    """

    def __init__(self, forms: Mapping[str, Placement], blocks: int) -> None:
        self.forms, self.blocks = forms, blocks

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        share_parameters(module, device_mesh, self.src_data_rank, self.forms)
        module.forward = partial(self.multiply, module, device_mesh)
        return module

    def multiply(self, module: Any, mesh: DeviceMesh, x: Tensor) -> Tensor:
        """(..., in) -> (..., out / processes)."""
        bias = module.bias
        if bias is not None and "bias" not in self.forms:
            own = bias.to_local(grad_placements=SUMMED).unflatten(0, (self.blocks, mesh.size(), -1))
            bias = own[:, mesh.get_local_rank()].flatten()
        given = distributed(x, mesh).to_local(grad_placements=SUMMED)
        return F.linear(given, matrix(module, held(module.weight)), None if bias is None else held(bias))


class AnyRows(RowwiseParallel):
    """A layer's inputs are split, whichever way round its weight is kept."""

    def __init__(self, forms: Mapping[str, Placement], **options: Any) -> None:
        super().__init__(**options)
        self.forms, self.desired_input_layouts = forms, (Shard(-1),)

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        share_parameters(module, device_mesh, self.src_data_rank, self.forms)
        enter = partial(self._prepare_input_fn, self.input_layouts, self.desired_input_layouts)
        leave = partial(self._prepare_output_fn, self.output_layouts, self.use_local_output)
        return distribute_module(module, device_mesh, None, enter, leave)


class ExpertsParallel(ParallelStyle):
    """Every expert's columns, and then its rows, are split, so that all have equal work whatever is chosen."""

    def __init__(self, forms: Mapping[str, Placement]) -> None:
        self.forms = forms

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def enter(module: Any, inputs: tuple[Any, ...], mesh: DeviceMesh) -> Any:
            # Each process uses all of these for its own part of the result: their gradients are added up.
            x, weights = (distributed(tensor, mesh).to_local(grad_placements=SUMMED) for tensor in inputs[:2])
            return x, weights, inputs[2]

        def leave(module: Any, output: Tensor, mesh: DeviceMesh) -> Any:
            return whole(distributed(output, mesh, SUMMED))

        share_parameters(module, device_mesh, self.src_data_rank, self.forms)
        return distribute_module(module, device_mesh, None, enter, leave)


class SharedHeads(ParallelStyle):
    """Keys or values of fewer heads than processes: all have the weights, and each takes the heads that it needs.

    ``heads`` are those of queries, and ``shared`` those of keys and values.
    """

    def __init__(self, heads: int, shared: int) -> None:
        self.heads, self.shared = heads, shared

    def needed(self, rank: int, size: int) -> list[int]:
        """The heads of keys that a process needs, each for as many queries; where uneven, one for each query."""
        queries = range(rank * self.heads // size, (rank + 1) * self.heads // size)
        keys = [query * self.shared // self.heads for query in queries]
        counts = Counter(keys)
        return [*counts] if len({*counts.values()}) == 1 else keys

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def enter(module: Any, inputs: tuple[Any, ...], mesh: DeviceMesh) -> Any:
            return distributed(inputs[0], mesh)

        def leave(module: Any, output: DTensor, mesh: DeviceMesh) -> Any:
            local = output.to_local(grad_placements=SUMMED)
            heads = local.view(*local.shape[:-1], self.shared, -1)
            return heads[..., self.needed(mesh.get_local_rank(), mesh.size()), :].flatten(-2)

        share_parameters(module, device_mesh, self.src_data_rank)
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
