"""Weights of four or eight bits on the CPU, with a scale for each group of a row: what is read for a token that is written.

Inputs are rounded to eight bits when they come, a scale for each group, and products are those of integers, by a kernel that is
built for the processor when it is first used; where that cannot be done, weights are unpacked for each product.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.environment.compiler import library
from transept.layers.linear import Conv1D, matrix, share_product
from transept.layers.links import Linked
from transept.quantized.layout import BlockedWeight
from transept.quantized.linear import QuantizedLayer, QuantizedLinear
from transept.quantized.weights import BY_ROW, GROUP, SHARED, GroupedWeight, rounded_to_eight_bits, rounded_to_four_bits

SOURCE = Path(__file__).with_name("kernels") / "grouped.cpp"


class Matrix(ctypes.Structure):
    """A weight in blocks as kernels read it: where its tensors lie, and their sizes; see their source."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("codes", "scale", "fine_scale", "low", "fine_low", "table")),
        *((name, ctypes.c_int64) for name in ("outputs", "inputs", "group", "span", "bits", "widths")),
    )

    @classmethod
    def of(cls, parts: Sequence[Tensor | None], outputs: int, inputs: int, group: int, span: int, bits: int) -> Matrix:
        """That of a weight's codes and what belongs to them, in the order of the fields."""
        codes, scale, table = parts[0], parts[1], parts[5]
        assert codes is not None
        assert scale is not None
        widths = (scale.dtype == torch.float32) + 2 * (table is not None and table.is_floating_point())
        widths += 4 * (scale.dtype == torch.uint8) + 8 * codes.is_floating_point()
        places = [None if part is None else part.data_ptr() for part in parts]
        return cls(*places, outputs, inputs, group, span, bits, widths)


class BlockedLayer(QuantizedLayer):
    """A layer that has a weight in blocks."""

    codes: Tensor
    scale: Tensor
    fine_scale: Tensor | None
    low: Tensor | None
    fine_low: Tensor | None
    table: Tensor | None
    order: Tensor | None

    def take(self, blocks: BlockedWeight) -> None:
        """Have a weight."""
        self.group, self.span, self.bits, self.width = blocks.group, blocks.span, blocks.bits, blocks.width
        for name in (*BY_ROW, *SHARED):
            self.register_buffer(name, getattr(blocks, name), persistent=False)
        self.packed_bytes = sum(buffer.nbytes for buffer in self.buffers(recurse=False))

    @property
    def blocks(self) -> BlockedWeight:
        """The weight as it lies."""
        parts = {name: getattr(self, name) for name in (*BY_ROW, *SHARED)}
        return BlockedWeight(self.out_features, self.group, self.bits, **parts)

    def unpacked(self) -> Tensor:
        return self.codes

    def columns(self, x: Tensor) -> Tensor:
        """Inputs as the weight has its columns."""
        x = x if self.order is None else x[:, self.order]
        return x.contiguous() if self.width == self.in_features else F.pad(x, (0, self.width - self.in_features))

    def operands(self) -> tuple[Any, ...]:
        """The arguments of the operator behind the inputs."""
        tensors = (self.codes, self.scale, self.fine_scale, self.low, self.fine_low, self.table)
        return *tensors, self.group, self.span, self.bits, self.out_features

    def matrix(self) -> Matrix:
        """The weight as kernels read it."""
        *parts, group, span, bits, outputs = self.operands()
        return Matrix.of(parts, outputs, self.width, group, span, bits)


