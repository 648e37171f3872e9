"""Distillation: a small model, the student, learns the answers of a large one, the teacher (Hinton et al. 2015)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from transept.errors import InputError, UnsupportedError, refuse
from transept.objectives.classification import IGNORED
from transept.objectives.distillation import hidden_cosines, soft_targets
from transept.objectives.terms import LossTerm
from transept.training.objective import LABELS_NEEDED, Batch, Counts, counts_of, task_of
from transept.training.trainers.objective import ObjectiveTrainer

SOFT, HIDDEN = "soft_targets", "hidden_states"


class DistillationTrainer(ObjectiveTrainer):
    """Trains a student on its labels, on the teacher's distribution and, where wanted, on the teacher's last states.

    Both models are classifiers of sequences or tokens or language models with the same labels or vocabulary. The loss
    has the student's own terms, the divergence from the teacher over the same items, and one minus the cosine of the
    last hidden states (DistilBERT, Sanh et al. 2019), which need one size in both.

    Args:
        model: the student.
        teacher_model: it is not trained, and is in evaluation mode.
        temperature: what the logits of both are divided by.
        soft_weight, hard_weight, hidden_weight: of the teacher's distribution, of the labels, and of the states.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        args: Any = None,
        *,
        teacher_model: nn.Module | None = None,
        temperature: float = 2.0,
        soft_weight: float = 0.5,
        hard_weight: float = 0.5,
        hidden_weight: float = 0.0,
        **others: Any,
    ) -> None:
        if teacher_model is None:
            raise InputError("a student needs a `teacher_model`.")
        self.temperature, self.weights = temperature, (soft_weight, hard_weight, hidden_weight)
        shown = f"{soft_weight}, {hard_weight}, {hidden_weight}"
        refuse(min(self.weights) < 0, f"weights of a loss cannot be negative: {shown}.")
        self.teacher_model = teacher_model.eval().requires_grad_(False)
        super().__init__(model, args, **others)
        self.teacher_model.to(self.args.device)

    def count(self, batch: Batch) -> Counts | None:
        counts = counts_of(self.model, dict(batch)) or {}
        what = f"{type(task_of(self.model) or self.model).__name__} has no single loss over logits to distill."
        refuse(len(counts) != 1, what, "Distill classifiers and language models.", UnsupportedError)
        ((name, count),) = counts.items()
        hidden = {HIDDEN: float(_real(batch).sum())} if self.weights[2] else {}
        return {name: float(count), SOFT: float(count), **hidden}

    def terms(self, model: nn.Module, batch: Batch) -> dict[str, LossTerm]:
        soft_weight, hard_weight, hidden_weight = self.weights
        options: dict[str, Any] = {"output_hidden_states": True} if hidden_weight else {}
        student = model(**batch, **options)
        with torch.no_grad():
            inputs = {name: value for name, value in batch.items() if name != "labels"}
            teacher = self.teacher_model(**inputs, **options)
        refuse(student.loss_terms is None, "the student gave no loss.", LABELS_NEEDED)
        terms = {name: replace(term, weight=term.weight * hard_weight) for name, term in student.loss_terms.items()}
        # Labels are shifted as the student shifts them; each position that has one counts, or each row.
        shift = getattr(task_of(self.model), "targets", None)
        labels = batch["labels"] if shift is None else shift(batch["labels"], student.logits)
        counted = None if labels.shape != student.logits.shape[:-1] else labels != IGNORED
        soft = soft_targets(student.logits, teacher.logits, counted, temperature=self.temperature)
        terms[SOFT] = replace(soft, weight=soft_weight)
        if hidden_weight:
            cosines = hidden_cosines(student.hidden_states[-1], teacher.hidden_states[-1], _real(batch))
            terms[HIDDEN] = replace(cosines, weight=hidden_weight)
        return terms


def _real(batch: Batch) -> Tensor:
    """(B, T), 1 for real positions."""
    mask: Tensor | None = batch.get("attention_mask")
    return torch.ones_like(batch["input_ids"]) if mask is None else mask
