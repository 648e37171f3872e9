"""The loss of depths. Shapes: B batch, H height, W width."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from transept.errors import InputError
from transept.objectives.classification import check_is_tensor, widened
from transept.objectives.terms import LossTerm

LEAST = 1e-6  # predictions below have the logarithm of this one, and no gradient


def scale_invariant(predicted: Tensor, labels: Tensor, share: float = 0.5) -> LossTerm:
    """The scale-invariant logarithmic loss (Eigen et al. 2014) of depths (B, H', W'), resized bilinearly, and labels (B, H, W).

    It is the root of ``mean(d ** 2) - share * mean(d) ** 2``, where ``d`` is the difference of the logarithms of a label and a
    prediction, over all pixels of the batch whose label is known: positive and finite. With a ``share`` of 1 it does not
    change with the scale of the predictions.

    Raises:
        InputError: labels of another shape.
    """
    check_is_tensor(labels)
    if labels.ndim != 3 or labels.shape[0] != predicted.shape[0]:
        wanted = f"({predicted.shape[0]}, height, width)"
        raise InputError(f"`labels` has the shape {tuple(labels.shape)}, but maps of depths must be {wanted}.")
    predicted = widened(predicted)
    labels = labels.to(predicted.device, predicted.dtype)
    predicted = F.interpolate(predicted[:, None], size=labels.shape[1:], mode="bilinear", align_corners=False)[:, 0]
    known = (labels > 0) & labels.isfinite()
    count = known.sum()
    apart = torch.where(known, labels, 1.0).log() - torch.where(known, predicted, 1.0).clamp(min=LEAST).log()
    known_pixels = count.clamp(min=1)  # without any the loss is 0 / 0, and what it is made of is zero
    variance = apart.square().sum() / known_pixels - share * (apart.sum() / known_pixels) ** 2
    loss = variance.clamp(min=torch.finfo(variance.dtype).tiny).sqrt()  # the root has no gradient at zero
    return LossTerm(loss * count, count, additive=False)
