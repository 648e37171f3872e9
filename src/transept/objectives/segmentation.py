"""Losses over the classes of pixels. Shapes: B batch, K classes, H height, W width."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from transept.errors import InputError
from transept.objectives.classification import check_is_tensor, check_labels, counted, cross_entropy, widened
from transept.objectives.terms import LossTerm


def count_pixels(labels: Tensor, classes: int, ignore_index: int) -> Tensor:
    """The items of :func:`pixel_classes`: pixels that are not ignored, or with one class all."""
    check_is_tensor(labels)
    return counted(labels, ignore_index) if classes > 1 else torch.tensor(labels.numel(), device=labels.device)


def pixel_classes(logits: Tensor, labels: Tensor, ignore_index: int) -> LossTerm:
    """Cross-entropy of logits (B, K, H', W'), resized bilinearly, and labels (B, H, W) below K, or ``ignore_index``.

    With one class the labels are 0 and 1: what is ignored, or negative, has no loss, and counts in the mean all the same.

    Raises:
        InputError: labels of another shape, or outside the classes.
    """
    check_is_tensor(labels)
    if labels.ndim != 3 or labels.shape[0] != logits.shape[0]:
        wanted = f"({logits.shape[0]}, height, width)"
        raise InputError(f"`labels` has the shape {tuple(labels.shape)}, but maps of classes must be {wanted}.")
    labels = labels.to(logits.device)
    logits = F.interpolate(widened(logits), size=labels.shape[1:], mode="bilinear", align_corners=False)
    if logits.shape[1] > 1:
        return cross_entropy(logits.movedim(1, -1), labels.long(), ignore_index=ignore_index)
    check_labels(labels.long().clamp(min=0), 2, ignore_index)
    known = (labels >= 0) & (labels != ignore_index)
    loss = F.binary_cross_entropy_with_logits(logits[:, 0], labels.to(logits.dtype), reduction="none")
    return LossTerm(loss.masked_fill(~known, 0.0).sum(), torch.tensor(labels.numel(), device=logits.device))
