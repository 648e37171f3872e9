"""Semi-supervised learning by consistency: the sure answer to a weakly changed input teaches a strongly changed one."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from transept.errors import InputError, refuse
from transept.objectives.classification import widened
from transept.objectives.terms import LossTerm
from transept.training.objective import Batch, Counts, counts_of, halves, task_of, unsummed_rows
from transept.training.trainers.objective import ObjectiveTrainer

TERM, PREFIXES = "consistency", ("", "weak_", "strong_")


class ConsistencyTrainer(ObjectiveTrainer):
    """FixMatch (Sohn et al. 2020): a classifier trained on labelled rows and on two views of unlabelled ones.

    A batch has the inputs and ``labels`` of labelled rows, and under names that begin with ``weak_`` and ``strong_``
    those of the views. Where the model is surer than ``threshold`` of its answer to the weak view, that answer is the
    label of the strong one. The term is divided by all unlabelled rows, sure or not.

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
        refuse(not 0 <= threshold <= 1, f"`threshold` must be in [0, 1], but is {threshold}.")
        self.threshold, self.unlabelled_weight = threshold, unlabelled_weight
        super().__init__(model, args, **others)

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
        taught = losses.masked_fill(sure < self.threshold, 0.0).sum()
        count = torch.tensor(len(losses), device=losses.device)
        return terms | {TERM: LossTerm(taught, count, weight=self.unlabelled_weight)}

    def divide(self, batch: Batch) -> tuple[Batch, Batch] | str:
        """Half of the labelled rows, and half of both views."""
        if (reason := unsummed_rows(self.model)) is not None:
            return reason
        first, second = dict[str, Any](), dict[str, Any]()
        for prefix, inputs in zip(PREFIXES, views(batch)):
            divided = halves(inputs, task_of(self.model))
            if isinstance(divided, str):
                return divided
            for half, part in zip((first, second), divided):
                half.update({f"{prefix}{name}": value for name, value in part.items()})
        return first, second


def views(batch: Batch) -> list[dict[str, Any]]:
    """The labelled rows, the weak and the strong views of a batch."""
    parts: dict[str, dict[str, Any]] = {prefix: {} for prefix in PREFIXES}
    for name, value in batch.items():
        prefix = next((prefix for prefix in PREFIXES[1:] if name.startswith(prefix)), "")
        parts[prefix][name.removeprefix(prefix)] = value
    labelled, weak, strong = parts.values()
    if not weak or weak.keys() != strong.keys():
        raise InputError(f"a batch needs both views of unlabelled rows, but has {', '.join(batch)}.")
    return [labelled, weak, strong]
