"""Positions that several families know: learned ones that count real tokens, distances in buckets, rows and columns of maps.

Shapes: B batch, T positions, S keys, D size, H height, W width (of a map).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.errors import InputError
from transept.layers.context import Context
from transept.layers.links import Linked


class Counted(nn.Module):
    """Positions of real tokens, counted from behind the padding id (Liu et al. 2019).

    Padding has the padding id for its position, so that a row means the same on whichever side it is padded.
    """

    padding_idx: int

    @property
    def capacity(self) -> int | None:
        """How many positions there are; ``None`` where there is no end."""
        return None

    def count(self, ids: Tensor | None, x: Tensor, past: int | Tensor) -> Tensor:
        """(1 or B, T) of positions after ``past`` for ids (B, T), or embeddings ``x`` (B, T, D), which all count as real."""
        pad = self.padding_idx
        if ids is None:
            if not isinstance(past, Tensor):
                self._check(past + x.shape[1])
            return torch.arange(x.shape[1], device=x.device)[None] + past + pad + 1
        real = (ids != pad).long()
        counts = (real.cumsum(dim=1) + past) * real
        most = self.capacity
        if most is not None and not torch.compiler.is_compiling() and past + ids.shape[1] > most:
            self._check(int(counts.max()))  # a row may be longer, where the rest of it is padding
        return counts + pad

    def _check(self, length: int) -> None:
        if self.capacity is not None and length > self.capacity:
            message = f"the sequence has {length} tokens, but there are embeddings for {self.capacity} positions."
            raise InputError(message, hint="Truncate it (truncation=True in the tokenizer), or split it into windows.")


class CountedPositions(Counted, nn.Embedding):
    """Learned positions of real tokens; rows of the table up to the padding id are no positions."""

    padding_idx: int

    @property
    def capacity(self) -> int:
        return self.num_embeddings - self.padding_idx - 1


class CountedWaves(Counted):
    """Sines and cosines of positions of real tokens (:func:`waves`), which are no parameters."""

    def __init__(self, dim: int, padding_idx: int) -> None:
        super().__init__()
        self.dim, self.padding_idx = dim, padding_idx

    def forward(self, positions: Tensor) -> Tensor:
        """(1 or B, T) -> (1 or B, T, D)."""
        return waves(positions, self.dim, self.padding_idx)


class OffsetPositions(nn.Embedding):
    """Learned positions behind the first two rows of the table, which stand for none."""

    offset = 2

    def __init__(self, positions: int, dim: int) -> None:
        super().__init__(positions + self.offset, dim)

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input + self.offset)


def sinusoids(positions: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Sines and cosines of positions (T), half of D each, of float64, from wavelength 2 pi to 20000 pi."""
    pairs = torch.arange(0, dim, dtype=torch.float64, device=positions.device) // 2
    angles = positions.double()[:, None] / 10000 ** (2 * pairs / dim)
    return angles[:, 0::2].sin(), angles[:, 1::2].cos()


def waves(places: Tensor, dim: int, nowhere: int | None) -> Tensor:
    """(1 or B, T) of places -> (1 or B, T, D): sines, then cosines; zeros at the place ``nowhere``."""
    half = dim // 2
    rates = torch.exp(torch.arange(half, device=places.device).float() * -(math.log(10000) / (half - 1)))
    angles = places[..., None].float() * rates
    found = F.pad(torch.cat([angles.sin(), angles.cos()], dim=-1), (0, dim % 2))
    return found if nowhere is None else found * (places != nowhere)[..., None]


def distance_bias(table: nn.Embedding, ctx: Context, x: Tensor, **options: Any) -> Tensor:
    """(1, H, T, S) to add to scores, from a table (buckets, H); the ``options`` are those of :func:`distance_buckets`."""
    apart = torch.arange(ctx.keys, device=x.device)[None, :] - ctx.places(x.device)[:, None]
    return table(distance_buckets(apart, **options)).permute(2, 0, 1)[None]


