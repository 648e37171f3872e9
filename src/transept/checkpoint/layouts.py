"""What methods of quantisation store of a weight, and what their layouts are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from transept.errors import FormatError
from transept.quantized.weights import GroupedWeight

Parts = Mapping[str, Tensor]
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Layout:
    """How one method stores a weight.

    Args:
        parts: the ends of the names of its tensors, behind a common beginning.
        needed: those without which there is no such weight.
        shape: the weight's shape, by the parts.
        unpack: the weight, by the parts.
        weight: what follows that beginning in the name of the weight.
        group: the weight as it is stored, by the parts; ``None`` for one that no grouped weight is.
    """

    parts: tuple[str, ...]
    needed: tuple[str, ...]
    shape: Callable[[Parts], tuple[int, ...]]
    unpack: Callable[[Parts], Tensor]
    weight: str = ".weight"
    group: Callable[[Parts], GroupedWeight | None] = lambda parts: None

    def groups(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """Names of weights -> the stored names of their parts."""
        found: dict[str, dict[str, str]] = {}
        ends = sorted(self.parts, key=len, reverse=True)
        for name in names:
            if (end := next((end for end in ends if name.endswith(end)), None)) is not None:
                found.setdefault(name.removesuffix(end), {})[end] = name
        return {stem + self.weight: parts for stem, parts in found.items() if parts.keys() >= {*self.needed}}


class Stated(Layout):
    """A layout whose settings are one of the parts, of which there must be one."""

    def groups(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        found = super().groups(names)
        return {name: parts for name, parts in found.items() if any(".quant_state." in end for end in parts)}


class Scaled(Layout):
    """A layout of weights under their own names, with a scale beside them."""

    def groups(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        return {name: parts for name, parts in super().groups(names).items() if any("scale" in end for end in parts)}


# Integers


def words(data: Tensor, bits: int) -> Tensor:
    """(..., n) words -> (..., n * how many of so many bits are in one), the lowest bits first, as int32."""
    shifts = torch.arange(0, data.dtype.itemsize * 8, bits, dtype=torch.int32)
    found: Tensor = (data.int()[..., None] >> shifts) & (2**bits - 1)
    return found.flatten(-2)


def stream(data: Tensor, bits: int, count: int) -> Tensor:
    """(rows, n) words of 32 bits -> (rows, count) numbers that follow each other bit by bit, in order of their words."""
    if 32 % bits == 0:
        return words(data, bits)[:, :count]
    flat = words(data, 1)[:, : count * bits].reshape(len(data), count, bits)
    return (flat << torch.arange(bits, dtype=torch.int32)).sum(-1, dtype=torch.int32)


def spread(scale: Tensor, shape: Iterable[int], block: Iterable[int] | None = None) -> Tensor:
    """A number for each block of a matrix as one for each of its entries (or fewer, where that broadcasts)."""
    if scale.ndim < 2:
        return scale.reshape(-1, 1)
    sizes = [*shape]
    steps = block or [-(-size // max(count, 1)) for size, count in zip(sizes[-2:], scale.shape[-2:], strict=True)]
    for axis, step in zip((-2, -1), steps, strict=True):
        if scale.shape[axis] not in (1, sizes[axis]):
            scale = scale.repeat_interleave(int(step), dim=axis).narrow(axis, 0, sizes[axis])
    return scale


def integers(
    sizes: Iterable[int],
    bits: int,
    scale: Tensor,
    zero: Tensor | None,
    group: Tensor | None,
    codes: Callable[[], Tensor],
) -> GroupedWeight | None:
    """Codes (out, in) from 0 on, of so many bits, with scales and zero points (out, groups) of the ``group`` of each column.

    Without zero points codes are lessened by half their range. What no grouped weight is gives ``None``, and is not unpacked.
    """
    (outputs, inputs), count = sizes, scale.shape[-1]
    size = inputs // count
    narrow = bool(scale.float().eq(scale.half().float()).all())
    if scale.shape != (outputs, count) or inputs % count or size % 8 or not (narrow or scale.dtype == torch.float32):
        return None
    order = None
    if group is not None and not group.eq(torch.arange(inputs) // size).all():
        order = group.argsort(stable=True)
        if not group[order].eq(torch.arange(inputs) // size).all():
            return None
    less, more = torch.full((1, 1), 2 ** (bits - 1)) if zero is None else zero.int(), 0
    if bits == 8:
        more = -128
    elif less.eq(2 ** (bits - 1)).all():  # the middle of four bits, which needs no number of its own
        more = 8 - 2 ** (bits - 1)
    less = less + more
    if less.min() < -128 or less.max() > 127:
        return None
    fine = None if less.eq(8 if bits < 8 else 0).all() else less.to(torch.int8).expand(scale.shape).contiguous()
    found = (codes() + more).to(torch.int8 if bits == 8 else torch.uint8)
    found = found if order is None else found[:, order]
    return GroupedWeight(found, size, (scale.half() if narrow else scale).contiguous(), fine_low=fine, order=order)


def floats(weight: Tensor, scale: Tensor, block: Sequence[int] | None) -> GroupedWeight | None:
    """Floats of eight bits (out, in), with one scale, one for each row, or one for each ``block``; ``None`` for others."""
    if weight.dtype != torch.float8_e4m3fn or weight.ndim != 2 or weight.isnan().any():
        return None
    outputs, inputs = weight.shape
    count = scale.shape[-1] if scale.ndim == 2 else 1
    size = inputs if count == 1 else int(block[1]) if block else -(-inputs // count)
    if size % 8 or -(-inputs // size) != count:
        return None
    rows = spread(scale.float(), (outputs, count), None if block is None else (block[0], 1)).expand(outputs, count)
    return GroupedWeight(F.pad(weight, (0, count * size - inputs)), size, rows.contiguous())


def number(settings: Settings, name: str, default: int) -> int:
    value = settings.get(name, default)
    if type(value) is not int or not -1 <= value <= 2**20 or (name == "bits" and value not in (2, 3, 4, 8)):
        raise FormatError(f"`quantization_config` cannot have {name!r} at {str(value)[:40]!r}.")
    return value
