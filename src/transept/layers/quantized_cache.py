"""A KV cache of 4 or 8 bits a number (Liu et al. 2024, KIVI).

Some channels of keys are large at all positions, so that keys share a range along positions, channel by channel; values have
no such channels, and share ranges along the head, position by position.

Shapes: B batch, H key-value heads, S cached positions, D head size, N blocks of G positions each, C groups of E channels each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from transept.config import Config
from transept.errors import InputError
from transept.layers.cache import Cache, KeyValues

BITS = (4, 8)
BACKENDS = ("quanto", "hqq")


@dataclass(frozen=True)
class Quantized:
    """Numbers as codes of few bits: ``codes * scale + low``.

    ``codes`` (B, H, N, G or G / 2, C, E) are of uint8, two in each where they have 4 bits; ``scale`` and ``low`` are
    (B, H, N, 1 or G, C, 1), of the type of the numbers.
    """

    codes: Tensor
    scale: Tensor
    low: Tensor
    bits: int

    def numbers(self) -> Tensor:
        """(B, H, N * G, D) in the type of the scales."""
        codes = self.codes
        if self.bits == 4:
            codes = torch.cat([codes & 15, codes >> 4], dim=3)
        numbers = codes.to(self.scale.dtype).mul_(self.scale).add_(self.low)
        return numbers.flatten(2, 3).flatten(3)

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """The tensors."""
        return self.codes, self.scale, self.low

    def map(self, function: Callable[[Tensor], Tensor]) -> Quantized:
        """The same function of all tensors."""
        codes, scale, low = (function(part) for part in self.parts)
        return Quantized(codes, scale, low, self.bits)

    def join(self, other: Quantized) -> Quantized:
        """These blocks and others after them."""
        codes, scale, low = (torch.cat(pair, dim=2) for pair in zip(self.parts, other.parts, strict=True))
        return Quantized(codes, scale, low, self.bits)


def quantize(numbers: Tensor, bits: int, size: int, along: str) -> Quantized:
    """Codes of (B, H, N * size, D) numbers, each within half a step of its group's range.

    Args:
        numbers: what to round.
        bits: 4 or 8.
        size: G, and the most channels that share a range along the head.
        along: ``"positions"`` for a range of each channel over a block, ``"head"`` for ranges of each position.
    """
    rows, heads, positions, head = numbers.shape
    shared = 1 if along == "positions" else math.gcd(head, size)
    groups = numbers.reshape(rows, heads, positions // size, size, head // shared, shared)
    dim = 3 if along == "positions" else 5
    low, high = groups.amin(dim, keepdim=True), groups.amax(dim, keepdim=True)
    most = 2**bits - 1
    scale = ((high - low).float() / most).clamp(min=torch.finfo(numbers.dtype).tiny).to(numbers.dtype)
    codes = ((groups.float() - low.float()) / scale.float()).round_().clamp_(0, most).to(torch.uint8)
    if bits == 4:
        first, second = codes.chunk(2, dim=3)
        codes = first | second << 4
    return Quantized(codes, scale, low, bits)


class QuantizedKeyValues(KeyValues):
    """The keys and values of one layer: older blocks of positions as codes, the newest positions as they are.

    Args:
        bits: 4 or 8.
        group: G.
        residual: how many of the newest positions stay as they are; up to G more do until they fill a block.
    """

    def __init__(self, bits: int, group: int, residual: int) -> None:
        super().__init__()
        self.bits, self.group, self.residual = bits, group, residual
        self.older: tuple[Quantized, Quantized] | None = None
        self.coded = 0

    @property
    def length(self) -> int:
        return self.coded + self.held

    @property
    def shape(self) -> tuple[int, int, int, int] | None:
        k = self._keys
        return None if k is None else (k.shape[0], k.shape[1], self.length, k.shape[3])

    @property
    def keys(self) -> Tensor | None:
        """As in every kind, but a copy."""
        return self._joined(0, super().keys)

    @property
    def values(self) -> Tensor | None:
        """As in every kind, but a copy."""
        return self._joined(1, super().values)

    def _joined(self, which: int, newest: Tensor | None) -> Tensor | None:
        if self.older is None or newest is None:
            return newest
        return torch.cat([self.older[which].numbers(), newest], dim=2)

    def append(self, keys: Tensor, values: Tensor, window: int | None = None) -> tuple[Tensor, Tensor]:
        """As in every kind; what is new is returned as it came, and rounded afterwards."""
        newest = super().append(keys, values)
        found = self._joined(0, newest[0]), self._joined(1, newest[1])
        assert found[0] is not None
        assert found[1] is not None
        blocks = (self.held - self.residual) // self.group
        if blocks > 0:
            self._code(blocks * self.group)
        return found[0], found[1]

    def _code(self, count: int) -> None:
        """Turn the oldest positions that stand as they are into codes."""
        assert self._keys is not None
        assert self._values is not None
        made = (
            quantize(self._keys[:, :, :count], self.bits, self.group, "positions"),
            quantize(self._values[:, :, :count], self.bits, self.group, "head"),
        )
        self.older = made if self.older is None else (self.older[0].join(made[0]), self.older[1].join(made[1]))
        self._keep(self._keys[:, :, count : self.held].clone(), self._values[:, :, count : self.held].clone())
        self.coded += count

    def _keep(self, keys: Tensor, values: Tensor) -> None:
        self._keys, self._values, self.held, self._owned = keys, values, keys.shape[2], False

    def crop(self, length: int) -> None:
        """As in every kind; what is left of a block stands as it was rounded."""
        if length >= self.coded:
            super().crop(length - self.coded)
            return
        assert self.older is not None
        blocks, rest = divmod(length, self.group)
        keys, values = (part.map(lambda x: x[:, :, blocks : blocks + 1]).numbers()[:, :, :rest] for part in self.older)
        self._keep(keys, values)
        older = tuple(part.map(lambda x: x[:, :, :blocks].clone()) for part in self.older)
        self.older, self.coded = ((older[0], older[1]) if blocks else None), blocks * self.group

    def reset(self) -> None:
        super().reset()
        self.older, self.coded = None, 0

    def change(self, function: Callable[[Tensor], Tensor]) -> None:
        if self._keys is not None and self._values is not None:
            self._keep(function(self._keys[:, :, : self.held]), function(self._values[:, :, : self.held]))
        if self.older is not None:
            self.older = self.older[0].map(function), self.older[1].map(function)

    @property
    def nbytes(self) -> int:
        codes = () if self.older is None else (*self.older[0].parts, *self.older[1].parts)
        return super().nbytes + sum(part.nbytes for part in codes)


class QuantizedCache(Cache):
    """A cache of few bits a number, but for the newest positions; for long texts, since it costs time at every step.

    Args:
        backend: taken as the reference takes it, ``"quanto"`` or ``"hqq"``; there is one way here, which needs neither.
        config: taken since other kinds need one; this one finds out all that it must know.
        nbits: 4 or 8.
        q_group_size: how many numbers share a range: positions of a key's channel, and channels of a value or, where the
            head is no multiple of it, the most that divide both.
        residual_length: how many of the newest positions stay as they are.

    Raises:
        InputError: another number of bits, or sizes that cannot be.
    """

    def __init__(
        self,
        backend: str | None = None,
        config: Config | None = None,
        nbits: int = 4,
        q_group_size: int = 64,
        residual_length: int = 128,
    ) -> None:
        super().__init__()
        if backend is not None and str(backend).lower() not in BACKENDS:
            raise InputError(f"`backend` must be one of {BACKENDS}, but is {backend!r}.", hint="Leave it out.")
        if nbits not in BITS:
            raise InputError(f"`nbits` must be 4 or 8, but is {nbits!r}.")
        _check_count("q_group_size", q_group_size, 2, step=2)
        _check_count("residual_length", residual_length, 0, step=1)
        self.nbits, self.q_group_size, self.residual_length = nbits, q_group_size, residual_length

    def make(self, index: int) -> KeyValues:
        return QuantizedKeyValues(self.nbits, self.q_group_size, self.residual_length)

    def arguments(self) -> tuple[Any, ...]:
        return None, None, self.nbits, self.q_group_size, self.residual_length


def _check_count(name: str, value: Any, least: int, step: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least or value % step:
        kind = "an even number" if step == 2 else "a number"
        raise InputError(f"`{name}` must be {kind} from {least} on, but is {value!r}.")
