"""Losses of pairs of answers of which people prefer one.

Shapes: B pairs, T positions, V vocabulary.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from transept.errors import InputError
from transept.objectives.classification import IGNORED, check_labels, widened
from transept.objectives.terms import LossTerm

Kind = Literal["sigmoid", "ipo", "simpo"]


def log_probabilities(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The summed log-probability of each row's labelled tokens, (B), and their number, (B).

    Args:
        logits: (B, T, V).
        labels: (B, T), the tokens that are read, with -100 where they are no part of the answer; the shift by one happens here.
    """
    if labels.shape != logits.shape[:2]:
        raise InputError(f"`labels` has the shape {tuple(labels.shape)}, but the logits are for {tuple(logits.shape[:2])}.")
    check_labels(labels, logits.shape[-1])
    following = labels[:, 1:].to(logits.device)
    losses = F.cross_entropy(widened(logits[:, :-1]).transpose(1, 2), following, ignore_index=IGNORED, reduction="none")
    return -losses.sum(dim=1), (following != IGNORED).sum(dim=1)


def preference(
    chosen: Tensor,
    rejected: Tensor,
    reference_chosen: Tensor | None = None,
    reference_rejected: Tensor | None = None,
    *,
    beta: float = 0.1,
    kind: Kind = "sigmoid",
    smoothing: float = 0.0,
    margin: float = 0.0,
) -> LossTerm:
    """The loss of preferred and other answers, of their log-probabilities (B) under the model and under a reference model.

    Args:
        chosen, rejected: sums over the answers' tokens for ``sigmoid``, means over them for ``ipo`` and ``simpo``.
        reference_chosen, reference_rejected: the same under the reference model; ``simpo`` has none.
        beta: how strongly the model may move away from the reference.
        kind: ``sigmoid`` is DPO (Rafailov et al. 2023), ``ipo`` the squared form (Azar et al. 2024), ``simpo`` the form
            without a reference (Meng et al. 2024).
        smoothing: the share of pairs whose preference is the wrong way round, for ``sigmoid``.
        margin: by how much ``simpo`` wants the preferred answer to win.

    Raises:
        InputError: a reference that is missing or too much, or a share outside [0, 0.5).
    """
    if not 0 <= smoothing < 0.5:
        raise InputError(f"`smoothing` must be in [0, 0.5), but is {smoothing}.")
    apart = widened(chosen) - widened(rejected)
    if (kind == "simpo") != (reference_chosen is None) or (reference_chosen is None) != (reference_rejected is None):
        raise InputError(
            f"the loss {kind!r} needs {'no' if kind == 'simpo' else 'the'} log-probabilities of a reference model."
        )
    if reference_chosen is not None and reference_rejected is not None:
        apart = apart - (reference_chosen - reference_rejected).detach().to(apart)
    if kind == "ipo":
        losses = (apart - 1 / (2 * beta)).square()
    else:
        right = beta * apart - margin * (kind == "simpo")
        losses = -(1 - smoothing) * F.logsigmoid(right) - smoothing * F.logsigmoid(-right)
    return LossTerm(losses.sum(), torch.tensor(len(losses), device=losses.device))
