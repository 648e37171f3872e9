"""Losses over classes: cross-entropy, binary ones, several labels at once, regression and spans."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from transept.errors import InputError, InputTypeError
from transept.objectives.terms import LossTerm

IGNORED = -100


def cross_entropy(logits: Tensor, labels: Tensor, *, ignore_index: int = IGNORED) -> LossTerm:
    """Cross-entropy of logits (..., C), in float32 at least, and labels (...) below C; ``ignore_index`` is left out.

    Raises:
        InputError: shapes that do not fit, or a label outside the classes.
    """
    check_is_tensor(labels)
    classes = logits.shape[-1]
    if labels.shape != logits.shape[:-1]:
        if labels.numel() != logits.numel() // max(classes, 1):
            raise InputError(
                f"`labels` has the shape {tuple(labels.shape)}, but the logits {tuple(logits.shape)} need "
                f"{tuple(logits.shape[:-1])}."
            )
        labels = labels.reshape(logits.shape[:-1])
    check_labels(labels, classes, ignore_index)
    flat, labels = widened(logits).reshape(-1, classes), labels.reshape(-1).to(logits.device)
    loss = F.cross_entropy(flat, labels, ignore_index=ignore_index, reduction="sum")
    return LossTerm(loss, (labels != ignore_index).sum())


def check_is_tensor(labels: Any, name: str = "labels") -> None:
    """Refuse labels that are lists, numbers or texts (``InputTypeError``)."""
    if not isinstance(labels, Tensor):
        hint = f"Make a tensor of them: torch.tensor({name})."
        raise InputTypeError(f"`{name}` must be a tensor, but is {type(labels).__name__}: {str(labels)[:60]!r}.", hint=hint)


def check_labels(labels: Tensor, classes: int, ignore_index: int = IGNORED) -> None:
    """Refuse labels outside ``0 .. classes - 1``; skipped while compiling or exporting, and off the CPU."""
    if labels.is_floating_point():
        raise InputError(f"`labels` must be integers here, but is {str(labels.dtype).removeprefix('torch.')}.")
    if torch.compiler.is_compiling() or labels.device.type != "cpu":
        return  # a look at the values would break the graph, or wait for the device (which checks by itself)
    wrong = (labels != ignore_index) & ((labels < 0) | (labels >= classes))
    if wrong.any():
        place = tuple(wrong.nonzero()[0].tolist())
        raise InputError(
            f"label {int(labels[place])} at {list(place)} is not one of the {classes} classes.",
            hint=f"Labels run from 0 to {classes - 1}; {ignore_index} is ignored. Set `num_labels` for more.",
        )


def widened(x: Tensor) -> Tensor:
    """Half precision as float32; float32 and float64 as they are."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def sequence_classification(logits: Tensor, labels: Tensor, problem_type: str | None) -> LossTerm:
    """The loss of a sequence classifier, by its kind of problem.

    Args:
        logits: (B, C).
        labels: (B) integers; (B, C) floats for several labels at once; (B) or (B, C) for regression.
        problem_type: ``regression``, ``single_label_classification`` or ``multi_label_classification``; inferred from
            the number of classes and the labels' type when ``None``.
    """
    check_is_tensor(labels)
    classes, labels = logits.shape[-1], labels.to(logits.device)
    if problem_type is None:
        single = labels.dtype in (torch.long, torch.int)
        many = "single_label_classification" if single else "multi_label_classification"
        problem_type = "regression" if classes == 1 else many
    if problem_type == "single_label_classification":
        return cross_entropy(logits, labels)
    if labels.numel() != logits.numel():
        raise InputError(f"`labels` has the shape {tuple(labels.shape)}, but {problem_type} needs {tuple(logits.shape)}.")
    logits, labels = widened(logits), labels.reshape(logits.shape).to(widened(logits).dtype)
    if problem_type == "regression":
        loss = F.mse_loss(logits, labels, reduction="sum")
    else:
        loss = F.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
    return LossTerm(loss, torch.tensor(logits.numel(), device=logits.device))


def binary(logits: Tensor, labels: Tensor, mask: Tensor | None = None) -> LossTerm:
    """Binary cross-entropy of logits and labels (B, T), of which ``IGNORED`` and those where ``mask`` is 0 are left out.

    Raises:
        InputError: labels of the wrong shape or range.
    """
    check_is_tensor(labels)
    if labels.shape != logits.shape:
        raise InputError(f"`labels` has the shape {tuple(labels.shape)}, but the logits are {tuple(logits.shape)}.")
    check_labels(labels.long(), 2)
    labels = labels.to(logits.device)
    counted = labels != IGNORED
    if mask is not None:
        counted = counted & (mask.to(logits.device) != 0)
    wide = widened(logits)
    loss = F.binary_cross_entropy_with_logits(wide, labels.to(wide.dtype), counted.to(wide.dtype), reduction="sum")
    return LossTerm(loss, counted.sum())


def spans(start_logits: Tensor, end_logits: Tensor, starts: Tensor, ends: Tensor) -> dict[str, LossTerm]:
    """Question answering: the mean of two cross-entropies over positions, from logits (B, T).

    ``starts`` and ``ends`` are (B) or (B, 1); positions outside the sequence are ignored (negative ones count as 0).
    """
    length = start_logits.shape[1]

    def term(name: str, logits: Tensor, positions: Tensor) -> LossTerm:
        check_is_tensor(positions, f"{name}_positions")
        if positions.numel() != logits.shape[0]:
            raise InputError(
                f"start and end positions must have the shape ({logits.shape[0]},), but are {tuple(positions.shape)}."
            )
        inside = positions.reshape(-1).clamp(0, length)
        return replace(cross_entropy(logits, inside, ignore_index=length), weight=0.5)

    return {"start": term("start", start_logits, starts), "end": term("end", end_logits, ends)}


def additive_margin(
    embeddings: Tensor, weight: Tensor, labels: Tensor, *, scale: float = 30.0, margin: float = 0.4
) -> LossTerm:
    """Softmax over the angles of embeddings (B, E) to a direction for each class, (E, C) (Wang et al. 2018).

    The right class must win by a margin: its cosine is lowered by it, and all are scaled then.
    """
    classes = weight.shape[1]
    if labels.numel() != embeddings.shape[0]:
        raise InputError(f"`labels` has the shape {tuple(labels.shape)}, but must be ({embeddings.shape[0]},).")
    check_labels(labels, classes)
    cosines = F.normalize(widened(embeddings), dim=1) @ F.normalize(widened(weight), dim=0)
    labels = labels.reshape(-1).to(cosines.device)
    right = labels[:, None] == torch.arange(classes, device=cosines.device)
    return cross_entropy(scale * torch.where(right, cosines - margin, cosines), labels)
