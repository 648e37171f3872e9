"""Images as sequences of patches (Dosovitskiy et al. 2021).

Shapes: B batch, C channels, H height, W width in pixels, N patches (rows by rows), D hidden size.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


def pair(size: int | list[int]) -> tuple[int, int]:
    """(height, width) of a size that a config gives as one number or as two."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


class PatchEmbedding(nn.Module):
    """Cuts images into patches and projects each to one state.

    Args:
        channels: C.
        dim: D.
        patch: height and width of a patch in pixels; what remains at the right and at the bottom is left out.
    """

    def __init__(self, channels: int, dim: int, patch: tuple[int, int]) -> None:
        super().__init__()
        self.projection = nn.Conv2d(channels, dim, kernel_size=patch, stride=patch)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, N, D)."""
        patches: Tensor = self.projection(pixels)
        return patches.flatten(2).transpose(1, 2)


def resize_positions(positions: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """Embeddings for another grid of patches, by bicubic interpolation.

    Args:
        positions: (1, N, D).
        old, new: rows and columns of the grids.

    Returns:
        (1, N', D).
    """
    if old == new:
        return positions
    grid = positions.view(1, *old, -1).permute(0, 3, 1, 2)
    return F.interpolate(grid, size=new, mode="bicubic", align_corners=False).flatten(2).transpose(1, 2)
