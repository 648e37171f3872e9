"""Losses of painting what was hidden.

Shapes: B batch, C channels, H height, W width.
"""

from __future__ import annotations

from torch import Tensor

from transept.errors import InputError
from transept.objectives.classification import widened
from transept.objectives.terms import LossTerm

# Keeps the mean over no masked pixel at zero.
EPSILON = 1e-5


def masked_l1(painted: Tensor, pixels: Tensor, masked: Tensor) -> LossTerm:
    """Mean distance of the masked pixels, over all channels (Xie et al. 2022).

    Args:
        painted, pixels: (B, C, H, W).
        masked: (B, H, W) of bool, true for the pixels that count.

    Raises:
        InputError: what was painted has another shape than the images.
    """
    if painted.shape != pixels.shape:
        raise InputError(
            f"the model paints images of {tuple(painted.shape[1:])}, but was given {tuple(pixels.shape[1:])}.",
            hint="Use images whose height and width are multiples of the patch size.",
        )
    distance = (widened(pixels) - widened(painted)).abs().masked_fill(~masked[:, None], 0.0)
    return LossTerm(distance.sum(), (masked.sum() + EPSILON) * pixels.shape[1])
