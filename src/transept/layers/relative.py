"""Attention that knows how far apart positions are and whether two are of one segment, and that looks back at earlier ones.

Transformer-XL (Dai et al. 2019) keeps the inputs of its layers as memories for the next segment, and scores by distance; XLNet
(Yang et al. 2019) adds segments, and targets: queries that know their place and not what stands there.

Shapes: B batch, T positions, M remembered positions, S = M + T keys, G targets, P distances, D hidden size, H heads, E size
of a head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from transept.layers.attention import Attention
from transept.layers.context import Context


@dataclass(eq=False)
class RelativeContext(Context):
    """One forward pass.

    ``positions`` is T, behind which the states of targets stand; ``waves`` (1 or B, P, D) stand for the distances from S down;
    ``apart`` (B, 1, T or 2 T, S) is true where two tokens are of different segments; ``memories`` are (M, B, D), one a layer;
    ``targets`` (B, G, T) says which places the targets are at. Where there are targets, ``full_mask`` (1 or B, 1, T or 2 T, S)
    and ``apart`` have the rows of all places twice: first those of tokens, then those of targets.
    """

    positions: int = 0
    waves: Tensor | None = None
    apart: Tensor | None = None
    memories: Sequence[Tensor] = ()
    targets: Tensor | None = None


def relative_waves(distances: Tensor, dim: int) -> Tensor:
    """(..., P) distances -> (..., P, D): sines, then cosines, in float32 as checkpoints were trained."""
    frequencies = 1 / torch.pow(10000, torch.arange(0, dim, 2, device=distances.device).float() / dim)
    angles = distances.float()[..., None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def shifted(scores: Tensor, keys: int) -> Tensor:
    """Scores (..., T, P) by distance, from S down -> (..., T, S) by key: the query i is at M + i."""
    *rows, queries, distances = scores.shape
    # Row i begins i later than the one before it once the first T numbers are dropped and rows are one shorter.
    return scores.flatten(-2)[..., queries:].reshape(*rows, queries, distances - 1)[..., :keys]


class RelativeAttention(Attention):
    """Attention with scores by content, distance and segment; each has a bias of its own for the queries.

    Args:
        dim: D.
        heads: H, a divisor of D.
        dropout: share of the weights dropped in training.
    """

    def __init__(self, dim: int, heads: int, *, dropout: float = 0.0) -> None:
        super().__init__(dim, heads, bias=False, dropout=dropout)
        self.r_proj = nn.Linear(dim, dim, bias=False)
        self.content_bias = nn.Parameter(torch.empty(heads, self.head_dim))
        self.distance_bias = nn.Parameter(torch.empty(heads, self.head_dim))
        self.segment_bias = nn.Parameter(torch.empty(heads, self.head_dim))
        self.segments = nn.Parameter(torch.empty(2, heads, self.head_dim))

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T + G, D) -> (B, T + G, D); keys are the memories and the first T states."""
        assert isinstance(ctx, RelativeContext)
        states = x[:, : ctx.positions]
        if ctx.memories:
            states = torch.cat([ctx.memories[ctx.layer].transpose(0, 1).to(x.dtype), states], dim=1)
        q, k, v = self.split(self.q_proj(x)), self.split(self.k_proj(states)), self.split(self.v_proj(states))
        if (targets := ctx.targets) is not None:  # from targets to their places, and back
            q = torch.cat([q[:, :, : ctx.positions], targets.mT[:, None] @ q[:, :, ctx.positions :]], dim=2)
        bias = self.relations(q, k.shape[2], ctx)
        if ctx.full_mask is not None:
            # Half of the smallest number, since scores are still to be added.
            bias = bias.masked_fill(~ctx.full_mask, torch.finfo(bias.dtype).min / 2)
        out, weights = self.attend(q + self.content_bias[:, None], k, v, bias, False, ctx)
        if ctx.attentions is not None and weights is not None:
            ctx.attentions.append(weights if targets is None else weights.chunk(2, dim=2))  # type: ignore[arg-type]
        if targets is not None:
            out = torch.cat([out[:, :, : ctx.positions], targets[:, None] @ out[:, :, ctx.positions :]], dim=2)
        return self.o_proj(out.transpose(1, 2).flatten(2))

    def relations(self, q: Tensor, keys: int, ctx: RelativeContext) -> Tensor:
        """What distances and segments add to the scores of queries (B, H, T or 2 T, E): (B, H, T or 2 T, S)."""
        assert ctx.waves is not None
        by_distance = (q + self.distance_bias[:, None]) @ self.split(self.r_proj(ctx.waves)).mT
        streams = by_distance.reshape(*q.shape[:2], -1, ctx.positions, by_distance.shape[-1])
        scores = shifted(streams, keys).flatten(2, 3)
        if ctx.apart is not None:
            by_segment = (q + self.segment_bias[:, None]) @ self.segments.permute(1, 2, 0)
            scores = scores + torch.where(ctx.apart, by_segment[..., 1:], by_segment[..., :1])
        return scores / math.sqrt(self.head_dim)
