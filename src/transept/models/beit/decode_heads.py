"""Heads that make classes of pixels out of several feature maps.

Shapes: B batch, C channels, K classes, H height, W width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.layers.conv import ConvNormAct
from transept.layers.links import Linked


def resized(x: Tensor, like: Tensor) -> Tensor:
    """A map (B, C, H', W') in the height and width of another, by bilinear interpolation."""
    return F.interpolate(x, size=like.shape[2:], mode="bilinear", align_corners=False)


class Pooled(nn.Module):
    """The means of a map over a grid of ``scale`` rows and columns, convolved."""

    def __init__(self, inputs: int, outputs: int, scale: int) -> None:
        super().__init__()
        self.conv, self.scale = ConvNormAct(inputs, outputs, 1), scale

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(F.adaptive_avg_pool2d(x, self.scale))
        return out


class PyramidPooling(Linked):
    """A map beside its means over grids of some sizes, in its own size again (Zhao et al. 2017)."""

    def __init__(self, inputs: int, outputs: int, scales: Sequence[int]) -> None:
        super().__init__()
        self.levels = nn.ModuleList(Pooled(inputs, outputs, scale) for scale in scales)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C + scales * C', H, W)."""
        return torch.cat([x, *(resized(level(x), x) for level in self.levels)], dim=1)


class UPerNet(Linked):
    """A head over maps that get smaller: pyramid pooling of the last, added to those before it from the top down, and all
    joined in the size of the first (Xiao et al. 2018).
    """

    def __init__(self, inputs: Sequence[int], dim: int, classes: int, scales: Sequence[int] = (1, 2, 3, 6)) -> None:
        super().__init__()
        self.pool = PyramidPooling(inputs[-1], dim, scales)
        self.bottleneck = ConvNormAct(inputs[-1] + len(scales) * dim, dim)
        self.laterals = nn.ModuleList(ConvNormAct(each, dim, 1) for each in inputs[:-1])
        self.convs = nn.ModuleList(ConvNormAct(dim, dim) for _ in inputs[:-1])
        self.fuse = ConvNormAct(len(inputs) * dim, dim)
        self.classifier = nn.Conv2d(dim, classes, kernel_size=1)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        """(B, C, H, W) of each stage -> (B, K, H, W) in the size of the first."""
        top = self.bottleneck(self.pool(maps[-1]))
        levels = [top]
        for lateral, x in zip(reversed(self.laterals), reversed(maps[:-1]), strict=True):
            x = lateral(x)
            levels.insert(0, x + resized(levels[0], x))
        parts = [*(conv(x) for conv, x in zip(self.convs, levels[:-1], strict=True)), top]
        logits: Tensor = self.classifier(self.fuse(torch.cat([resized(each, parts[0]) for each in parts], dim=1)))
        return logits


class FCN(Linked):
    """A head of convolutions over one map (Long et al. 2015); ``skip`` joins the map to what they give, by another one."""

    def __init__(self, inputs: int, dim: int, classes: int, count: int = 1, *, skip: bool = False) -> None:
        super().__init__()
        self.convs = nn.ModuleList(ConvNormAct(dim if index else inputs, dim) for index in range(count))
        last = dim if count else inputs
        self.join = ConvNormAct(inputs + last, dim) if skip else None
        self.classifier = nn.Conv2d(dim if skip else last, classes, kernel_size=1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, K, H, W)."""
        out = x
        for conv in self.convs:
            out = conv(out)
        if self.join is not None:
            out = self.join(torch.cat([x, out], dim=1))
        logits: Tensor = self.classifier(out)
        return logits


_CONV: Table = {"convolution": "conv", "normalization": "norm"}
UPERNET_NAMES: Table = {
    "classifier": "classifier",
    "psp_modules": ("pool", {"blocks.*": ("levels.*", {"conv": ("conv", _CONV)})}),
    "psp_bottleneck": ("bottleneck", _CONV),
    "lateral_convs.*": ("laterals.*", _CONV),
    "fpn_convs.*": ("convs.*", _CONV),
    "fpn_bottleneck": ("fuse", _CONV),
}
FCN_NAMES: Table = {"convs.*": ("convs.*", _CONV), "conv_cat": ("join", _CONV), "classifier": "classifier"}
# Files have older names.
_CONV_FILES = {"conv": "convolution", "bn": "normalization"}
UPERNET_FILES: Table = {
    "psp_modules.*.1": ("psp_modules.blocks.*.conv", _CONV_FILES),
    "bottleneck": ("psp_bottleneck", _CONV_FILES),
    **{name: (name, _CONV_FILES) for name in ("lateral_convs.*", "fpn_convs.*", "fpn_bottleneck")},
}
FCN_FILES: Table = {"convs.*": ("convs.*", _CONV_FILES), "conv_cat": ("conv_cat", _CONV_FILES)}
