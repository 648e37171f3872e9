"""Losses of two networks against each other, and of a network against changes of its input.

Shapes: B rows, ... any leading axes, C classes.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from transept.errors import InputError
from transept.objectives.classification import widened
from transept.objectives.terms import LossTerm

Kind = Literal["non-saturating", "hinge"]


def discriminator(real: Tensor, fake: Tensor, kind: Kind = "non-saturating") -> dict[str, LossTerm]:
    """How badly a discriminator tells real from generated rows, by its logits (B) of each (Goodfellow et al. 2014).

    ``hinge`` asks for logits above 1 and below -1 (Lim and Ye 2017).
    """
    if kind == "hinge":
        losses = F.relu(1 - widened(real)), F.relu(1 + widened(fake))
    else:
        losses = F.softplus(-widened(real)), F.softplus(widened(fake))
    return {name: _rows(loss) for name, loss in zip(("real", "fake"), losses)}


def generator(fake: Tensor, kind: Kind = "non-saturating") -> LossTerm:
    """How badly a generator's rows pass for real, by the discriminator's logits (B)."""
    return _rows(-widened(fake) if kind == "hinge" else F.softplus(-widened(fake)))


def smoothness(logits: Tensor, perturbed: Tensor, counted: Tensor | None = None) -> LossTerm:
    """The divergence of the answers to perturbed inputs from those to clean ones, logits (..., C) (Miyato et al. 2018).

    No gradient goes into the clean ones. ``counted`` (...) says which positions count.
    """
    if logits.shape != perturbed.shape:
        raise InputError(f"clean and perturbed logits have the shapes {tuple(logits.shape)} and {tuple(perturbed.shape)}.")
    clean, moved = (F.log_softmax(widened(each), dim=-1) for each in (logits.detach(), perturbed))
    apart = F.kl_div(moved, clean, reduction="none", log_target=True).sum(dim=-1)
    if counted is None:
        return _rows(apart)
    counted = counted.to(apart.device) != 0
    return LossTerm(apart.masked_fill(~counted, 0.0).sum(), counted.sum())


def _rows(losses: Tensor) -> LossTerm:
    return LossTerm(losses.sum(), torch.tensor(losses.numel(), device=losses.device))
