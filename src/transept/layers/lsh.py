"""Attention in chunks, of neighbours or of positions that hash alike (Kitaev et al. 2020).

Hashing is locality-sensitive (Andoni et al. 2015): vectors are turned at random, and the axis that one is closest to is its
bucket. Positions are sorted by bucket and cut into chunks; a chunk attends to itself and to those around it. Chunks go round:
before the first one stands the last.

Shapes: B batch, H heads, T positions, E head size, N rounds of hashing, C chunks, L positions of a chunk, W of those around it
and its own, D hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from transept.errors import InputTypeError
from transept.layers.cache import Cache, KeyValues
from transept.layers.context import Context

# Scores of what may not be seen, and of a position's own key, which is seen where there is nothing else.
_HIDDEN, _OWN = -1e9, -1e5
_HALF_HIDDEN, _HALF_OWN = -1e4, -1e3


def bucket_factors(length: int, chunk: int, longest: int) -> tuple[int, ...]:
    """How many buckets a sequence is best sorted into: a power of two, of two factors where it is large.

    Args:
        length: positions of the sequence.
        chunk: L.
        longest: positions that the model is made for.
    """
    power = (2 * (length // chunk)).bit_length() - 1
    if 2**power <= 2 * max(int((longest // chunk) ** 0.5), chunk):
        return (2**power,)
    return 2 ** (power // 2), 2 ** (power - power // 2)


@dataclass(frozen=True)
class Hashing:
    """Random turns (H, E, N, sum of ``factors`` / 2), and into how many buckets: the product of the ``factors``, all even."""

    turns: Tensor
    factors: tuple[int, ...]

    @classmethod
    def draw(cls, vectors: Tensor, rounds: int, factors: tuple[int, ...], seed: int | None) -> Self:
        """Turns for vectors (B, H, T, E); with a ``seed`` they are always the same, and the global generator stays as it is."""
        generator = None if seed is None else torch.Generator(vectors.device).manual_seed(seed)
        shape = (vectors.shape[1], vectors.shape[3], rounds, sum(factors) // 2)
        return cls(torch.randn(shape, generator=generator, device=vectors.device, dtype=vectors.dtype), factors)

    @torch.no_grad()
    def buckets(self, vectors: Tensor, real: Tensor | None) -> Tensor:
        """(B, H, T, E) -> (B, H, N, T); what is not ``real`` (B, T) has a bucket of its own, the last one."""
        turned = torch.einsum("bhte,henr->bhntr", vectors, self.turns)
        found, step = torch.zeros_like(turned[..., 0], dtype=torch.int32), 1
        for part, factor in zip(
            torch.split(turned, [factor // 2 for factor in self.factors], dim=-1), self.factors, strict=True
        ):
            found = found + step * torch.cat([part, -part], dim=-1).argmax(dim=-1).int()
            step *= factor
        return found if real is None else found.masked_fill(~real[:, None, None], step)


def sort(buckets: Tensor) -> tuple[Tensor, Tensor]:
    """Of buckets (B, H, N, T), the order (B, H, N * T) by round, bucket and place, and the order that undoes it."""
    rounds = torch.arange(buckets.shape[2], device=buckets.device)[:, None]
    order = (buckets + rounds * (buckets.max() + 1)).flatten(2).argsort(dim=-1, stable=True)
    places = torch.arange(order.shape[-1], device=order.device).expand_as(order)
    return order, torch.empty_like(order).scatter_(-1, order, places)


def take(x: Tensor, places: Tensor) -> Tensor:
    """(B, H, T, E) and places (B, H, K) -> (B, H, K, E)."""
    return x.gather(2, places[..., None].expand(-1, -1, -1, x.shape[3]))


def chunked(x: Tensor, length: int) -> Tensor:
    """(B, H, C * L, ...) -> (B, H, C, L, ...)."""
    return x.reshape(*x.shape[:2], -1, length, *x.shape[3:])


def around(x: Tensor, before: int, after: int) -> Tensor:
    """(B, H, C, L, ...) -> (B, H, C, W, ...): each chunk with so many before and after it."""
    if not before and not after:
        return x
    return torch.cat([x.roll(-shift, dims=2) for shift in range(-before, after + 1)], dim=3)


def visible(queries: Tensor, keys: Tensor, real: Tensor | None, causal: bool) -> Tensor | None:
    """(..., L, W), true where a query at one of the places (..., L) sees a key at one of (..., W); ``None`` where all do."""
    seen = None if real is None else real[..., None, :]
    if causal:
        earlier = queries[..., None] >= keys[..., None, :]
        seen = earlier if seen is None else seen & earlier
    return seen


def attention(q: Tensor, k: Tensor, seen: Tensor | None, itself: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Weights (..., L, W) of scaled keys (..., W, E) for queries (..., L, E), and the logarithm of their sum before it was 1.

    Args:
        q, k: queries and keys.
        seen: (..., L, W) of bool.
        itself: (..., L, W), true where query and key are of one position: seen as a last resort only.
    """
    half = q.dtype is torch.float16
    scores = q @ k.mT
    if seen is not None:
        scores = scores.masked_fill(~seen, _HALF_HIDDEN if half else _HIDDEN)
    if itself is not None:
        scores = scores.masked_fill(itself, _HALF_OWN if half else _OWN)
    total = scores.logsumexp(dim=-1, keepdim=True)
    return (scores - total).exp(), total


