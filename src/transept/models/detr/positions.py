"""Positions over rows and columns. Shapes: B batch, H height, W width (of a map), D hidden size."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from transept.errors import InputError
from transept.layers.links import Linked

_GRID = 50  # rows and columns that learned positions have


class SinePositions(nn.Module):
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


class LearnedPositions(Linked):
    """A learned vector for each of 50 columns and rows, side by side: (B, H, W) -> (B, H * W, D)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.rows, self.columns = nn.Embedding(_GRID, dim // 2), nn.Embedding(_GRID, dim // 2)

    def reset(self) -> None:
        for table in (self.rows, self.columns):
            nn.init.uniform_(table.weight)

    def forward(self, mask: Tensor, dtype: torch.dtype) -> Tensor:
        batch, height, width = mask.shape
        if max(height, width) > _GRID:
            what = f"the map has {height} x {width} places, but there are positions for {_GRID} rows and columns."
            raise InputError(what, hint="Make the images smaller.")
        rows = self.rows.weight[:height, None].expand(-1, width, -1)
        columns = self.columns.weight[:width].expand(height, -1, -1)
        return torch.cat([columns, rows], dim=-1).flatten(0, 1).expand(batch, -1, -1)
