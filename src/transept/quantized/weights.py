"""Weights of four or eight bits, with a scale for each group of a row, and the rounding to four bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

GROUP = 32
BY_ROW = ("codes", "scale", "fine_scale", "low", "fine_low")  # what each row of a weight has of its own
SHARED = ("table", "order")
_MIDDLE = 8
_AT_ONCE = 2**17  # numbers that are rounded at a time, few enough to stay in a core's caches
# Shares of the largest number that the outermost step is tried at; one that is less may cut it, and fits the others better.
_TRIED = tuple(1 - 0.02 * step for step in range(-2, 13))

Join = Callable[[Sequence[Tensor]], Tensor]


def behind_each_other(parts: Sequence[Tensor]) -> Tensor:
    """The rows of several after those of the first."""
    return torch.cat([*parts])


@dataclass(frozen=True)
class GroupedWeight:
    """A weight (out, in), which is code * scale - low.

    Args:
        codes: (out, in), of four bits as uint8 from 0 to 15, or of eight as int8, or as float8_e4m3fn with a scale alone.
        group: how many columns have one scale, a multiple of 8.
        scale: (out, spans) of float16 or float32: of each group, or of several that follow each other; of uint8 for powers of
            two, whose exponents are 128 less.
        fine_scale: (out, groups) of int8, by which the scale is multiplied for each group.
        low: (out, spans) of float16.
        fine_low: (out, groups) of int8, by which ``low`` is multiplied, or the scale where there is none (a zero point).
            With neither, codes of four bits are lessened by 8 steps, and others by nothing.
        table: (16) of int8 or float32: what codes of four bits stand for; with floats, ``low`` and ``fine_low`` are absent.
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

    def map_rows(self, change: Callable[[Tensor], Tensor]) -> GroupedWeight:
        """The weight with its rows put in another order."""
        rows = ((name, getattr(self, name)) for name in BY_ROW)
        parts: dict[str, Any] = {name: change(part) for name, part in rows if part is not None}
        return replace(self, **parts)

    @staticmethod
    def joined(weights: Sequence[GroupedWeight], join: Join = behind_each_other) -> GroupedWeight | None:
        """The weight whose rows are made of those of several; ``None`` where they are of several kinds."""
        alike = all(is_alike(weights[0], weight) for weight in weights[1:])
        return replace(weights[0], **parts_of_rows(weights, join)) if alike else None

    def dequantized(self) -> Tensor:
        """(out, in) in float32."""
        codes = self.codes.float() if self.table is None else self.table.float()[self.codes.int()]
        if self.low is None and self.fine_low is None and self.bits == 4 and self.table is None:
            codes = codes - _MIDDLE
        scale = self._by_group(self.scale, self.fine_scale)
        padded = F.pad(codes, (0, self.groups * self.group - codes.shape[1]))
        groups = padded.unflatten(1, (-1, self.group)) * scale[..., None]  # type: ignore[no-untyped-call]
        if self.low is not None:
            groups = groups - self._by_group(self.low, self.fine_low)[..., None]
        elif self.fine_low is not None:
            groups = groups - (scale * self.fine_low.float())[..., None]
        weight: Tensor = groups.flatten(1)[:, : codes.shape[1]]
        if self.order is None:
            return weight
        return torch.empty_like(weight).index_copy_(1, self.order, weight)

    def _by_group(self, coarse: Tensor, fine: Tensor | None) -> Tensor:
        spread = _numbers(coarse).repeat_interleave(self.span, 1)[:, : self.groups]
        return spread if fine is None else spread * fine.float()


def parts_of_rows(weights: Sequence[Any], join: Join = behind_each_other) -> dict[str, Any]:
    """What several weights have of their rows, by its names, put together."""
    own = [name for name in BY_ROW if getattr(weights[0], name) is not None]
    return {name: join([getattr(weight, name) for weight in weights]) for name in own}


def is_alike(one: Any, other: Any) -> bool:
    """Whether two weights have the same kind of codes, scales and groups, and the same columns."""
    if _form(one) != _form(other):
        return False
    shared = [(getattr(one, name), getattr(other, name)) for name in SHARED]
    return all(mine is None or torch.equal(mine, same) for mine, same in shared)


def _form(weight: Any) -> tuple[Any, ...]:
    parts = [getattr(weight, name) for name in (*BY_ROW, *SHARED)]
    return weight.group, weight.bits, *(None if part is None else (part.shape[1:], part.dtype) for part in parts)


def _numbers(scale: Tensor) -> Tensor:
    if scale.dtype != torch.uint8:
        return scale.float()
    power = scale.int()  # of which the smallest two give no normal numbers
    return torch.where(power < 2, 0x00200000 << power.clamp(max=1), (power - 1) << 23).view(torch.float32)


def rounded_to_eight_bits(weight: Tensor) -> GroupedWeight:
    """The weight of eight bits that is near one of (out, in): each row has one scale; columns of zeros fill up a row."""
    filled = F.pad(weight, (0, -weight.shape[1] % 8))
    scale = (weight.abs().amax(1, keepdim=True) / 127).clamp(min=torch.finfo(torch.float32).tiny)
    return GroupedWeight((filled / scale).round_().to(torch.int8), filled.shape[1], scale)


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
