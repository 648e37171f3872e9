"""Softmax over angles, with a margin that the right class must win by.

Shapes: B batch, E size of embeddings, C classes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from transept.errors import InputError
from transept.objectives.classification import check_labels, cross_entropy, widened
from transept.objectives.terms import LossTerm


def additive_margin(
    embeddings: Tensor, weight: Tensor, labels: Tensor, *, scale: float = 30.0, margin: float = 0.4
) -> LossTerm:
    """Additive-margin softmax (Wang et al. 2018).

    Args:
        embeddings: (B, E).
        weight: (E, C), one direction for each class.
        labels: (B) integers below C.
        scale: of the cosines, before the softmax.
        margin: taken off the right class's cosine.

    Raises:
        InputError: labels of the wrong shape, type or range.
    """
    classes = weight.shape[1]
    if labels.numel() != embeddings.shape[0]:
        raise InputError(f"`labels` has the shape {tuple(labels.shape)}, but must be ({embeddings.shape[0]},).")
    check_labels(labels, classes)
    cosines = F.normalize(widened(embeddings), dim=1) @ F.normalize(widened(weight), dim=0)
    labels = labels.reshape(-1).to(cosines.device)
    right = labels[:, None] == torch.arange(classes, device=cosines.device)
    return cross_entropy(scale * torch.where(right, cosines - margin, cosines), labels)
