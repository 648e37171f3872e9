"""Losses by which a small model, the student, learns what a large one, the teacher, gives.

Shapes: ... any leading axes (B, or B and T), C classes, D and E hidden sizes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.errors import InputError
from transept.objectives.classification import widened
from transept.objectives.terms import LossTerm


def soft_targets(student: Tensor, teacher: Tensor, counted: Tensor | None = None, *, temperature: float = 2.0) -> LossTerm:
    """The divergence of the student's distribution from the teacher's at a temperature, times its square (Hinton et al. 2015).

    Args:
        student: logits (..., C).
        teacher: logits (..., C); no gradient goes into them.
        counted: (...), which positions count; all of them when absent.
        temperature: what both logits are divided by; the factor of its square keeps gradients of one size.

    Raises:
        InputError: shapes that differ, or a temperature that is not positive.
    """
    _check_shapes(student, teacher)
    if not temperature > 0:
        raise InputError(f"`temperature` must be above 0, but is {temperature}.")
    own, other = (F.log_softmax(widened(logits) / temperature, dim=-1) for logits in (student, teacher.detach()))
    apart = F.kl_div(own, other, reduction="none", log_target=True).sum(dim=-1) * temperature**2
    return _counted(apart, counted)


def hidden_cosines(student: Tensor, teacher: Tensor, counted: Tensor | None = None) -> LossTerm:
    """One minus the cosine of the student's and the teacher's states (..., D) (DistilBERT, Sanh et al. 2019)."""
    _check_shapes(student, teacher)
    return _counted(1 - F.cosine_similarity(widened(student), widened(teacher.detach()), dim=-1), counted)


def hidden_squares(
    student: Tensor, teacher: Tensor, counted: Tensor | None = None, *, project: nn.Module | None = None
) -> LossTerm:
    """The squared difference of states or attention scores (TinyBERT, Jiao et al. 2020); it counts their numbers.

    Args:
        student: (..., E).
        teacher: (..., D).
        counted: (...), which positions count; all of them when absent.
        project: (..., E) -> (..., D), which is trained along; absent where the sizes are equal.
    """
    student = student if project is None else project(student)
    _check_shapes(student, teacher)
    term = _counted((widened(student) - widened(teacher.detach())).square().sum(dim=-1), counted)
    return LossTerm(term.sum, term.count * student.shape[-1])


def _check_shapes(student: Tensor, teacher: Tensor) -> None:
    if student.shape != teacher.shape:
        shapes = f"{tuple(student.shape)} and {tuple(teacher.shape)}"
        hint = "Both models need the same vocabulary or labels; states of other sizes need a projection."
        raise InputError(f"the student's and the teacher's outputs have the shapes {shapes}, which differ.", hint=hint)


def _counted(values: Tensor, counted: Tensor | None) -> LossTerm:
    if counted is None:
        return LossTerm(values.sum(), torch.tensor(values.numel(), device=values.device))
    if counted.shape != values.shape:
        raise InputError(f"`counted` has the shape {tuple(counted.shape)}, but must be {tuple(values.shape)}.")
    counted = counted.to(values.device) != 0
    return LossTerm(values.masked_fill(~counted, 0.0).sum(), counted.sum())
