"""Weights of four or eight bits on the CPU, with a scale for each group of a row: what is read for a token that is written.

Inputs are rounded to eight bits when they come, a scale for each group, and products are those of integers, by a kernel that is
built for the processor when it is first used; where that cannot be done, weights are unpacked for each product.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.environment.compiler import library
from transept.layers.linear import Conv1D, matrix
from transept.quantized.linear import QuantizedLinear
from transept.quantized.weights import GROUP, GroupedWeight, rounded_to_four_bits

SOURCE = Path(__file__).with_name("kernels") / "grouped.cpp"
_ROWS = 16  # of a weight, which lie together


class GroupedLinear(QuantizedLinear):
    """A linear layer with a grouped weight (out, in).

    Args:
        source: the layer in whose place it stands, of which the sizes and the bias are taken.
        weight: what it multiplies by; the columns behind the layer's own belong to no input.
    """

    codes: Tensor  # (blocks, in * bits / 32, 64) of uint8: sixteen rows lie together, see the kernel's source
    scale: Tensor  # (blocks, spans, 16) of float16
    fine_scale: Tensor | None  # (blocks, groups, 16) of int8
    low: Tensor | None
    fine_low: Tensor | None
    table: Tensor | None
    order: Tensor | None

    def __init__(self, source: nn.Linear | Conv1D, weight: GroupedWeight) -> None:
        super().__init__(source)
        self.group, self.span, self.bits, self.width = weight.group, weight.span, weight.bits, weight.codes.shape[1]
        self.register_buffer("codes", (_halves_together if weight.bits == 4 else _together)(weight.codes), persistent=False)
        for name in ("scale", "fine_scale", "low", "fine_low"):
            part = getattr(weight, name)
            self.register_buffer(name, None if part is None else _in_blocks(part), persistent=False)
        self.register_buffer("table", weight.table, persistent=False)
        self.register_buffer("order", weight.order, persistent=False)
        self.packed_bytes = sum(buffer.nbytes for buffer in self.buffers(recurse=False))

    @classmethod
    def joined(cls, layers: Sequence[GroupedLinear]) -> GroupedLinear | None:
        """One layer whose outputs are those of several after each other; ``None`` where their weights are of other kinds."""
        weights = [layer.grouped() for layer in layers]
        biases: list[Tensor] = [layer.bias.detach() for layer in layers if layer.bias is not None]
        if len(biases) not in (0, len(layers)) or not all(weights[0].is_like(weight) for weight in weights):
            return None
        source = nn.Linear(layers[0].in_features, sum(layer.out_features for layer in layers), False, device="meta")
        joined = cls(source, GroupedWeight.cat(weights))
        if biases:
            joined.bias = nn.Parameter(torch.cat(biases), requires_grad=False)
        return joined

    @classmethod
    def of_four_bits(cls, source: nn.Linear | Conv1D, group: int = GROUP) -> GroupedLinear:
        """A layer rounded to four bits."""
        weight = matrix(source).detach().float()
        return cls(source, rounded_to_four_bits(F.pad(weight, (0, -weight.shape[1] % group)), group))

    def grouped(self) -> GroupedWeight:
        tensors = (self.codes, self.scale, self.fine_scale, self.low, self.fine_low, self.table)
        weight = _weight(*tensors, self.group, self.bits)
        return replace(weight.map_rows(lambda part: part[: self.out_features]), order=self.order)

    def multiply(self, x: Tensor) -> Tensor:
        out = _product(self._columns(x.float()), *self._operands())
        return out if self.bias is None else out.add_(self.bias.detach())

    def dequantized(self) -> Tensor:
        return self.grouped().dequantized()[:, : self.in_features]

    def unpacked(self) -> Tensor:
        return self.codes

    def _compiled(self, rows: Tensor, plain: Tensor) -> Tensor:
        out: Tensor = torch.ops.transept.grouped_product(self._columns(rows.float()), *self._operands())
        return out if self.bias is None else out + self.bias

    def _columns(self, x: Tensor) -> Tensor:
        """Inputs as the weight has its columns."""
        x = x if self.order is None else x[:, self.order]
        return x.contiguous() if self.width == self.in_features else F.pad(x, (0, self.width - self.in_features))

    def _operands(self) -> tuple[Any, ...]:
        tensors = (self.codes, self.scale, self.fine_scale, self.low, self.fine_low, self.table)
        return *tensors, self.group, self.span, self.bits, self.out_features


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
    function.restype, function.argtypes = None, [ctypes.c_void_p] * 9 + [ctypes.c_int64] * 6 + [ctypes.c_int32]
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
) -> Tensor:
    """(N, in) -> (N, out) in float32, by a weight as :class:`GroupedLinear` keeps it."""
    kernel, (rows, width) = _kernel(), x.shape
    if kernel is None:
        weight = _weight(codes, scale, fine_scale, low, fine_low, table, group, bits)
        return F.linear(x, weight.dequantized()[:outputs])
    threads = torch.get_num_threads()
    room = torch.empty((threads if rows == 1 else rows) * (width + 8 * (width // group)), dtype=torch.uint8)
    out = torch.empty(rows, outputs)
    tensors = (x, codes, scale, fine_scale, low, fine_low, table, out, room)
    places = [None if each is None else each.data_ptr() for each in tensors]
    kernel(*places, rows, outputs, width, group, span, bits, threads)
    return out


# The same as an operator, which compiled graphs call as a whole; defined in the way that takes least time in a call.
_LIBRARY = torch.library.Library("transept", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define(  # type: ignore[no-untyped-call]
    "grouped_product(Tensor x, Tensor codes, Tensor scale, Tensor? fine_scale, Tensor? low, Tensor? fine_low, Tensor? table,"
    " int group, int span, int bits, int outputs) -> Tensor"
)
_LIBRARY.impl("grouped_product", _product, "CPU")  # type: ignore[no-untyped-call]


@torch.library.register_fake("transept::grouped_product")  # type: ignore[untyped-decorator]
def _(x: Tensor, *operands: Any) -> Tensor:
    return x.new_empty(x.shape[0], operands[-1])


def _weight(
    codes: Tensor,
    scale: Tensor,
    fine_scale: Tensor | None,
    low: Tensor | None,
    fine_low: Tensor | None,
    table: Tensor | None,
    group: int,
    bits: int,
) -> GroupedWeight:
    """The weight by what a layer keeps of it, with rows of zeros behind its own."""
    taken = _halves_apart(codes) if bits == 4 else _apart(codes).view(torch.int8)
    fine, offset, steps = (None if part is None else _in_rows(part) for part in (fine_scale, low, fine_low))
    return GroupedWeight(taken, group, _in_rows(scale), fine, offset, steps, table)


def _filled(rows: Tensor) -> Tensor:
    """The rows, and so many of zeros that sixteen can lie together."""
    return F.pad(rows, (0, 0, 0, -len(rows) % _ROWS)) if len(rows) % _ROWS else rows.contiguous()


def _in_blocks(rows: Tensor) -> Tensor:
    """(out, n) -> (blocks, n, 16): what belongs to sixteen rows lies together; what lacks at the end is zero."""
    return _filled(rows).view(-1, _ROWS, rows.shape[1]).transpose(1, 2).contiguous()


def _in_rows(blocks: Tensor) -> Tensor:
    """(blocks, n, 16) -> (out, n)."""
    return blocks.transpose(1, 2).flatten(0, 1)


def _together(codes: Tensor) -> Tensor:
    """(out, in) codes of eight bits -> (blocks, in / 4, 64) bytes: four columns of sixteen rows."""
    words = _filled(codes).view(torch.int32)
    return words.view(-1, _ROWS, words.shape[1]).transpose(1, 2).contiguous().view(torch.uint8)


def _apart(blocks: Tensor) -> Tensor:
    return blocks.view(torch.int32).transpose(1, 2).flatten(0, 1).contiguous().view(torch.uint8)


def _halves_together(codes: Tensor) -> Tensor:
    """(out, in) codes -> (blocks, in / 8, 64) bytes, of which the lower halves are the first four columns of each eight."""
    words = _filled(codes).view(torch.int32).view(-1, _ROWS, codes.shape[1] // 8, 2)
    return (words[..., 0] | (words[..., 1] << 4)).transpose(1, 2).contiguous().view(torch.uint8)


def _halves_apart(blocks: Tensor) -> Tensor:
    words = blocks.view(torch.int32).transpose(1, 2).flatten(0, 1)
    return torch.stack([words & 0x0F0F0F0F, (words >> 4) & 0x0F0F0F0F], dim=-1).flatten(1).view(torch.uint8)
