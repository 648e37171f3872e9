"""Attention in chunks, of neighbours or of positions that hash alike (Kitaev et al. 2020), and the cache that it needs.

Hashing is locality-sensitive (Andoni et al. 2015): vectors are turned at random, and the axis that one is closest to is its
bucket. Positions are sorted by bucket and cut into chunks; a chunk attends to itself and to those around it. Chunks go round:
before the first one stands the last.

Shapes: B batch, T positions, S cached and new ones, D hidden size, H heads, E head size, N rounds of hashing, C chunks, L
positions of a chunk, W of those around it and its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor, nn

from transept.config.model import Config
from transept.errors import InputError
from transept.layers import Context
from transept.layers.caches.layer import KeyValues, LayerCache
from transept.layers.context import Attended
from transept.layers.links import Linked

# Scores of what may not be seen, and of a position's own key, which is seen where there is nothing else.
_HIDDEN, _OWN = -1e9, -1e5
_HALF_HIDDEN, _HALF_OWN = -1e4, -1e3


def best_factors(length: int, chunk: int, longest: int) -> tuple[int, ...]:
    """How many buckets a sequence is best sorted into: a power of two, of two factors where it is large."""
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
        parts = torch.split(turned, [factor // 2 for factor in self.factors], dim=-1)
        for part, factor in zip(parts, self.factors, strict=True):
            found = found + step * torch.cat([part, -part], dim=-1).argmax(dim=-1).int()
            step *= factor
        return found if real is None else found.masked_fill(~real[:, None, None], step)


@dataclass
class Hashed:
    """What layers of one forward pass share: N ``rounds``, and the ``buckets`` (B, H, N, T) of each layer that hashes."""

    rounds: int
    buckets: dict[int, Tensor] = field(default_factory=dict)


class HashedKeyValues(KeyValues):
    """The keys and values of one layer, and from when on there is a ``hashing``, the keys' buckets (B, H, N, S)."""

    name = "keys and values with buckets"
    extends = False
    hashing: Hashing | None = None
    buckets: Tensor | None = None

    @property
    def nbytes(self) -> int:
        return super().nbytes + (0 if self.buckets is None else self.buckets.nbytes)

    def crop(self, length: int) -> None:
        super().crop(length)
        self.buckets = None if self.buckets is None else self.buckets[..., : self.held]

    def reset(self) -> None:
        super().reset()
        self.hashing = self.buckets = None

    def change(self, function: Callable[[Tensor], Tensor]) -> None:
        super().change(function)
        self.buckets = None if self.buckets is None else function(self.buckets)

    def spread(self, offsets: Sequence[int]) -> LayerCache:
        return LayerCache.spread(self, offsets)

    def tensors(self) -> list[Tensor | None]:
        return super().tensors() + ([] if self.hashing is None else [self.hashing.turns, self.buckets])

    def form(self) -> Any:
        return super().form(), None if self.hashing is None else self.hashing.factors

    def fill(self, tensors: Iterator[Any], form: Any) -> None:
        dropped, factors = form
        super().fill(tensors, dropped)
        if factors is not None:
            self.hashing, self.buckets = Hashing(next(tensors), factors), next(tensors)


class ChunkAttention(Linked):
    """What both kinds of attention have in common: of the settings, those that begin with ``kind`` are theirs."""

    def __init__(self, c: Config, kind: str) -> None:
        super().__init__()
        names = ("attn_chunk_length", "num_chunks_before", "num_chunks_after", "attention_probs_dropout_prob")
        self.chunk, self.before, self.after, dropout = (getattr(c, f"{kind}_{name}") for name in names)
        self.heads, self.causal, self.dropout = c.num_attention_heads, c.is_decoder, nn.Dropout(dropout)
        self.sizes = (c.hidden_size, c.num_attention_heads * c.attention_head_size)
        self.v_proj = nn.Linear(*self.sizes, bias=False)
        self.o_proj = nn.Linear(*self.sizes[::-1], bias=False)

    def split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.heads, -1).transpose(1, 2)

    def forward(self, x: Tensor, ctx: Context[Hashed]) -> Attended:
        """(B, T, D) -> (B, T, D) and weights; what follows something cached is read one position after the other."""
        kept = ctx.kept(HashedKeyValues)
        if kept is None or not kept.length:
            weights, out = self.whole(x, ctx, kept)
        else:
            parts = [self.step(part, ctx, kept) for part in torch.split(x, 1, dim=1)]
            weights, out = parts[-1][0], torch.cat([out for _, out in parts], dim=2)
        if ctx.attentions is not None:
            ctx.attentions.append(weights)
        return self.o_proj(out.transpose(1, 2).flatten(2)), weights

    def whole(self, x: Tensor, ctx: Context[Hashed], kept: HashedKeyValues | None) -> tuple[Tensor, Tensor]:
        """Weights and outputs (B, H, T, E) of a sequence (B, T, D) from its beginning."""
        raise NotImplementedError

    def step(self, x: Tensor, ctx: Context[Hashed], kept: HashedKeyValues) -> tuple[Tensor, Tensor]:
        """Weights and output (B, H, 1, E) of a position (B, 1, D) after those that were kept."""
        raise NotImplementedError

    def around(self, x: Tensor) -> Tensor:
        """(B, H, C, L, ...) -> (B, H, C, W, ...): each chunk with those before and after it."""
        if not self.before and not self.after:
            return x
        return torch.cat([x.roll(-shift, dims=2) for shift in range(-self.before, self.after + 1)], dim=3)

    def visible(self, queries: Tensor, keys: Tensor, real: Tensor | None) -> Tensor | None:
        """(..., L, W), true where a query at a place (..., L) sees a key at one of (..., W); ``None`` where all do."""
        seen = None if real is None else real[..., None, :]
        if self.causal:
            earlier = queries[..., None] >= keys[..., None, :]
            seen = earlier if seen is None else seen & earlier
        return seen


