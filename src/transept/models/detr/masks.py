"""DETR's masks: attention of queries over a map, made larger with the help of larger maps.

Shapes: B batch, Q queries, D hidden size, H height, W width (of a map).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.names import Table
from transept.layers.activation import activation


class GroupConv(nn.Module):
    """A 3 x 3 convolution, a norm over groups of channels, and an activation."""

    def __init__(self, inputs: int, outputs: int, act: str) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(min(8, outputs), outputs)
        self.act = activation(act)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.conv(x)))


class MaskHead(nn.Module):
    """Attention of queries over a map, made into masks with the help of larger maps."""

    def __init__(self, dim: int, heads: int, act: str, channels: list[int]) -> None:
        super().__init__()
        first, sizes = dim + heads, [dim // 2**step for step in range(1, 5)]
        pairs = zip([first, first, *sizes], [first, *sizes])
        self.convs = nn.ModuleList(GroupConv(a, b, act) for a, b in pairs)
        self.adapters = nn.ModuleList(nn.Conv2d(a, b, 1) for a, b in zip(channels[::-1][-3:], sizes, strict=False))
        self.out = nn.Conv2d(sizes[-1], 1, 3, padding=1)

    def forward(self, projected: Tensor, attention: Tensor, maps: tuple[Tensor, ...]) -> Tensor:
        """Maps (B, D, H, W) and attention (B, Q, heads, H, W) -> logits (B, Q, H', W') in the size of the largest of maps."""
        queries = attention.shape[1]
        x = torch.cat([projected[:, None].expand(-1, queries, -1, -1, -1), attention], dim=2).flatten(0, 1)
        x = self.convs[1](self.convs[0](x))
        for conv, adapter, larger in zip(self.convs[2:], self.adapters, maps[::-1][-3:], strict=True):
            added = adapter(larger).repeat_interleave(queries, dim=0)
            x = conv(added + F.interpolate(x, size=added.shape[2:], mode="nearest"))
        return self.out(x).view(len(projected), queries, *x.shape[2:])


class MapAttention(nn.Module):
    """How much each query looks at each place of a map, by several heads: they and all places together sum to one."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, states: Tensor, memory: Tensor, real: Tensor) -> Tensor:
        """States (B, Q, D), a map (B, H * W, D) and its real places (B, H, W) -> (B, Q, heads, H, W)."""
        q, k = (layer(x).unflatten(2, (self.heads, -1)) for layer, x in ((self.q_proj, states), (self.k_proj, memory)))
        scores = torch.einsum("bqhe,bthe->bqht", q * q.shape[-1] ** -0.5, k)
        scores = scores.masked_fill(~real.flatten(1)[:, None, None], torch.finfo(scores.dtype).min)
        return scores.flatten(2).softmax(-1).view(*scores.shape[:3], *real.shape[1:])


MASK_NAMES: Table = {
    **{f"lay{place + 1}": f"masks.convs.{place}.conv" for place in range(5)},
    **{f"gn{place + 1}": f"masks.convs.{place}.norm" for place in range(5)},
    **{f"adapter{place + 1}": f"masks.adapters.{place}" for place in range(3)},
    "out_lay": "masks.out",
}
# What the reference calls them in memory -> their stored names.
MASK_LEGACY = {
    **{f"mask_head.conv{place}.conv": f"mask_head.lay{place}" for place in (1, 2)},
    **{f"mask_head.conv{place}.norm": f"mask_head.gn{place}" for place in (1, 2)},
    **{f"mask_head.fpn_stages.{place}.refine.conv": f"mask_head.lay{place + 3}" for place in range(3)},
    **{f"mask_head.fpn_stages.{place}.refine.norm": f"mask_head.gn{place + 3}" for place in range(3)},
    **{f"mask_head.fpn_stages.{place}.fpn_adapter": f"mask_head.adapter{place + 1}" for place in range(3)},
    "mask_head.output_conv": "mask_head.out_lay",
    "bbox_attention.q_proj": "bbox_attention.q_linear",
    "bbox_attention.k_proj": "bbox_attention.k_linear",
}
