"""A neck over states of patches: they become maps of several sizes, and these are fused (Ranftl et al. 2021).

Shapes: B batch, T positions, D hidden size, C channels, H height, W width.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.layers.links import Linked
from transept.layers.mlp import activation


def stretched(x: Tensor, size: Sequence[int]) -> Tensor:
    """A map (B, C, H, W) in another size, bilinearly, the corners of both in the same place."""
    return F.interpolate(x, size=tuple(size), mode="bilinear", align_corners=True)


class Reassemble(Linked):
    """States of patches -> a map of ``channels`` that is ``factor`` times as large as their grid.

    ``readout`` says what becomes of the class token: it is left out (``ignore``), added to all patches (``add``), or joined to
    each and both made into one state (``project``).
    """

    def __init__(self, dim: int, channels: int, factor: float, readout: str = "ignore", act: str = "gelu") -> None:
        super().__init__()
        self.adds, self.act = readout == "add", activation(act)
        self.readout = nn.Linear(2 * dim, dim) if readout == "project" else None
        self.project = nn.Conv2d(dim, channels, kernel_size=1)
        self.resize: nn.Module = nn.Identity()
        if factor > 1:
            self.resize = nn.ConvTranspose2d(channels, channels, int(factor), int(factor))
        elif factor < 1:
            self.resize = nn.Conv2d(channels, channels, 3, int(1 / factor), padding=1)

    def forward(self, x: Tensor, first: int, grid: tuple[int, int]) -> Tensor:
        """States (B, first + rows * columns, D), the class token's first -> (B, C, H, W)."""
        token, patches = x[:, :1], x[:, first:]
        if self.adds:
            patches = patches + token
        if self.readout is not None:
            patches = self.act(self.readout(torch.cat([patches, token.expand_as(patches)], dim=-1)))
        out: Tensor = self.resize(self.project(patches.transpose(1, 2).reshape(len(x), -1, *grid)))
        return out


class ResidualUnit(Linked):
    """Two 3 x 3 convolutions, each after an activation and with a norm where there are some; the input is added."""

    def __init__(self, channels: int, norm: bool, bias: bool) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(channels, channels, 3, padding=1, bias=bias) for _ in range(2))
        self.norm1, self.norm2 = (nn.BatchNorm2d(channels) if norm else nn.Identity() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm1(self.conv1(F.relu(x)))
        out = self.norm2(self.conv2(F.relu(out)))
        return x + out


class Fusion(Linked):
    """A map, refined with the help of another one, in a larger size."""

    def __init__(self, channels: int, norm: bool, bias: bool) -> None:
        super().__init__()
        self.skip, self.unit = ResidualUnit(channels, norm, bias), ResidualUnit(channels, norm, bias)
        self.project = nn.Conv2d(channels, channels, kernel_size=1)

    def forward(self, x: Tensor, other: Tensor | None, size: Sequence[int]) -> Tensor:
        """(B, C, H, W) -> (B, C, H', W'); the other map is resized to the first."""
        if other is not None:
            if other.shape != x.shape:
                other = F.interpolate(other, size=x.shape[2:], mode="bilinear", align_corners=False)
            x = x + self.skip(other)
        # A projection of each place and a resizing may change places; there are fewer places before.
        return stretched(self.project(self.unit(x)), size)


class Neck(Linked):
    """States of several layers -> fused maps of ``channels``, each larger than the one before it.

    ``sizes`` and ``factors`` are the channels and the scale of the map that each layer's states become. Each fused map is
    twice as large as what it was made of, or, with ``fitted``, as large as the next one that it is fused with. ``readout`` and
    ``act`` are those of :class:`Reassemble`; ``norm`` and ``bias`` are of the units.
    """

    def __init__(
        self,
        dim: int,
        channels: int,
        sizes: Sequence[int],
        factors: Sequence[float],
        *,
        readout: str = "ignore",
        act: str = "gelu",
        norm: bool = False,
        bias: bool = True,
        fitted: bool = False,
    ) -> None:
        super().__init__()
        pairs = zip(sizes, factors, strict=False)  # further factors are of no map
        self.reassemble = nn.ModuleList(Reassemble(dim, size, factor, readout, act) for size, factor in pairs)
        self.convs = nn.ModuleList(nn.Conv2d(size, channels, 3, padding=1, bias=False) for size in sizes)
        self.fusions = nn.ModuleList(Fusion(channels, norm, bias) for _ in sizes)
        self.fitted = fitted

    def forward(self, states: Sequence[Tensor], first: int, grid: tuple[int, int]) -> list[Tensor]:
        """States (B, T, D) of each layer, of which ``first`` come before the patches of a grid -> (B, C, H, W) each."""
        parts = zip(self.reassemble, self.convs, states, strict=True)
        maps: list[Tensor | None] = [conv(part(x, first, grid)) for part, conv, x in parts]
        x, fused = maps[-1], []
        assert x is not None
        for fusion, (other, following) in zip(self.fusions, pairwise([None, *maps[-2::-1], None]), strict=True):
            next_size = following.shape[2:] if self.fitted and following is not None else (2 * x.shape[2], 2 * x.shape[3])
            x = fusion(x, other, next_size)
            fused.append(x)
        return fused