def joined(outs: Tensor, totals: Tensor) -> Tensor:
    """Outputs (B, H, N, T, E) of all rounds as one (B, H, T, E), each by its total (B, H, N, T, 1)."""
    # Written as the reference has it: totals of positions that see but themselves are too large for equal rounding.
    return (outs * (totals - totals.logsumexp(dim=2, keepdim=True)).exp()).sum(dim=2)


def normed(x: Tensor) -> Tensor:
    """Queries (..., E) as scaled keys: of length one."""
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + 1e-6) / math.sqrt(x.shape[-1])


@dataclass(eq=False)
class HashContext(Context):
    """One forward pass; ``rounds`` is N, and ``buckets`` (B, H, N, T) are those of each layer that hashes."""

    rounds: int = 1
    buckets: dict[int, Tensor] = field(default_factory=dict)

    def kept(self) -> HashedKeyValues | None:
        """What the layer that runs has kept, ``None`` where there is no cache.

        Raises:
            InputTypeError: a cache of another kind.
        """
        if self.cache is None:
            return None
        if not isinstance(layer := self.cache.layer(self.layer), HashedKeyValues):
            raise InputTypeError(
                f"the model keeps the buckets of keys, too, but `past_key_values` is a {type(self.cache).__name__}.",
                hint="Pass what an earlier call returned, or nothing.",
            )
        return layer


class HashedKeyValues(KeyValues):
    """The keys and values of one layer, and from when on there is a ``hashing``, the keys' buckets (B, H, N, S)."""

    hashing: Hashing | None = None
    buckets: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all that is kept."""
        return super().nbytes + (0 if self.buckets is None else self.buckets.nbytes)

    def begin(self, hashing: Hashing, buckets: Tensor) -> None:
        """Hash from now on; (B, H, N, S) are the buckets of what is there already."""
        self.hashing, self.buckets = hashing, buckets

    def mark(self, buckets: Tensor) -> Tensor:
        """Add the buckets (B, H, N, 1) of a new position; those of all."""
        assert self.buckets is not None
        self.buckets = torch.cat([self.buckets, buckets], dim=-1)
        return self.buckets

    def crop(self, length: int) -> None:
        """Forget all but the first ``length`` positions."""
        super().crop(length)
        self.buckets = None if self.buckets is None else self.buckets[..., : self.held]

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        self.hashing = self.buckets = None

    def change(self, function: Callable[[Tensor], Tensor]) -> None:
        """Replace what is kept by a function of it that changes the batch alone."""
        super().change(function)
        self.buckets = None if self.buckets is None else function(self.buckets)


class HashCache(Cache):
    """The keys, values and buckets of all layers that attend in chunks."""

    def make(self, index: int) -> HashedKeyValues:
        """With nothing in it."""
        return HashedKeyValues()

    def take_apart(self) -> tuple[list[Tensor | None], Any]:
        """The tensors, those of hashing last, and what of plain values is needed to put them together again."""
        parts, sizes = super().take_apart()
        factors = []
        for layer in self.layers:
            hashing = layer.hashing if isinstance(layer, HashedKeyValues) else None
            parts += (None, None) if hashing is None else (hashing.turns, layer.buckets)  # type: ignore[attr-defined]
            factors.append(() if hashing is None else hashing.factors)
        return parts, (sizes, factors)

    @classmethod
    def put_together(cls, parts: Iterable[Any], sizes: Any) -> Self:
        """A cache of what another was taken apart into."""
        inner, factors = sizes
        every = list(parts)
        hashes = every[len(every) - 2 * len(factors) :]
        cache = super().put_together(every[: len(every) - len(hashes)], inner)
        for layer, turns, buckets, numbers in zip(cache.layers, hashes[::2], hashes[1::2], factors, strict=True):
            if turns is not None and isinstance(layer, HashedKeyValues):
                layer.begin(Hashing(turns, numbers), buckets)
        return cache
