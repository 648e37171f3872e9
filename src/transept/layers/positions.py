"""Positions: learned ones that count real tokens or stand in a grid, waves, distances in buckets, biases by distance.

Shapes: B batch, T positions, S keys, H heads, D size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

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

    @property
    def capacity(self) -> int:
        """Positions that there are embeddings for: the rows behind the padding id."""
        return self.num_embeddings - self.padding_idx - 1

    def count(self, ids: Tensor | None, x: Tensor, past: int | Tensor) -> Tensor:
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
            if not isinstance(past, Tensor):
                self._check(past + x.shape[1])
            return torch.arange(x.shape[1], device=x.device)[None] + past + pad + 1
        real = (ids != pad).long()
        counts = (real.cumsum(dim=1) + past) * real
        if not torch.compiler.is_compiling() and past + ids.shape[1] > self.capacity:
            self._check(int(counts.max()))  # a row may be longer, where the rest of it is padding
        return counts + pad

    def _check(self, length: int) -> None:
        if length > self.capacity:
            raise InputError(
                f"the sequence has {length} tokens, but there are embeddings for {self.capacity} positions.",
                hint="Truncate it (truncation=True in the tokenizer), or split it into windows.",
            )


def sinusoids(size: int, dim: int) -> Tensor:
    """(size, D) of float64: sines and cosines of each position by turns, from wavelength 2 pi to 20000 pi."""
    angles = _angles(torch.arange(size), dim)
    return torch.where(torch.arange(dim) % 2 == 0, angles.sin(), angles.cos())


def halved_sinusoids(positions: Tensor, dim: int) -> Tensor:
    """(T) positions -> (T, D) of float64: the numbers of :func:`sinusoids`, all sines before all cosines."""
    angles = _angles(positions, dim)
    return torch.cat([angles[:, 0::2].sin(), angles[:, 1::2].cos()], dim=-1)


def _angles(positions: Tensor, dim: int) -> Tensor:
    pairs = torch.arange(dim, dtype=torch.float64, device=positions.device) // 2
    return positions.double()[:, None] / 10000 ** (2 * pairs / dim)


def distances(queries: Tensor, keys: int) -> Tensor:
    """(T) positions of queries -> (T, S) of integers: how far behind each of them each of S keys stands."""
    return torch.arange(keys, device=queries.device)[None, :] - queries[:, None]


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


def alibi_slopes(heads: int, device: torch.device | None = None) -> Tensor:
    """(H) of float32: how fast the bias of each head falls with distance (Press et al. 2022).

    Powers from 2^(-8 / n) to 2^-8 for the greatest power of two n that is no more than H; what heads are left take every
    other one of those for 2 n.
    """
    most = 1 << (heads.bit_length() - 1)
    slopes = _powers(most, device)
    return slopes if most == heads else torch.cat([slopes, _powers(2 * most, device)[: 2 * (heads - most) : 2]])


def _powers(count: int, device: torch.device | None) -> Tensor:
    # On the device from the start: a copy from the host would wait for it.
    return torch.exp2(torch.arange(1, count + 1, dtype=torch.float32, device=device) * (-8 / count))


def alibi(heads: int, keys: int, real: Tensor | None, like: Tensor) -> Tensor:
    """(1 or B, H, 1, S): each head's slope times the position of each key, to be added to the scores.

    Queries need no part in it: a softmax over keys is the same whether distances or positions are what they differ by.

    Args:
        heads: H.
        keys: S, cached and new.
        real: (B, S) of bool, true for real keys, which alone are counted; all are when absent.
        like: a tensor of the type and on the device that the bias is for.
    """
    if real is None:
        places = torch.arange(keys, device=like.device)[None]
    else:
        places = (real.long().cumsum(dim=1) - 1) * real
    # In float32 until the end: bfloat16 lacks odd numbers beyond 256.
    return (alibi_slopes(heads, like.device)[:, None, None] * places[:, None, None]).to(like.dtype)