def distance_buckets(distance: Tensor, *, buckets: int, furthest: int, causal: bool = False) -> Tensor:
    """Buckets, of any shape, for distances from queries to keys (Raffel et al. 2020).

    Half of the buckets are for keys before the query, half for those after it, which all count as distance zero where
    attention is causal: then all buckets are for keys before. Of each half, one half holds one distance each, the other
    ever wider ranges up to ``furthest``; the last takes all beyond.
    """
    half = buckets if causal else buckets // 2
    exact = half // 2
    apart = (-distance).clamp(min=0) if causal else distance.abs()
    # Where a range begins depends on rounding: in float32 and in this order, as the checkpoints were trained.
    scale = torch.log(apart.clamp(min=1).float() / exact) / math.log(furthest / exact)
    far = (exact + (scale * (half - exact)).long()).clamp(max=half - 1)
    near_or_far = torch.where(apart < exact, apart, far)
    return near_or_far if causal else near_or_far + (distance > 0).long() * half


def alibi_slopes(heads: int, device: torch.device | None = None, most: float = 8.0) -> Tensor:
    """(H) of float32: how fast the bias of each head falls with distance (Press et al. 2022).

    Powers from 2^(-most / n) to 2^-most for the greatest power of two n that is no more than H; what heads are left take every
    other one of those for 2 n.
    """
    whole = 1 << (heads.bit_length() - 1)
    # On the device from the start: a copy from the host would wait for it.
    steps = (torch.arange(1.0, count + 1, device=device) * (-most / count) for count in (whole, 2 * whole))
    powers, between = (torch.exp2(each) for each in steps)
    return torch.cat([powers, between[: 2 * (heads - whole) : 2]])


def alibi(
    heads: int,
    keys: int,
    real: Tensor | None,
    like: Tensor,
    *,
    dtype: torch.dtype = torch.float32,
    most: float = 8.0,
) -> Tensor:
    """(1 or B, H, 1, S), like another tensor: each head's slope times the position of each key, to be added to the scores.

    Queries need no part in it: a softmax over keys is the same whether distances or positions are what they differ by.
    Positions count the ``real`` keys (B, S) alone, or all of them. Products are of numbers of ``dtype``, and
    ``most`` is as for :func:`alibi_slopes`.
    """
    places = torch.arange(keys, device=like.device)[None] if real is None else (real.long().cumsum(dim=1) - 1) * real
    # In float32 unless a family was trained otherwise: bfloat16 lacks odd numbers beyond 256.
    return (alibi_slopes(heads, like.device, most)[:, None, None].to(dtype) * places[:, None, None].to(dtype)).to(like.dtype)


_MAP_SIDE = 50  # rows and columns that learned positions have


class SineMapPositions(nn.Module):
    """Sines over rows and columns, counted where the mask is true and scaled to one turn: (B, H, W) -> (B, H * W, D)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim // 2

    def forward(self, mask: Tensor, dtype: torch.dtype) -> Tensor:
        parts = []
        exponents = torch.arange(self.dim, device=mask.device).div(2, rounding_mode="floor") * 2 / self.dim
        for axis in (1, 2):
            place = mask.to(dtype).cumsum(axis)
            last = place[:, -1:] if axis == 1 else place[:, :, -1:]
            angle = (place / (last + 1e-6) * 2 * math.pi)[..., None] / 10000 ** exponents.to(dtype)
            parts.append(torch.stack((angle[..., 0::2].sin(), angle[..., 1::2].cos()), dim=-1).flatten(3))
        return torch.cat(parts, dim=-1).flatten(1, 2)


class LearnedMapPositions(Linked):
    """A learned vector for each of 50 columns and rows, side by side: (B, H, W) -> (B, H * W, D)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.rows, self.columns = nn.Embedding(_MAP_SIDE, dim // 2), nn.Embedding(_MAP_SIDE, dim // 2)

    def reset(self) -> None:
        for table in (self.rows, self.columns):
            nn.init.uniform_(table.weight)

    def forward(self, mask: Tensor, dtype: torch.dtype) -> Tensor:
        batch, height, width = mask.shape
        if max(height, width) > _MAP_SIDE:
            what = f"the map has {height} x {width} places, but there are positions for {_MAP_SIDE} rows and columns."
            raise InputError(what, hint="Make the images smaller.")
        rows = self.rows.weight[:height, None].expand(-1, width, -1)
        columns = self.columns.weight[:width].expand(height, -1, -1)
        return torch.cat([columns, rows], dim=-1).flatten(0, 1).expand(batch, -1, -1)
