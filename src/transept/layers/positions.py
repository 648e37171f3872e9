"""Positions: learned ones that count real tokens, waves, and distances in buckets.

Shapes: B batch, T positions, D size.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from transept.errors import InputError


class CountedPositions(nn.Embedding):
    """Learned positions of real tokens, counted from behind the padding id (Liu et al. 2019).

    Padding has the padding id for its position, so that a row means the same on whichever side it is padded.

    Args:
        size: rows of the table, of which those up to the padding id are no positions.
        dim: D.
        pad: the padding id.
    """

    padding_idx: int

    def __init__(self, size: int, dim: int, pad: int) -> None:
        super().__init__(size, dim, padding_idx=pad)

    def count(self, ids: Tensor | None, x: Tensor, past: int) -> Tensor:
        """(1 or B, T) of positions for ids (B, T), or for embeddings ``x`` (B, T, D), which all count as real.

        Args:
            ids: the tokens, where there are any.
            x: their embeddings.
            past: positions before these, in a cache.

        Raises:
            InputError: more tokens than the table has positions for.
        """
        pad = self.padding_idx
        if ids is None:
            self._check(past + x.shape[1])
            return torch.arange(past, past + x.shape[1], device=x.device)[None] + pad + 1
        real = (ids != pad).long()
        counts = (real.cumsum(dim=1) + past) * real
        if not torch.compiler.is_compiling() and past + ids.shape[1] > self.num_embeddings - pad - 1:
            self._check(int(counts.max()))  # a row may be longer, where the rest of it is padding
        return counts + pad

    def _check(self, length: int) -> None:
        most = self.num_embeddings - self.padding_idx - 1
        if length > most:
            raise InputError(
                f"the sequence has {length} tokens, but there are embeddings for {most} positions.",
                hint="Truncate it (truncation=True in the tokenizer), or split it into windows.",
            )


def sinusoids(size: int, dim: int) -> Tensor:
    """(size, D) of float64: sines and cosines of each position by turns, from wavelength 2 pi to 20000 pi."""
    pairs = torch.arange(dim, dtype=torch.float64) // 2
    angles = torch.arange(size, dtype=torch.float64)[:, None] / 10000 ** (2 * pairs / dim)
    return torch.where(torch.arange(dim) % 2 == 0, angles.sin(), angles.cos())


def distance_buckets(length: int, *, buckets: int, furthest: int, device: torch.device) -> Tensor:
    """(T, T) of buckets for the distance from each query to each key (Raffel et al. 2020).

    Half of the buckets are for keys before the query, half for those after it. Of each half, one half holds one
    distance each, the other ever wider ranges up to ``furthest``; the last takes all beyond.
    """
    place = torch.arange(length, device=device)
    distance = place[None, :] - place[:, None]
    half, exact = buckets // 2, buckets // 4
    apart = distance.abs()
    # Where a range begins depends on rounding: in float32 and in this order, as the checkpoints were trained.
    scale = torch.log(apart.clamp(min=1).float() / exact) / math.log(furthest / exact)
    far = (exact + (scale * (half - exact)).long()).clamp(max=half - 1)
    return torch.where(apart < exact, apart, far) + (distance > 0).long() * half
