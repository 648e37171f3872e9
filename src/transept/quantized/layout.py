"""Weights of few bits as the kernel reads them: what belongs to sixteen rows lies together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from transept.quantized.weights import BY_ROW, SHARED, GroupedWeight, is_alike, parts_of_rows

ROWS = 16  # of a block


@dataclass(frozen=True)
class BlockedWeight:
    """A :class:`GroupedWeight` in blocks of sixteen rows, the last filled up with zeros; see the kernel's source.

    Args:
        rows: how many rows the weight has.
        group, table, order: as there.
        codes: (blocks, in * bits / 32, 64) of uint8, or of the type of floats.
        scale: (blocks, spans, 16) of float16, float32 or uint8.
        low: (blocks, spans, 16) of float16.
        fine_scale, fine_low: (blocks, groups, 16) of int8.
    """

    rows: int
    group: int
    bits: int
    codes: Tensor
    scale: Tensor
    fine_scale: Tensor | None = None
    low: Tensor | None = None
    fine_low: Tensor | None = None
    table: Tensor | None = None
    order: Tensor | None = None

    @classmethod
    def of(cls, weight: GroupedWeight) -> BlockedWeight:
        """The weight (out, in) in blocks."""
        codes = (_halves_together if weight.bits == 4 else _together)(weight.codes.view(torch.uint8))
        codes = codes.view(weight.codes.dtype) if weight.codes.is_floating_point() else codes
        parts = {name: _in_blocks(part) for name in BY_ROW[1:] if (part := getattr(weight, name)) is not None}
        shared = {name: getattr(weight, name) for name in SHARED}
        return cls(len(weight.codes), weight.group, weight.bits, codes, **parts, **shared)

    @property
    def width(self) -> int:
        """How many columns the weight has."""
        return self.codes.shape[1] * 32 // self.bits

    @property
    def span(self) -> int:
        """How many groups have one number of ``scale`` and ``low``."""
        return -(-(self.width // self.group) // self.scale.shape[1])

    @staticmethod
    def cat(weights: Sequence[BlockedWeight]) -> BlockedWeight | None:
        """The rows of several after each other; ``None`` where they are of several kinds, or one ends within a block."""
        first = weights[0]
        if any(weight.rows % ROWS for weight in weights[:-1]) or not all(is_alike(first, weight) for weight in weights):
            return None
        return replace(first, rows=sum(weight.rows for weight in weights), **parts_of_rows(weights))

    def apart(self, count: int) -> list[BlockedWeight]:
        """The weights of ``rows`` each, where the blocks are those of so many after each other."""
        own = {name: part.chunk(count) for name in BY_ROW if (part := getattr(self, name)) is not None}
        return [replace(self, **{name: parts[number] for name, parts in own.items()}) for number in range(count)]

    def grouped(self) -> GroupedWeight:
        """The weight (out, in)."""
        kind = self.codes.dtype if self.codes.is_floating_point() else torch.int8
        codes = _halves_apart(self.codes) if self.bits == 4 else _apart(self.codes).view(kind)
        parts = {name: _in_rows(part)[: self.rows] for name in BY_ROW[1:] if (part := getattr(self, name)) is not None}
        return GroupedWeight(codes[: self.rows], self.group, table=self.table, order=self.order, **parts)


def _filled(rows: Tensor) -> Tensor:
    """The rows, and so many of zeros that sixteen can lie together."""
    return F.pad(rows, (0, 0, 0, -len(rows) % ROWS)) if len(rows) % ROWS else rows.contiguous()


def _in_blocks(rows: Tensor) -> Tensor:
    """(out, n) -> (blocks, n, 16): what belongs to sixteen rows lies together; what lacks at the end is zero."""
    return _filled(rows).view(-1, ROWS, rows.shape[1]).transpose(1, 2).contiguous()


def _in_rows(blocks: Tensor) -> Tensor:
    """(blocks, n, 16) -> (out, n)."""
    return blocks.transpose(1, 2).flatten(0, 1)


def _together(codes: Tensor) -> Tensor:
    """(out, in) codes of eight bits -> (blocks, in / 4, 64) bytes: four columns of sixteen rows."""
    words = _filled(codes).view(torch.int32)
    return words.view(-1, ROWS, words.shape[1]).transpose(1, 2).contiguous().view(torch.uint8)


def _apart(blocks: Tensor) -> Tensor:
    return blocks.view(torch.int32).transpose(1, 2).flatten(0, 1).contiguous().view(torch.uint8)


def _halves_together(codes: Tensor) -> Tensor:
    """(out, in) codes -> (blocks, in / 8, 64) bytes, of which the lower halves are the first four columns of each eight."""
    words = _filled(codes).view(torch.int32).view(-1, ROWS, codes.shape[1] // 8, 2)
    return (words[..., 0] | (words[..., 1] << 4)).transpose(1, 2).contiguous().view(torch.uint8)


def _halves_apart(blocks: Tensor) -> Tensor:
    words = blocks.view(torch.int32).transpose(1, 2).flatten(0, 1)
    return torch.stack([words & 0x0F0F0F0F, (words >> 4) & 0x0F0F0F0F], dim=-1).flatten(1).view(torch.uint8)
