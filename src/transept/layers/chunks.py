"""Attention in chunks (Kitaev et al. 2020): of neighbours, or of positions that hash alike; see ``transept.layers.lsh``.

Shapes: B batch, T positions, S cached and new ones, D hidden size, H heads, E head size, N rounds of hashing, C chunks, L
positions of a chunk, W of those around it and its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from transept.errors import InputError
from transept.layers import lsh
from transept.layers.lsh import HashContext, HashedKeyValues, Hashing


@dataclass(frozen=True)
class Chunks:
    """L, and how many chunks each looks at before and after its own."""

    length: int
    before: int
    after: int


@dataclass(frozen=True)
class Hashes:
    """The factors of the number of buckets (none to fit the sequence), the seed of the turns, and T at most."""

    factors: tuple[int, ...]
    seed: int | None
    longest: int


class ChunkAttention(nn.Module):
    """What both kinds of attention have in common.

    Args:
        dim, heads, size: D, H and E.
        chunks: how they are cut, and how far they look.
        causal: whether a position sees only those before it.
        dropout: of weights.
    """

    def __init__(self, dim: int, heads: int, size: int, chunks: Chunks, *, causal: bool, dropout: float) -> None:
        super().__init__()
        self.heads, self.causal, self.dropout = heads, causal, nn.Dropout(dropout)
        self.chunk, self.before, self.after = chunks.length, chunks.before, chunks.after
        self.v_proj = nn.Linear(dim, heads * size, bias=False)
        self.o_proj = nn.Linear(heads * size, dim, bias=False)

    def split(self, x: Tensor) -> Tensor:
        """(B, T, H * E) -> (B, H, T, E)."""
        return x.view(*x.shape[:-1], self.heads, -1).transpose(1, 2)

    def forward(self, x: Tensor, ctx: HashContext) -> Tensor:
        """(B, T, D) -> (B, T, D); what follows something cached is read one position after the other.

        Recorded weights have the shape of the computation, and with a cache they are those of the last position.
        """
        kept = ctx.kept()
        if kept is None or not kept.length:
            weights, out = self.whole(x, ctx, kept)
        else:
            parts = [self.step(part, ctx, kept) for part in torch.split(x, 1, dim=1)]
            weights, out = parts[-1][0], torch.cat([out for _, out in parts], dim=2)
        if ctx.attentions is not None:
            ctx.attentions.append(weights)
        joined: Tensor = self.o_proj(out.transpose(1, 2).flatten(2))
        return joined

    def whole(self, x: Tensor, ctx: HashContext, kept: HashedKeyValues | None) -> tuple[Tensor, Tensor]:
        """Weights and outputs (B, H, T, E) of a sequence (B, T, D) from its beginning."""
        raise NotImplementedError

    def step(self, x: Tensor, ctx: HashContext, kept: HashedKeyValues) -> tuple[Tensor, Tensor]:
        """Weights and output (B, H, 1, E) of a position (B, 1, D) after those that were kept."""
        raise NotImplementedError


class LocalAttention(ChunkAttention):
    """Each chunk attends to itself and its neighbours; arguments as for :class:`ChunkAttention`."""

    def __init__(self, dim: int, heads: int, size: int, chunks: Chunks, *, causal: bool, dropout: float) -> None:
        super().__init__(dim, heads, size, chunks, causal=causal, dropout=dropout)
        self.q_proj = nn.Linear(dim, heads * size, bias=False)
        self.k_proj = nn.Linear(dim, heads * size, bias=False)

    def whole(self, x: Tensor, ctx: HashContext, kept: HashedKeyValues | None) -> tuple[Tensor, Tensor]:
        """Weights and outputs; see the base class."""
        q, k, v = self.projected(x)
        if kept is not None:
            kept.append(k[:, :, : ctx.keys], v[:, :, : ctx.keys])
        places = keys = torch.arange(x.shape[1], device=x.device)[None, None]
        real = None if ctx.padding is None else ctx.padding[:, None]
        if chunks := x.shape[1] > self.chunk:
            q, places = lsh.chunked(q, self.chunk), lsh.chunked(places, self.chunk)
            k, v, keys = (self.around(each) for each in (k, v, keys))
            real = None if real is None else self.around(real)
        weights, _ = lsh.attention(q, k, lsh.visible(places, keys, real, self.causal))
        out = self.dropout(weights) @ v
        return weights, out.flatten(2, 3) if chunks else out

    def around(self, x: Tensor) -> Tensor:
        """(B, H, T, ...) -> (B, H, C, W, ...)."""
        return lsh.around(lsh.chunked(x, self.chunk), self.before, self.after)

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, scaled keys and values (B, H, T, E) of (B, T, D)."""
        q, k, v = (self.split(proj(x)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        return q, k / math.sqrt(k.shape[-1]), v

    def step(self, x: Tensor, ctx: HashContext, kept: HashedKeyValues) -> tuple[Tensor, Tensor]:
        """Weights and output; see the base class."""
        q, k, v = self.projected(x)
        k, v = kept.append(k, v)
        start = max(((kept.length - 1) // self.chunk - self.before) * self.chunk, 0)
        seen = None if ctx.padding is None else ctx.padding[:, None, None, start : kept.length]
        weights, _ = lsh.attention(q, k[:, :, start:], seen)
        return weights, self.dropout(weights) @ v[:, :, start:]


class LSHAttention(ChunkAttention):
    """Each chunk of positions sorted by their buckets attends to itself and its neighbours; queries are keys, too.

    Arguments are those of :class:`ChunkAttention`, and ``hashes``: how to hash.
    """

    def __init__(
        self, dim: int, heads: int, size: int, chunks: Chunks, hashes: Hashes, *, causal: bool, dropout: float
    ) -> None:
        super().__init__(dim, heads, size, chunks, causal=causal, dropout=dropout)
        self.qk_proj, self.hashes = nn.Linear(dim, heads * size, bias=False), hashes

    def hashing(self, qk: Tensor, ctx: HashContext) -> Hashing:
        """The hashing for a sequence of queries (B, H, T, E)."""
        factors = self.hashes.factors or lsh.bucket_factors(qk.shape[2], self.chunk, self.hashes.longest)
        return Hashing.draw(qk, ctx.rounds, factors, self.hashes.seed)

    def whole(self, x: Tensor, ctx: HashContext, kept: HashedKeyValues | None) -> tuple[Tensor, Tensor]:
        """Weights and outputs; see the base class. Sequences of one chunk are not hashed."""
        qk, v = self.split(self.qk_proj(x)), self.split(self.v_proj(x))
        if kept is not None:
            kept.append(qk[:, :, : ctx.keys], v[:, :, : ctx.keys])
        if x.shape[1] <= self.chunk:
            places = torch.arange(x.shape[1], device=x.device)
            real = None if ctx.padding is None else ctx.padding[:, None]
            seen = lsh.visible(places, places, real, self.causal)
            weights, _ = lsh.attention(qk, lsh.normed(qk), seen, places[:, None] == places)
            return weights, self.dropout(weights) @ v
        hashing = self.hashing(qk, ctx)  # drawn when run again, too, to leave dropout the same numbers
        buckets = ctx.buckets.get(ctx.layer)
        if buckets is None:
            buckets = ctx.buckets[ctx.layer] = hashing.buckets(qk, ctx.padding)
            if kept is not None:
                kept.begin(hashing, buckets[..., : ctx.keys])
        return self.hashed(qk, v, buckets, ctx.padding)

    def hashed(self, qk: Tensor, v: Tensor, buckets: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor]:
        """Weights (B, H, C, L, W) and outputs (B, H, T, E) of positions in buckets (B, H, N, T)."""
        length = qk.shape[2]
        order, back = lsh.sort(buckets)
        places = order % length
        at = lsh.chunked(places, self.chunk)
        q, v = (lsh.chunked(lsh.take(each, places), self.chunk) for each in (qk, v))
        k, v, near = (lsh.around(each, self.before, self.after) for each in (lsh.normed(q), v, at))
        real = None
        if padding is not None:
            real = padding[:, None].expand(-1, self.heads, -1).gather(2, near.flatten(2)).view_as(near)
        seen = lsh.visible(at, near, real, self.causal)
        weights, total = lsh.attention(q, k, seen, at[..., None] == near[..., None, :])
        out = self.dropout(weights) @ v
        out, total = (lsh.chunked(lsh.take(each.flatten(2, 3), back), length) for each in (out, total))
        return weights, lsh.joined(out, total)

    def step(self, x: Tensor, ctx: HashContext, kept: HashedKeyValues) -> tuple[Tensor, Tensor]:
        """Weights and output; see the base class. When the sequence has become a chunk, it is hashed from then on."""
        q, hashing = self.split(self.qk_proj(x)), kept.hashing
        if hashing is not None and hashing.turns.shape[2] != ctx.rounds:
            hint = "Pass the same `num_hashes`, or start without a cache."
            raise InputError(f"the cache is hashed {hashing.turns.shape[2]} times, and not {ctx.rounds}.", hint=hint)
        k, v = kept.append(q, self.split(self.v_proj(x)))
        last, real = kept.length - 1, None if ctx.padding is None else ctx.padding[:, : kept.length]
        if hashing is not None:
            return self.step_hashed(q, k, v, kept.mark(hashing.buckets(q, None)), real)
        if kept.length >= self.chunk:
            hashing = self.hashing(k, ctx)
            kept.begin(hashing, hashing.buckets(k, real))
        itself = torch.arange(kept.length, device=x.device) == last
        weights, _ = lsh.attention(q, lsh.normed(k), None if real is None else real[:, None, None], itself)
        return weights, self.dropout(weights) @ v

    def step_hashed(self, q: Tensor, k: Tensor, v: Tensor, buckets: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
        """Weights (B, H, N, 1, W) and output (B, H, 1, E) of a query (B, H, 1, E) that stands last in (B, H, S, E)."""
        length, wide = k.shape[2], self.chunk * (1 + self.before + self.after)
        order = buckets.argsort(dim=-1, stable=True)
        place = (order == length - 1).int().argmax(dim=-1, keepdim=True)
        first = (place // self.chunk - self.before) * self.chunk
        near = order.gather(-1, (first + torch.arange(wide, device=q.device)) % length)
        k, v = (lsh.chunked(lsh.take(each, near.flatten(2)), wide) for each in (k, v))
        row = torch.arange(q.shape[0], device=q.device)[:, None, None, None]
        seen = None if real is None else real[row, near][..., None, :]
        weights, total = lsh.attention(q[:, :, None], lsh.normed(k), seen, (near == length - 1)[..., None, :])
        return weights, lsh.joined(self.dropout(weights) @ v, total)
