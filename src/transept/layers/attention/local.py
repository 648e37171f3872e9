"""Attention to near positions, computed in blocks, for long texts: its cost grows with T and not with T squared.

Shapes: B batch, T positions, H heads, E head size, N blocks, G tokens with global attention.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from transept.layers.attention import Attention
from transept.layers.context import Attended, Context


def in_blocks(x: Tensor, size: int, sides: int = 0) -> Tensor:
    """(B, H, T, E) -> (B * N, H, (1 + 2 * sides) * size, E): blocks of ``size`` positions, with ``sides`` neighbours each way.

    What lies beyond the ends of a text is zeros, or ``False``.
    """
    x = F.pad(x, (0, 0, sides * size, -x.shape[2] % size + sides * size))
    return x.unfold(2, (1 + 2 * sides) * size, size).permute(0, 2, 1, 4, 3).flatten(0, 1)


def out_of_blocks(x: Tensor, batch: int, length: int) -> Tensor:
    """(B * N, H, size, E) -> (B, H, T, E): what :func:`in_blocks` has cut without neighbours."""
    return x.reshape(batch, -1, *x.shape[1:]).transpose(1, 2).flatten(2, 3)[:, :, :length]


def for_blocks(x: Tensor, blocks: int) -> Tensor:
    """(B, ...) -> (B * N, ...): the same for each of N blocks of a row."""
    return x[:, None].expand(-1, blocks, *x.shape[1:]).flatten(0, 1)


def near(size: int, sides: int, reach: int, device: torch.device) -> Tensor:
    """(size, (1 + 2 * sides) * size): whether a query and a key of a block and its neighbours are at most ``reach`` apart."""
    keys = torch.arange(-sides * size, (1 + sides) * size, device=device)
    return (keys - torch.arange(size, device=device)[:, None]).abs() <= reach


@dataclass(eq=False)
class GlobalTokens:
    """The tokens of a batch that see all others and are seen by all."""

    chosen: Tensor  # (B, T), true for these tokens
    places: Tensor  # (B, G): theirs, and of rows that have fewer than G some others after them
    real: Tensor  # (B, G), false for those others
    attentions: list[Tensor] = field(default_factory=list)  # (B, H, T, G) of each layer, where they are asked for

    @classmethod
    def of(cls, mask: Tensor, padding: Tensor | None) -> Self | None:
        """Those where a mask (B, T) is not 0 and that are no padding; ``None`` where there are none.

        In compiled graphs, where their number cannot be looked up, each position is a candidate.
        """
        chosen = mask != 0 if padding is None else (mask != 0) & padding
        most = chosen.shape[1] if torch.compiler.is_compiling() else int(chosen.sum(dim=1).max())
        if not most:
            return None
        places = torch.argsort((~chosen).byte(), dim=1, stable=True)[:, :most]
        return cls(chosen, places, chosen.gather(1, places))

    def index(self, x: Tensor) -> Tensor:
        """The places among states (B, T, D), as ``gather`` and ``scatter`` take them: (B, G, D)."""
        return self.places[..., None].expand(-1, -1, x.shape[2])


class SlidingAttention(Attention):
    """Attention to near positions and to tokens with global attention, which see all positions (Beltagy et al. 2020).

    The window of ``pattern`` says how near; the context's ``own`` are :class:`GlobalTokens`, or ``None``. Global attention has
    projections of its own. Padding gathers nothing. Weights that are shown are (B, H, T, G + 2 * reach + 1): for the tokens
    with global attention, then for positions by distance; those of global attention are with the tokens.
    """

    heads_apart = False

    def make_projections(self, dim: int, queries: int, keys: int, bias: bool) -> None:
        super().make_projections(dim, queries, keys, bias)
        self.global_q_proj = self.linear(dim, queries, bias)
        self.global_k_proj, self.global_v_proj = self.linear(dim, keys, bias), self.linear(dim, keys, bias)

    @property
    def reach(self) -> int:
        """How far positions see."""
        return (self.pattern.window or 1) - 1

    def gathered(self, x: Tensor, ctx: Context[GlobalTokens | None]) -> Attended:
        q, k, v = self.project(x)
        batch, length, tokens = x.shape[0], x.shape[1], ctx.own
        size, sides = self.reach, 1
        if length <= size and ctx.attentions is None and not torch.compiler.is_exporting():
            size, sides = length, 0  # all positions are near
        mask = self.near_keys(x, ctx, size, sides)
        blocks, keys, values = in_blocks(q, size), in_blocks(k, size, sides), in_blocks(v, size, sides)
        if tokens is not None:
            count, index = blocks.shape[0] // batch, tokens.places[:, None, :, None].expand(-1, k.shape[1], -1, k.shape[3])
            keys = torch.cat([for_blocks(k.gather(2, index), count), keys], dim=2)
            values = torch.cat([for_blocks(v.gather(2, index), count), values], dim=2)
            assert mask is not None  # which hides these tokens among the near ones
            mask = torch.cat([for_blocks(tokens.real[:, None, None], count).expand(-1, -1, size, -1), mask], dim=3)
        out, weights = self.attend(blocks, keys, values, mask, False, ctx)
        out = out_of_blocks(out, batch, length).transpose(1, 2).flatten(2)
        if ctx.attentions is not None and weights is not None:
            ctx.attentions.append(self.by_distance(weights, ctx, batch, length))
        out = out if tokens is None else self.with_global(x, out, ctx, tokens)
        return ctx.keep(out if ctx.padding is None else out.masked_fill(~ctx.padding[..., None], 0.0)), None

    def near_keys(self, x: Tensor, ctx: Context[GlobalTokens | None], size: int, sides: int) -> Tensor | None:
        """(B * N, 1, size, keys): the keys that queries see beside those of global attention; ``None`` where all."""
        place = self.pattern, sides
        if place not in ctx.lowered:
            real, tokens = ctx.padding, ctx.own
            if tokens is not None:
                real = ~tokens.chosen if real is None else real & ~tokens.chosen
            if real is None and sides:
                real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
            mask = None if real is None else in_blocks(real[:, None, :, None], size, sides).transpose(2, 3)
            ctx.lowered[place] = None if mask is None else mask & near(size, sides, self.reach, x.device)
        return ctx.lowered[place]

    def with_global(self, x: Tensor, out: Tensor, ctx: Context[GlobalTokens | None], tokens: GlobalTokens) -> Tensor:
        """What was gathered (B, T, D), with that of global attention where tokens have it."""
        index = tokens.index(x)
        q = self.split(self.global_q_proj(x.gather(1, index)))
        k, v = self.split(self.global_k_proj(x)), self.split(self.global_v_proj(x))
        mask = None if ctx.padding is None else ctx.padding[:, None, None]
        found, weights = self.attend(q, k, v, mask, False, ctx)
        if ctx.attentions is not None and weights is not None:
            tokens.attentions.append(weights.transpose(2, 3))
        index = tokens.index(out)
        found = torch.where(tokens.real[..., None], found.transpose(1, 2).flatten(2), out.gather(1, index))
        return out.scatter(1, index, found)

    def by_distance(self, weights: Tensor, ctx: Context[GlobalTokens | None], batch: int, length: int) -> Tensor:
        """The weights of blocks (B * N, H, size, G + 3 * size) -> (B, H, T, G + 2 * size + 1), zeros where they say nothing."""
        size, hidden = self.reach, None if ctx.padding is None else ~ctx.padding
        places = torch.arange(size, device=weights.device)[:, None] + torch.arange(2 * size + 1, device=weights.device)
        count = weights.shape[3] - 3 * size
        banded = weights[..., count:].gather(3, places.expand(*weights.shape[:2], -1, -1))
        shown = out_of_blocks(torch.cat([weights[..., :count], banded], dim=3), batch, length)
        if ctx.own is not None:  # their weights are those of global attention
            hidden = ctx.own.chosen if hidden is None else hidden | ctx.own.chosen
        return shown if hidden is None else shown.masked_fill(hidden[:, None, :, None], 0.0)