class LocalAttention(ChunkAttention):
    def __init__(self, c: Config) -> None:
        super().__init__(c, "local")
        self.q_proj, self.k_proj = (nn.Linear(*self.sizes, bias=False) for _ in range(2))

    def whole(self, x: Tensor, ctx: Context[Hashed], kept: HashedKeyValues | None) -> tuple[Tensor, Tensor]:
        q, k, v = self.projected(x)
        if kept is not None:
            kept.append(k[:, :, : ctx.keys], v[:, :, : ctx.keys])
        places = keys = torch.arange(x.shape[1], device=x.device)[None, None]
        real = None if ctx.padding is None else ctx.padding[:, None]
        if chunks := x.shape[1] > self.chunk:
            q, places = chunked(q, self.chunk), chunked(places, self.chunk)
            k, v, keys = (self.around(chunked(each, self.chunk)) for each in (k, v, keys))
            real = None if real is None else self.around(chunked(real, self.chunk))
        weights, _ = attend(q, k, self.visible(places, keys, real))
        out = self.dropout(weights) @ v
        return weights, out.flatten(2, 3) if chunks else out

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (self.split(proj(x)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        return q, k / math.sqrt(k.shape[-1]), v

    def step(self, x: Tensor, ctx: Context[Hashed], kept: HashedKeyValues) -> tuple[Tensor, Tensor]:
        q, k, v = self.projected(x)
        k, v = kept.append(k, v)
        start = max(((kept.length - 1) // self.chunk - self.before) * self.chunk, 0)
        seen = None if ctx.padding is None else ctx.padding[:, None, None, start : kept.length]
        weights, _ = attend(q, k[:, :, start:], seen)
        return weights, self.dropout(weights) @ v[:, :, start:]


class LSHAttention(ChunkAttention):
    """Each chunk of positions sorted by their buckets attends to itself and its neighbours; queries are keys, too."""

    def __init__(self, c: Config) -> None:
        super().__init__(c, "lsh")
        self.qk_proj = nn.Linear(*self.sizes, bias=False)
        self.factors, self.seed, self.longest = c.bucket_factors, c.hash_seed, c.max_position_embeddings

    def hashing(self, qk: Tensor, ctx: Context[Hashed]) -> Hashing:
        factors = self.factors or best_factors(qk.shape[2], self.chunk, self.longest)
        return Hashing.draw(qk, ctx.own.rounds, factors, self.seed)

    def whole(self, x: Tensor, ctx: Context[Hashed], kept: HashedKeyValues | None) -> tuple[Tensor, Tensor]:
        qk, v = self.split(self.qk_proj(x)), self.split(self.v_proj(x))
        if kept is not None:
            kept.append(qk[:, :, : ctx.keys], v[:, :, : ctx.keys])
        if x.shape[1] <= self.chunk:
            places = torch.arange(x.shape[1], device=x.device)
            seen = self.visible(places, places, None if ctx.padding is None else ctx.padding[:, None])
            weights, _ = attend(qk, normed(qk), seen, places[:, None] == places)
            return weights, self.dropout(weights) @ v
        hashing = self.hashing(qk, ctx)  # drawn when run again, too, to leave dropout the same numbers
        buckets = ctx.own.buckets.get(ctx.layer)
        if buckets is None:
            buckets = ctx.own.buckets[ctx.layer] = hashing.buckets(qk, ctx.padding)
            if kept is not None:
                kept.hashing, kept.buckets = hashing, buckets[..., : ctx.keys]
        return self.hashed(qk, v, buckets, ctx.padding)

    def hashed(self, qk: Tensor, v: Tensor, buckets: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor]:
        """Weights (B, H, C, L, W) and outputs (B, H, T, E) of positions in buckets (B, H, N, T)."""
        length = qk.shape[2]
        rounds = torch.arange(buckets.shape[2], device=buckets.device)[:, None]
        # (B, H, N * T) by round, bucket and place, and the order that undoes it.
        order = (buckets + rounds * (buckets.max() + 1)).flatten(2).argsort(dim=-1, stable=True)
        back = torch.empty_like(order)
        back.scatter_(-1, order, torch.arange(order.shape[-1], device=order.device).expand_as(order))
        places = order % length
        at = chunked(places, self.chunk)
        q, v = (chunked(take(each, places), self.chunk) for each in (qk, v))
        k, v, near = (self.around(each) for each in (normed(q), v, at))
        real = None
        if padding is not None:
            real = padding[:, None].expand(-1, self.heads, -1).gather(2, near.flatten(2)).view_as(near)
        weights, total = attend(q, k, self.visible(at, near, real), at[..., None] == near[..., None, :])
        out = self.dropout(weights) @ v
        out, total = (chunked(take(each.flatten(2, 3), back), length) for each in (out, total))
        return weights, joined(out, total)

    def step(self, x: Tensor, ctx: Context[Hashed], kept: HashedKeyValues) -> tuple[Tensor, Tensor]:
        q, hashing = self.split(self.qk_proj(x)), kept.hashing
        if hashing is not None and hashing.turns.shape[2] != ctx.own.rounds:
            hint = "Pass the same `num_hashes`, or start without a cache."
            raise InputError(f"the cache is hashed {hashing.turns.shape[2]} times, and not {ctx.own.rounds}.", hint=hint)
        k, v = kept.append(q, self.split(self.v_proj(x)))
        last, real = kept.length - 1, None if ctx.padding is None else ctx.padding[:, : kept.length]
        if hashing is not None and kept.buckets is not None:
            kept.buckets = torch.cat([kept.buckets, hashing.buckets(q, None)], dim=-1)
            return self.step_hashed(q, k, v, kept.buckets, real)
        if kept.length >= self.chunk:
            kept.hashing = self.hashing(k, ctx)
            kept.buckets = kept.hashing.buckets(k, real)
        itself = torch.arange(kept.length, device=x.device) == last
        weights, _ = attend(q, normed(k), None if real is None else real[:, None, None], itself)
        return weights, self.dropout(weights) @ v

    def step_hashed(self, q: Tensor, k: Tensor, v: Tensor, buckets: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
        """Weights (B, H, N, 1, W) and output (B, H, 1, E) of a query (B, H, 1, E) that stands last in (B, H, S, E)."""
        length, wide = k.shape[2], self.chunk * (1 + self.before + self.after)
        order = buckets.argsort(dim=-1, stable=True)
        place = (order == length - 1).int().argmax(dim=-1, keepdim=True)
        first = (place // self.chunk - self.before) * self.chunk
        near = order.gather(-1, (first + torch.arange(wide, device=q.device)) % length)
        k, v = (chunked(take(each, near.flatten(2)), wide) for each in (k, v))
        row = torch.arange(q.shape[0], device=q.device)[:, None, None, None]
        seen = None if real is None else real[row, near][..., None, :]
        weights, total = attend(q[:, :, None], normed(k), seen, (near == length - 1)[..., None, :])
        return weights, joined(self.dropout(weights) @ v, total)


def take(x: Tensor, places: Tensor) -> Tensor:
    """(B, H, T, E) and places (B, H, K) -> (B, H, K, E)."""
    return x.gather(2, places[..., None].expand(-1, -1, -1, x.shape[3]))


def chunked(x: Tensor, length: int) -> Tensor:
    """(B, H, C * L, ...) -> (B, H, C, L, ...)."""
    return x.reshape(*x.shape[:2], -1, length, *x.shape[3:])


def attend(q: Tensor, k: Tensor, seen: Tensor | None, itself: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Weights (..., L, W) of scaled keys (..., W, E) for queries (..., L, E), and the logarithm of their sum before it was 1.

    ``seen`` (..., L, W) is what may be seen, and ``itself`` (..., L, W) is true where query and key are of one position, which
    is seen as a last resort only.
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
