"""Rotary position embeddings (Su et al. 2021) and their scalings for longer contexts.

The halves of a head are rotated against each other (element i with element i + E/2), as the checkpoints were trained, so that
their query and key weights load untouched.

Shapes: B batch, T positions, E head size.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate (B, H, T, E) by tables of (B or 1, 1, T, R); of the E elements only the first R turn."""
    size = cos.shape[-1]
    turned, rest = (x, None) if size == x.shape[-1] else (x[..., :size], x[..., size:])
    a, b = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat([-b, a], dim=-1) * sin
    return turned if rest is None else torch.cat([turned, rest], dim=-1)