class GroupedLinear(BlockedLayer, QuantizedLinear):
    """A linear layer with a grouped weight (out, in).

    Args:
        source: the layer in whose place it stands, of which the sizes and the bias are taken.
        weight: what it multiplies by; the columns behind the layer's own belong to no input.
    """

    def __init__(self, source: nn.Linear | Conv1D, weight: GroupedWeight | BlockedWeight) -> None:
        super().__init__(source)
        self.take(BlockedWeight.of(weight) if isinstance(weight, GroupedWeight) else weight)

    @classmethod
    def joined(cls, layers: Sequence[GroupedLinear]) -> GroupedLinear | None:
        """One layer whose outputs are those of several after each other; ``None`` where their weights cannot be joined."""
        biases: list[Tensor] = [layer.bias.detach() for layer in layers if layer.bias is not None]
        if len(biases) not in (0, len(layers)) or (weight := BlockedWeight.cat([each.blocks for each in layers])) is None:
            return None
        joined = cls(nn.Linear(layers[0].in_features, weight.rows, False, device="meta"), weight)
        if biases:
            joined.bias = nn.Parameter(torch.cat(biases), requires_grad=False)
        return joined

    @classmethod
    def of_four_bits(cls, source: nn.Linear | Conv1D, group: int = GROUP) -> GroupedLinear:
        """A layer rounded to four bits."""
        weight = matrix(source).detach().float()
        return cls(source, rounded_to_four_bits(F.pad(weight, (0, -weight.shape[1] % group)), group))

    @classmethod
    def of_eight_bits(cls, source: nn.Linear | Conv1D) -> GroupedLinear:
        """A layer rounded to eight bits: each row has a scale, and groups of inputs are rounded by themselves."""
        return cls(source, rounded_to_eight_bits(matrix(source).detach().float()))

    def grouped(self) -> GroupedWeight:
        return self.blocks.grouped()

    def multiply(self, x: Tensor) -> Tensor:
        out = _product(self.columns(x.float()), *self.operands())
        return out if self.bias is None else out.add_(self.bias.detach())

    def dequantized(self) -> Tensor:
        return self.grouped().dequantized()[:, : self.in_features]

    def _compiled(self, rows: Tensor, plain: Tensor) -> Tensor:
        out: Tensor = torch.ops.transept.grouped_product(self.columns(rows.float()), *self.operands())
        return out if self.bias is None else out + self.bias


def join_grouped(model: nn.Module) -> None:
    """Let one product stand for layers that read one input side by side, where their weights are of one kind."""
    for module in tuple(model.modules()):
        if isinstance(module, Linked) and (found := module.side_by_side()) is not None:
            names, place = found
            layers = [getattr(module, name) for name in names]
            grouped = [layer for layer in layers if isinstance(layer, GroupedLinear) and not layer._forward_hooks]
            if len(grouped) == len(layers) and (product := GroupedLinear.joined(grouped)) is not None:
                share_product(module, names, place, product)


def can_multiply() -> bool:
    """Whether there is a kernel for this processor: without one, plain weights are faster."""
    return _kernel() is not None


@cache
def _kernel() -> Any:
    """The kernel's function; ``None`` where it cannot be built."""
    found = library(SOURCE)
    if found is None:
        return None
    function = found.transept_grouped
    function.restype, function.argtypes = None, [ctypes.c_void_p] * 5 + [ctypes.c_int64] * 2 + [ctypes.c_int32]
    return function


def _product(
    x: Tensor,
    codes: Tensor,
    scale: Tensor,
    fine_scale: Tensor | None,
    low: Tensor | None,
    fine_low: Tensor | None,
    table: Tensor | None,
    group: int,
    span: int,
    bits: int,
    outputs: int,
    ends: Tensor | None = None,
) -> Tensor:
    """(N, in) -> (N, out) in float32, by a weight in blocks, or by one for each of several spans of rows, which end there."""
    kernel, (rows, width) = _kernel(), x.shape
    ends = torch.tensor([rows]) if ends is None else ends
    if kernel is None:
        weights = BlockedWeight(outputs, group, bits, codes, scale, fine_scale, low, fine_low, table).apart(len(ends))
        parts = zip(x.tensor_split(ends[:-1]), weights, strict=True)
        found = [F.linear(part, own.grouped().dequantized()) for part, own in parts if len(part)]
        return torch.cat([x.new_empty(0, outputs), *found])
    threads = torch.get_num_threads()
    size = (threads if rows == 1 else rows) * (width + 12 * (width // group))
    room = None if codes.is_floating_point() else torch.empty(size, dtype=torch.uint8)
    out = torch.empty(rows, outputs)
    matrix = Matrix.of((codes, scale, fine_scale, low, fine_low, table), outputs, width, group, span, bits)
    places = [None if each is None else each.data_ptr() for each in (x, out, room, ends)]
    kernel(ctypes.byref(matrix), *places, len(ends), rows, threads)
    return out


_OUTPUTS = 9  # the place of their number behind the inputs
# The same as an operator, which compiled graphs call as a whole; defined in the way that takes least time in a call.
_LIBRARY = torch.library.Library("transept", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define(  # type: ignore[no-untyped-call]
    "grouped_product(Tensor x, Tensor codes, Tensor scale, Tensor? fine_scale, Tensor? low, Tensor? fine_low, Tensor? table,"
    " int group, int span, int bits, int outputs, Tensor? ends=None) -> Tensor"
)
_LIBRARY.impl("grouped_product", _product, "CPU")  # type: ignore[no-untyped-call]


@torch.library.register_fake("transept::grouped_product")  # type: ignore[untyped-decorator]
def _(x: Tensor, *operands: Any) -> Tensor:
    return x.new_empty(x.shape[0], operands[_OUTPUTS])
