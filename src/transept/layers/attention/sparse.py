"""Attention of positions to some of a long text: blocks that attend to blocks (Zaheer et al. 2020).

Shapes: B batch, T positions, H heads, E head size, N blocks of P positions, M blocks that one attends to.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from transept.layers.attention import Attention
from transept.layers.context import Attended, Context


class BlockSparseAttention(Attention):
    """Attention in which the first and the last block see all of a text, and others these two, their neighbours and some more.

    Shorter texts than ``5 + 2 * random`` blocks, and all with a mask for pairs of positions, such as a causal one, have full
    attention. Padding gathers zeros in long texts.

    Args:
        block: P.
        random: how many more blocks one sees. In training they follow from the numbers of layer, head and block; in evaluation
            the first block counts as often again, as trained models expect.
    """

    def __init__(self, *args: Any, block: int, random: int, **options: Any) -> None:
        super().__init__(*args, **options)
        self.block, self.random = block, random

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, ctx: Context) -> Attended:
        length = k.shape[2]
        by_pairs = causal or (mask is not None and (mask.shape[2] > 1 or mask.is_floating_point()))
        if self.cross or by_pairs or q.shape[2] != length or length <= self.block * (5 + 2 * self.random):
            return super().attend(q, k, v, mask, causal, ctx)
        real = torch.ones(1, 1, 1, length, dtype=torch.bool, device=q.device) if mask is None else mask
        real = real.expand(q.shape[0], 1, 1, -1)
        spare = -length % self.block
        q, k, v = (F.pad(x, (0, 0, 0, spare)) for x in (q, k, v))
        out, weights = self.by_blocks(q, k, v, F.pad(real, (0, spare)), ctx)
        out = out[:, :, :length].masked_fill(~real.mT, 0.0)
        return out, None if weights is None else weights[:, :, :length, :length]

    def by_blocks(self, q: Tensor, k: Tensor, v: Tensor, real: Tensor, ctx: Context) -> Attended:
        """What queries (B, H, T, E) gather, and the weights (B, H, T, T), for a T of whole blocks; ``real`` is (B, 1, 1, T)."""
        size, heads = self.block, torch.arange(q.shape[1], device=q.device)[:, None, None]
        ends = torch.cat([q[:, :, :size], q[:, :, -size:]], dim=2)
        outer, outer_weights = ctx.kernel(ends, k, v, real, False, self.scale, 0.0)
        blocks = [_apart(x, 2, -1, size) for x in (q, k, v)]  # (B, H, N, P, E)
        seen, once = self.plan(blocks[0].shape[2], q.shape[1], ctx.layer, q.device)
        # Each block becomes a row of the batch: (B * (N - 2), H, P or M * P, E).
        keys, values = (_as_rows(x[:, heads, seen].flatten(3, 4)) for x in blocks[1:])
        allowed = real.view(len(real), -1, size)[:, seen] & once[..., None]
        queries, mask = _as_rows(blocks[0][:, :, 1:-1]), _as_rows(allowed.flatten(3)[..., None, :])
        inner, inner_weights = ctx.kernel(queries, keys, values, mask, False, self.scale, 0.0)
        middle = _apart(inner, 0, len(q), -1).transpose(1, 2).flatten(2, 3)
        out = torch.cat([outer[:, :, :size], middle, outer[:, :, size:]], dim=2)
        if inner_weights is None or outer_weights is None:
            return out, None
        shown = _apart(_apart(inner_weights, 0, len(q), -1).transpose(1, 2), 4, -1, size)  # (B, H, N - 2, P, M, P)
        places = seen[None, :, :, None, :, None].expand(shown.shape)
        whole = shown.new_zeros(*shown.shape[:4], blocks[1].shape[2], size).scatter_reduce(4, places, shown, "amax")
        parts = [outer_weights[:, :, :size], whole.flatten(4).flatten(2, 3), outer_weights[:, :, size:]]
        return out, torch.cat(parts, dim=2)

    def plan(self, count: int, heads: int, layer: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Which of N (``count``) blocks each inner one sees, (H, N - 2, M), and (N - 2, M) false for those that come twice."""
        inner = torch.arange(1, count - 1, device=device)[:, None]
        ends = torch.tensor([0, count - 1], device=device).expand(count - 2, 2)
        near = torch.cat([inner - 1, inner, inner + 1], dim=1)
        # Neighbours that are the first or the last block are seen already.
        once = F.pad((near > 0) & (near < count - 1), (2, self.random), value=True)
        more = self.drawn(inner, heads, layer) if self.training else inner.new_zeros(1, count - 2, self.random)
        fixed = torch.cat([ends, near], dim=1).expand(heads, -1, -1)
        return torch.cat([fixed, more.expand(heads, -1, -1)], dim=-1), once

    def drawn(self, inner: Tensor, heads: int, layer: int) -> Tensor:
        """(H, N - 2, R): different blocks for each of the ``inner`` ones (N - 2, 1), none of which is a neighbour or an end."""
        head = torch.arange(heads, device=inner.device)[:, None, None] + 1
        # Numbers by a hash, which are the same in each pass and need no generator.
        number = (head * 73856093) ^ (inner * 19349663) ^ (inner.mT * 83492791) ^ ((layer + 1) * 49979687)
        number = ((number ^ (number >> 13)) * 1274126177) & 0x7FFFFFFF
        number = number.masked_fill((inner - inner.mT).abs() <= 1, -1)
        return number.topk(self.random, dim=-1).indices + 1


def _apart(x: Tensor, axis: int, *sizes: int) -> Tensor:
    """The same with one axis as several."""
    return x.view(*x.shape[:axis], *sizes, *x.shape[axis:][1:])


def _as_rows(x: Tensor) -> Tensor:
    """(B, H, N, ...) -> (B * N, H, ...)."""
    return x.transpose(1, 2).flatten(0, 1)
