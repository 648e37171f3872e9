"""DETR's masks: attention of queries over a map, made larger with the help of larger maps.

Shapes: B batch, Q queries, D hidden size, H height, W width (of a map).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.layers.links import Linked
from transept.layers.mlp import activation


class GroupConv(nn.Module):
    """A 3 x 3 convolution, a norm over groups of channels, and an activation."""

    def __init__(self, inputs: int, outputs: int, act: str) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(min(8, outputs), outputs)
        self.act = activation(act)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.conv(x)))


class Enlarging(Linked):
    """A map in the size of a larger one, which an adapter gives as many channels and which is added."""

    def __init__(self, inputs: int, outputs: int, channels: int, act: str) -> None:
        super().__init__()
        self.adapter, self.refine = nn.Conv2d(channels, inputs, 1), GroupConv(inputs, outputs, act)

    def forward(self, x: Tensor, larger: Tensor, queries: int) -> Tensor:
        """(B * Q, C, H, W) and (B, C', 2 H, 2 W) -> (B * Q, C / 2, 2 H, 2 W)."""
        added = self.adapter(larger).repeat_interleave(queries, dim=0)
        out: Tensor = self.refine(added + F.interpolate(x, size=added.shape[2:], mode="nearest"))
        return out


class MaskHead(Linked):
    """Attention of queries over a map, made into masks with the help of larger maps."""

    def __init__(self, dim: int, heads: int, act: str, channels: list[int]) -> None:
        super().__init__()
        sizes = [dim // 2**step for step in range(1, 5)]
        self.first, self.second = GroupConv(dim + heads, dim + heads, act), GroupConv(dim + heads, sizes[0], act)
        steps = zip(sizes[:-1], sizes[1:], channels[::-1][-3:], strict=True)
        self.stages = nn.ModuleList(Enlarging(*each, act) for each in steps)
        self.out = nn.Conv2d(sizes[-1], 1, 3, padding=1)

    def forward(self, projected: Tensor, attention: Tensor, maps: tuple[Tensor, ...]) -> Tensor:
        """Maps (B, D, H, W) and attention (B, Q, heads, H, W) -> logits (B, Q, H', W') in the size of the largest of maps."""
        queries = attention.shape[1]
        x = torch.cat([projected[:, None].expand(-1, queries, -1, -1, -1), attention], dim=2).flatten(0, 1)
        x = self.second(self.first(x))
        for stage, larger in zip(self.stages, maps[::-1][-3:], strict=True):
            x = stage(x, larger, queries)
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


MASK_HEAD: Table = {
    "conv1": "first",
    "conv2": "second",
    "fpn_stages.*": ("stages.*", {"fpn_adapter": "adapter", "refine": "refine"}),
    "output_conv": "out",
}
_CONVS = ("conv1", "conv2", *(f"fpn_stages.{place}.refine" for place in range(3)))
# A file's names of the parts -> those of the tree.
MASK_FILES: Table = {
    **{f"lay{number}": f"{place}.conv" for number, place in enumerate(_CONVS, 1)},
    **{f"gn{number}": f"{place}.norm" for number, place in enumerate(_CONVS, 1)},
    **{f"adapter{place + 1}": f"fpn_stages.{place}.fpn_adapter" for place in range(3)},
    "out_lay": "output_conv",
}
ATTENTION_FILES: Table = {f"{part}_linear": f"{part}_proj" for part in "qk"}
