"""Semi-supervised learning by consistency: the sure answer to a weakly changed input teaches a strongly changed one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from transept.errors import InputError
from transept.objectives.classification import widened
from transept.objectives.terms import LossTerm
from transept.training.objective import Batch, Counts, Objective, counts_of, halves, task_of, unsummed_rows
from transept.training.trainers.objective import ObjectiveTrainer

TERM, WEAK, STRONG = "consistency", "weak_", "strong_"


class Consistency(Objective):
    """The terms of the labelled rows, and the cross-entropy of strong views with the sure answers to weak ones."""

    rows_apart = False

    def __init__(self, model: nn.Module, threshold: float, weight: float) -> None:
        super().__init__(model)
        self.threshold, self.weight = threshold, weight

    def count(self, batch: Batch) -> Counts | None:
        labelled, weak, _ = views(batch)
        counts = counts_of(self.model, labelled) or {}
        return {name: float(count) for name, count in counts.items()} | {TERM: float(len(next(iter(weak.values()))))}

    def terms(self, model: nn.Module, batch: Batch) -> dict[str, LossTerm]:
        labelled, weak, strong = views(batch)
        terms = dict(model(**labelled).loss_terms)
        with torch.no_grad():
            sure, labels = widened(model(**weak).logits).softmax(dim=-1).max(dim=-1)
        losses = F.cross_entropy(widened(model(**strong).logits), labels, reduction="none")
        kept = losses.masked_fill(sure < self.threshold, 0.0)
        count = torch.tensor(len(losses), device=losses.device)
        return terms | {TERM: LossTerm(kept.sum(), count, weight=self.weight)}

    def divide(self, batch: Batch) -> tuple[Batch, Batch] | str:
        """Half of the labelled rows, and half of both views."""
        if (reason := unsummed_rows(self.model)) is not None:
            return reason
        parts = [halves(part, task_of(self.model)) for part in views(batch)]
        named = [("", parts[0]), (WEAK, parts[1]), (STRONG, parts[2])]
        if wrong := next((part for part in parts if isinstance(part, str)), None):
            return wrong
        first, second = ({f"{start}{name}": part[at][name] for start, part in named for name in part[at]} for at in (0, 1))  # type: ignore[index]
        return first, second


class ConsistencyTrainer(ObjectiveTrainer):
    """FixMatch (Sohn et al. 2020): a classifier trained on labelled rows and on two views of unlabelled ones.

    A batch has the inputs and ``labels`` of labelled rows, and under names that begin with ``weak_`` and ``strong_`` those of
    the views. Where the model is surer than ``threshold`` of its answer to the weak view, that answer is the label of the
    strong one. The term is divided by all unlabelled rows, sure or not.

    Args:
        threshold: the least probability of an answer that teaches.
        unlabelled_weight: of the term.
        others: as for :class:`transept.training.trainer.Trainer`.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        args: Any = None,
        *,
        threshold: float = 0.95,
        unlabelled_weight: float = 1.0,
        **others: Any,
    ) -> None:
        if not 0 <= threshold <= 1:
            raise InputError(f"`threshold` must be in [0, 1], but is {threshold}.")
        self.threshold, self.unlabelled_weight = threshold, unlabelled_weight
        super().__init__(model, args, **others)

    def make_objective(self) -> Objective:
        return Consistency(self.model, self.threshold, self.unlabelled_weight)


def views(inputs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The labelled rows, the weak and the strong views of a batch."""
    weak, strong = (
        {name.removeprefix(start): value for name, value in inputs.items() if name.startswith(start)}
        for start in (WEAK, STRONG)
    )
    if not weak or weak.keys() != strong.keys():
        raise InputError(f"a batch needs both views of unlabelled rows, but has {', '.join(inputs)}.")
    return {name: value for name, value in inputs.items() if not name.startswith((WEAK, STRONG))}, weak, strong
