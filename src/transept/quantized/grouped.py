"""Weights of four or eight bits on the CPU, with a scale for each group of a row: what is read for a token that is written.

Inputs are rounded to eight bits when they come, a scale for each group, and products are those of integers, by a kernel that is
built for the processor when it is first used; where that cannot be done, weights are unpacked for each product.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.environment.compiler import library
from transept.layers.linear import Conv1D, matrix
from transept.quantized.linear import QuantizedLinear

SOURCE = Path(__file__).with_name("kernels") / "grouped.cpp"
GROUP = 32
_ROWS = 16  # of a weight, which lie together
_STEP = 8  # columns that the kernel takes at a time
_MIDDLE = 8
_AT_ONCE = 2**17  # numbers that are rounded at a time, few enough to stay in a core's caches
# Shares of the largest number that the outermost step is tried at; one that is less may cut it, and fits the others better.
_TRIED = tuple(1 - 0.02 * step for step in range(-2, 13))


@dataclass(frozen=True)
class GroupedWeight:
    """A weight (out, in), which is code * scale - low.

    Args:
        codes: (out, in), of four bits as uint8 from 0 to 15, or of eight as int8.
        group: how many columns have one scale.
        scale: (out, spans) of float16: of each group, or of several that follow each other.
        fine_scale: (out, groups) of int8, by which the scale is multiplied for each group.
        low: (out, spans) of float16.
        fine_low: (out, groups) of int8, by which ``low`` is multiplied, or the scale where there is none (a zero point).
            With neither, codes of four bits are lessened by 8 steps, and others by nothing.
        table: (16) of int8: what codes of four bits stand for.
        order: (in): which column of the input each of the weight's belongs to.
    """

    codes: Tensor
    group: int
    scale: Tensor
    fine_scale: Tensor | None = None
    low: Tensor | None = None
    fine_low: Tensor | None = None
    table: Tensor | None = None
    order: Tensor | None = None

    @property
    def bits(self) -> int:
        return 4 if self.codes.dtype == torch.uint8 else 8

    @property
    def span(self) -> int:
        """How many groups have one number of ``scale`` and ``low``."""
        return -(-self.groups // self.scale.shape[1])

    @property
    def groups(self) -> int:
        return -(-self.codes.shape[1] // self.group)

    def fits(self) -> bool:
        """Whether the kernel can multiply by it."""
        return self.group % _STEP == 0 and self.codes.shape[1] % self.group == 0

    def is_like(self, other: GroupedWeight) -> bool:
        """Whether both have the same kind of codes, scales and groups, and the same columns."""
        one, same = self._parts(), other._parts()
        if (self.group, self.span, self.bits) != (other.group, other.span, other.bits) or one.keys() != same.keys():
            return False
        shared = all(torch.equal(one[name], same[name]) for name in ("table", "order") if name in one)
        return shared and self.codes.shape[1] == other.codes.shape[1]

    @staticmethod
    def cat(weights: Sequence[GroupedWeight]) -> GroupedWeight:
        """The rows of several that are alike after each other."""
        first = weights[0]
        names = [name for name in first._parts() if name not in ("table", "order")]
        parts: dict[str, Any] = {name: torch.cat([getattr(weight, name) for weight in weights]) for name in names}
        return replace(first, **parts)

    def _parts(self) -> dict[str, Tensor]:
        """Its tensors by name."""
        parts = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "group"}
        return {name: part for name, part in parts.items() if part is not None}

    def map_rows(self, change: Callable[[Tensor], Tensor]) -> GroupedWeight:
        """The weight with its rows put in another order."""
        parts: dict[str, Any] = {name: change(part) for name, part in self._parts().items() if name not in ("table", "order")}
        return replace(self, **parts)

    def dequantized(self) -> Tensor:
        """(out, in) in float32."""
        scale = self._by_group(self.scale, self.fine_scale)
        if self.low is not None:
            low = self._by_group(self.low, self.fine_low)
        elif self.fine_low is not None:
            low = scale * self.fine_low.float()
        else:
            low = scale * (_MIDDLE if self.bits == 4 and self.table is None else 0)
        codes = self.codes.float() if self.table is None else self.table.float()[self.codes.int()]
        padded = F.pad(codes, (0, self.groups * self.group - codes.shape[1]))
        groups = padded.unflatten(1, (-1, self.group)) * scale[..., None]  # type: ignore[no-untyped-call]
        weight: Tensor = (groups - low[..., None]).flatten(1)[:, : codes.shape[1]]
        if self.order is None:
            return weight
        return torch.empty_like(weight).index_copy_(1, self.order, weight)

    def _by_group(self, coarse: Tensor, fine: Tensor | None) -> Tensor:
        spread = coarse.float().repeat_interleave(self.span, 1)[:, : self.groups]
        return spread if fine is None else spread * fine.float()


def rounded_to_four_bits(weight: Tensor, group: int = GROUP) -> GroupedWeight:
    """The weight of four bits that is near one of (out, in).

    Of several scales for each group that of the least squared error is taken. ``in`` is a multiple of ``group``.
    """
    rows = max(_AT_ONCE // weight.shape[1], 1)
    parts = [_rounded(some.float().unflatten(1, (-1, group))) for some in weight.split(rows)]  # type: ignore[no-untyped-call]
    codes, scale = (torch.cat(each) for each in zip(*parts, strict=True))
    return GroupedWeight(codes, group, scale)


def _rounded(groups: Tensor) -> tuple[Tensor, Tensor]:
    """Codes (rows, in) and scales (rows, groups) of (rows, groups, numbers)."""
    largest = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
    best, least = torch.zeros_like(largest), torch.full_like(largest, torch.inf)
    for share in _TRIED:
        scale = (largest * share / -_MIDDLE).half().float()
        steps = (groups / torch.where(scale == 0, 1, scale)).round_().clamp_(-_MIDDLE, _MIDDLE - 1)
        error = steps.mul_(scale).sub_(groups).square_().sum(-1, keepdim=True)
        best, least = torch.where(error < least, scale, best), torch.minimum(error, least)
    codes = (groups / torch.where(best == 0, 1, best)).round_().clamp_(-_MIDDLE, _MIDDLE - 1).add_(_MIDDLE)
    return codes.to(torch.uint8).flatten(1), best.squeeze(-1).half()


class GroupedLinear(QuantizedLinear):
    """A linear layer with a grouped weight (out, in).

    Args:
        source: the layer in whose place it stands, of which the sizes and the bias are taken.
        weight: what it multiplies by; the columns behind the layer's own belong to no input.
    """

    codes: Tensor  # (blocks, in * bits / 64, 16, 8) of uint8, roughly: sixteen rows lie together, see the kernel's source
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
        weights = [layer.packed() for layer in layers]
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

    def packed(self) -> GroupedWeight:
        """The weight, with its rows in order again."""
        tensors = (self.codes, self.scale, self.fine_scale, self.low, self.fine_low, self.table)
        weight = _weight(*tensors, self.group, self.bits)
        return replace(weight.map_rows(lambda part: part[: self.out_features]), order=self.order)

    def multiply(self, x: Tensor) -> Tensor:
        out = _product(self._columns(x.float()), *self._operands())
        return out if self.bias is None else out.add_(self.bias.detach())

    def dequantized(self) -> Tensor:
        return self.packed().dequantized()[:, : self.in_features]

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


def _in_blocks(rows: Tensor) -> Tensor:
    """(out, n) -> (blocks, n, 16): what belongs to sixteen rows lies together; what lacks at the end is zero."""
    padded = F.pad(rows, (0, 0, 0, -len(rows) % _ROWS))
    return padded.view(-1, _ROWS, rows.shape[1]).transpose(1, 2).contiguous()


def _in_rows(blocks: Tensor) -> Tensor:
    """(blocks, n, 16) -> (out, n)."""
    return blocks.transpose(1, 2).flatten(0, 1)


def _together(codes: Tensor) -> Tensor:
    """(out, in) codes of eight bits -> (blocks, in / 4, 16, 4) bytes."""
    padded = F.pad(codes, (0, 0, 0, -len(codes) % _ROWS)).view(torch.uint8)
    return padded.view(-1, _ROWS, codes.shape[1] // 4, 4).transpose(1, 2).contiguous()


def _apart(blocks: Tensor) -> Tensor:
    return blocks.transpose(1, 2).flatten(0, 1).flatten(1)


def _halves_together(codes: Tensor) -> Tensor:
    """(out, in) codes -> (blocks, in / 8, 16, 4) bytes, of which the lower halves are the first four columns of each eight."""
    padded = F.pad(codes, (0, 0, 0, -len(codes) % _ROWS))
    parts = padded.view(-1, _ROWS, codes.shape[1] // 8, 2, 4)
    return (parts[:, :, :, 0] | (parts[:, :, :, 1] << 4)).transpose(1, 2).contiguous()


def _halves_apart(blocks: Tensor) -> Tensor:
    return torch.stack([blocks & 15, blocks >> 4], dim=-2).transpose(1, 2).flatten(0, 1).flatten(1)
