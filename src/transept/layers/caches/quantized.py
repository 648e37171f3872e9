"""A KV cache of 4 or 8 bits a number (Liu et al. 2024, KIVI): keys share ranges along positions, values along the head.

Some channels of keys are large at all positions, those of values are not.
Shapes: B batch, H key-value heads, S cached positions, D head size, N blocks of G positions each, C groups of E channels each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from transept.config.model import Config
from transept.errors import InputError
from transept.layers.caches.cache import Cache
from transept.layers.caches.layer import KeyValues, LayerCache, Pair

BACKENDS = ("quanto", "hqq")


class Quantized(NamedTuple):
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
        codes = torch.cat([self.codes & 15, self.codes >> 4], dim=3) if self.bits == 4 else self.codes
        return codes.to(self.scale.dtype).mul_(self.scale).add_(self.low).flatten(2, 3).flatten(3)

    def map(self, function: Callable[[Tensor], Tensor]) -> Quantized:
        return Quantized(function(self.codes), function(self.scale), function(self.low), self.bits)

    def join(self, other: Quantized) -> Quantized:
        codes, scale, low = (torch.cat(pair, dim=2) for pair in zip(self[:3], other[:3]))
        return Quantized(codes, scale, low, self.bits)


def quantize(numbers: Tensor, bits: int, size: int, along: str) -> Quantized:
    """Codes of (B, H, N * size, D) numbers, each within half a step of its group's range.

    ``along`` is ``"positions"`` for a range of each channel over a block of ``size`` positions, or ``"head"`` for ranges of
    each position, shared by ``size`` channels at most.
    """
    rows, heads, positions, head = numbers.shape
    shared, dim = (1, 3) if along == "positions" else (math.gcd(head, size), 5)
    groups = numbers.reshape(rows, heads, positions // size, size, head // shared, shared)
    low, high = groups.amin(dim, keepdim=True), groups.amax(dim, keepdim=True)
    most = 2**bits - 1
    scale = ((high - low).float() / most).clamp(min=torch.finfo(numbers.dtype).tiny).to(numbers.dtype)
    codes = ((groups.float() - low.float()) / scale.float()).round_().clamp_(0, most).to(torch.uint8)
    if bits == 4:
        first, second = codes.chunk(2, dim=3)
        codes = first | second << 4
    return Quantized(codes, scale, low, bits)


class QuantizedKeyValues(KeyValues):
    """The keys and values of one layer: older blocks of ``group`` positions as codes of so many ``bits``.

    The newest positions stay as they are: ``residual``, and more until they fill a block.
    """

    extends = False

    def __init__(self, bits: int, group: int, residual: int) -> None:
        super().__init__()
        self.bits, self.group, self.residual = bits, group, residual
        self.older: tuple[Quantized, Quantized] | None = None
        self.coded = 0

    @property
    def length(self) -> int:
        return self.coded + self.held

    @property
    def shape(self) -> tuple[int, ...] | None:
        return self._shape(self.length)

    @property
    def pair(self) -> Pair | None:
        return None if (newest := super().pair) is None else self._joined(*newest)

    def _joined(self, *newest: Tensor) -> Pair:
        keys, values = newest
        if self.older is None:
            return keys, values
        older, newer = self.older
        return torch.cat([older.numbers(), keys], dim=2), torch.cat([newer.numbers(), values], dim=2)

    def append(self, keys: Tensor, values: Tensor, window: int | None = None) -> Pair:
        found = self._joined(*super().append(keys, values))
        count = (self.held - self.residual) // self.group * self.group
        if count > 0 and (newest := super().pair) is not None:
            made = [
                quantize(part[:, :, :count], self.bits, self.group, along) for part, along in zip(newest, ("positions", "head"))
            ]
            old = self.older
            self.older = (made[0], made[1]) if old is None else (old[0].join(made[0]), old[1].join(made[1]))
            self._keep(*(part[:, :, count:].clone() for part in newest))
            self.coded += count
        return found

    def _keep(self, *newest: Tensor) -> None:
        self.buffers, self.held, self.owned = (newest[0], newest[1]), newest[0].shape[2], False

    def crop(self, length: int) -> None:
        """As in every kind; what is left of a block stands as it was rounded."""
        if length >= self.coded:
            super().crop(length - self.coded)
            return
        assert self.older is not None
        blocks, rest = divmod(length, self.group)
        self._keep(*(part.map(lambda x: x[:, :, blocks : blocks + 1]).numbers()[:, :, :rest] for part in self.older))
        keys, values = (part.map(lambda x: x[:, :, :blocks].clone()) for part in self.older)
        self.older, self.coded = ((keys, values) if blocks else None), blocks * self.group

    def reset(self) -> None:
        super().reset()
        self.older, self.coded = None, 0

    def change(self, function: Callable[[Tensor], Tensor]) -> None:
        if (newest := super().pair) is not None:
            self._keep(*map(function, newest))
        if self.older is not None:
            self.older = self.older[0].map(function), self.older[1].map(function)

    @property
    def nbytes(self) -> int:
        return super().nbytes + sum(part.nbytes for quantized in self.older or () for part in quantized[:3])


class QuantizedCache(Cache):
    """A cache of few bits a number, but for the newest positions; for long texts, since it costs time at every step.

    States, which are of one size however long the text is, stay as they are.

    Args:
        backend: the reference's ``"quanto"`` or ``"hqq"``; there is one way here, which needs neither, nor ``config``.
        nbits: 4 or 8.
        q_group_size: how many numbers share a range: positions of a key's channel, and channels of a value or, where the
            head is no multiple of it, the most that divide both.
        residual_length: how many of the newest positions stay as they are.
    """

    kind = QuantizedKeyValues

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
        if nbits not in (4, 8):
            raise InputError(f"`nbits` must be 4 or 8, but is {nbits!r}.")
        sizes: dict[str, Any] = {"q_group_size": q_group_size, "residual_length": residual_length}
        for (name, value), least, step in zip(sizes.items(), (2, 0), (2, 1)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least or value % step:
                kind = "an even number" if step == 2 else "a number"
                raise InputError(f"`{name}` must be {kind} from {least} on, but is {value!r}.")
        self.nbits, self.q_group_size, self.residual_length = nbits, q_group_size, residual_length

    def make(self, kind: type[LayerCache]) -> LayerCache:
        if kind is KeyValues:
            return QuantizedKeyValues(self.nbits, self.q_group_size, self.residual_length)
        return super().make(kind)

    def arguments(self) -> tuple[Any, ...]:
        return None, None, self.nbits, self.q_group_size, self.residual_length
