"""Losses over all pairs of a batch: each text belongs to the image of its row, and to no other.

Shapes: B batch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from transept.errors import InputError
from transept.objectives.classification import widened
from transept.objectives.terms import LossTerm


def softmax_pairs(logits: Tensor) -> LossTerm:
    """Cross-entropy of the right one among all of a batch, of texts and of images alike (Radford et al. 2021).

    The others of a batch are what each is told from, so that a part of a batch is another task: the term is not additive.

    Args:
        logits: (B texts, B images).
    """
    logits = _square(logits)
    right = torch.arange(len(logits), device=logits.device)
    loss = (F.cross_entropy(logits, right) + F.cross_entropy(logits.T, right)) / 2
    return LossTerm(loss, torch.ones((), device=logits.device), additive=False)


def sigmoid_pairs(logits: Tensor) -> LossTerm:
    """For each pair by itself whether it belongs together (Zhai et al. 2023); arguments as for :func:`softmax_pairs`."""
    logits = _square(logits)
    signs = 2 * torch.eye(len(logits), device=logits.device, dtype=logits.dtype) - 1
    loss = -F.logsigmoid(signs * logits).sum(dim=-1).mean()
    return LossTerm(loss, torch.ones((), device=logits.device), additive=False)


def _square(logits: Tensor) -> Tensor:
    if logits.shape[0] != logits.shape[1]:
        wrong = f"a loss over pairs needs as many texts as images, but there are {logits.shape[0]} and {logits.shape[1]}."
        raise InputError(wrong, hint="Pass one text for each image, in the same order.")
    return widened(logits)
