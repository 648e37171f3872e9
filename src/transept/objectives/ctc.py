"""Connectionist temporal classification (Graves et al. 2006): labels without their places in time.

Shapes: B batch, T frames, V vocabulary, L labels.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from transept.errors import InputError
from transept.objectives.classification import IGNORED, check_is_tensor, check_labels, widened
from transept.objectives.terms import LossTerm

Reduction = Literal["sum", "mean"]


def ctc(
    logits: Tensor, labels: Tensor, frames: Tensor, *, blank: int | None, reduction: Reduction, zero_infinity: bool = False
) -> LossTerm:
    """The negative logarithm of the probability of all alignments of the labels with the frames.

    Args:
        logits: (B, T, V).
        labels: (B, L); ``-100`` and blanks, wherever they stand, are left out.
        frames: (B), the number of real frames in each row.
        blank: the index of the blank.
        reduction: ``mean`` divides each row by its number of labels, and counts rows. ``sum`` counts rows too, but divides by
            nothing: micro-batches add up, whatever number of items they are told.
        zero_infinity: rows with too few frames for their labels count as zero, and not as infinite.
    """
    if blank is None:
        raise InputError("CTC needs a blank.", hint="Set `pad_token_id` in the config to the index of the blank.")
    check_is_tensor(labels)
    if labels.ndim != 2 or labels.shape[0] != logits.shape[0]:
        raise InputError(f"`labels` has the shape {tuple(labels.shape)}, but must be ({logits.shape[0]}, labels).")
    check_labels(labels, logits.shape[-1])
    labels = labels.to(logits.device)
    real = (labels != IGNORED) & (labels != blank)
    lengths = real.sum(dim=1)
    # Real labels to the front, in order; the rest is not read but must be a label.
    targets = labels.masked_fill(~real, blank).gather(1, (~real).to(torch.int8).argsort(dim=1, stable=True))
    log_probs = widened(logits).log_softmax(dim=-1).transpose(0, 1)
    # PyTorch's operator has outputs whose shape depends on values, which no whole graph can hold.
    by_row = _opaque if torch.compiler.is_compiling() else _rows
    losses = by_row(log_probs, targets, frames.clamp(max=logits.shape[1]), lengths, blank, zero_infinity)
    rows = torch.tensor(losses.shape[0], device=losses.device)
    if reduction == "sum":
        return LossTerm(losses.sum(), rows, averaged=False)
    return LossTerm((losses / lengths.clamp(min=1)).sum(), rows)


def _rows(log_probs: Tensor, targets: Tensor, frames: Tensor, lengths: Tensor, blank: int, zero_infinity: bool) -> Tensor:
    return F.ctc_loss(log_probs, targets, frames, lengths, blank, reduction="none", zero_infinity=zero_infinity)


@torch.library.custom_op("transept::ctc_loss", mutates_args=())
def _opaque(log_probs: Tensor, targets: Tensor, frames: Tensor, lengths: Tensor, blank: int, zero_infinity: bool) -> Tensor:
    return _rows(log_probs, targets, frames, lengths, blank, zero_infinity)


@torch.library.custom_op("transept::ctc_loss_backward", mutates_args=())
def _opaque_backward(
    grad: Tensor, log_probs: Tensor, targets: Tensor, frames: Tensor, lengths: Tensor, blank: int, zero_infinity: bool
) -> Tensor:
    """The gradient for the first argument; computes the forward pass again."""
    tensors = (targets, frames, lengths)
    losses, alphas = torch.ops.aten._ctc_loss(log_probs, *tensors, blank, zero_infinity)
    gradient: Tensor = torch.ops.aten._ctc_loss_backward(grad, log_probs, *tensors, losses, alphas, blank, zero_infinity)
    return gradient


@_opaque.register_fake
def _losses_like(log_probs: Tensor, *rest: Any) -> Tensor:
    return log_probs.new_empty(log_probs.shape[1])


@_opaque_backward.register_fake
def _gradient_like(grad: Tensor, log_probs: Tensor, *rest: Any) -> Tensor:
    return torch.empty_like(log_probs)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.blank, ctx.zero_infinity = inputs
    ctx.save_for_backward(*tensors)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return _opaque_backward(grad, *ctx.saved_tensors, ctx.blank, ctx.zero_infinity), None, None, None, None, None


_opaque.register_autograd(_gradients, setup_context=_remember)
