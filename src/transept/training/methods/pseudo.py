"""Self-training: a model labels rows that have no label, and learns from those that it is sure of (Yarowsky 1995, Lee 2013)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transept.errors import InputError
from transept.files import write_text
from transept.training.trainer import Trainer

LABEL = "labels"


@dataclass
class Round:
    """What a round kept: the numbers of unlabelled rows, their labels, how sure the model was, and the metrics after it."""

    rows: list[int]
    labels: list[int]
    scores: list[float]
    metrics: dict[str, Any] = field(default_factory=dict)


class SelfTrainer:
    """Rounds of training a classifier on labelled rows and on its own sure labels of unlabelled ones.

    Each round begins with a new model, so that early mistakes are not kept by the weights. It ends when a round keeps the same
    rows with the same labels as the one before. What a round keeps is written to ``round-K.jsonl`` in ``output_dir``.

    Args:
        make_trainer: rows -> a trainer of a new model on them, which is called once a round.
        labelled: rows with ``labels``.
        unlabelled: rows without.
        threshold: the least probability of a label that is kept; one number, or one for each class.
        top_share: in place of a threshold, the share of rows of each predicted class that is kept, the surest first.
        rounds: how many at most, the first of which has labelled rows alone.
    """

    def __init__(
        self,
        make_trainer: Callable[[Sequence[Mapping[str, Any]]], Trainer],
        labelled: Sequence[Mapping[str, Any]],
        unlabelled: Sequence[Mapping[str, Any]],
        *,
        threshold: float | Mapping[int, float] = 0.9,
        top_share: float | None = None,
        rounds: int = 5,
    ) -> None:
        if not len(labelled) or not len(unlabelled):
            raise InputError(f"self-training needs rows of both kinds, but has {len(labelled)} and {len(unlabelled)}.")
        if top_share is not None and not 0 < top_share <= 1:
            raise InputError(f"`top_share` must be above 0 and at most 1, but is {top_share}.")
        if rounds < 1:
            raise InputError(f"`rounds` must be at least 1, but is {rounds}.")
        self.make_trainer, self.labelled, self.unlabelled = make_trainer, list(labelled), list(unlabelled)
        self.threshold, self.top_share, self.rounds = threshold, top_share, rounds
        self.history: list[Round] = []
        self.trainer: Trainer | None = None

    def train(self) -> list[Round]:
        """Run the rounds; the last model is ``trainer.model``."""
        kept = Round([], [], [])
        for number in range(self.rounds):
            added = [{**self.unlabelled[row], LABEL: label} for row, label in zip(kept.rows, kept.labels)]
            self.trainer = trainer = self.make_trainer([*self.labelled, *added])
            trainer.train()
            found = self.choose(probabilities(trainer.predict(self.unlabelled).predictions))
            if trainer.eval_dataset is not None:
                found.metrics = trainer.evaluate()
            self.history.append(found)
            self._write(number + 1, found, trainer)
            if (found.rows, found.labels) == (kept.rows, kept.labels):
                break
            kept = found
        return self.history

    def choose(self, shares: NDArray[Any]) -> Round:
        """The rows that are kept, of the probabilities (N, C) of their classes."""
        labels, scores = shares.argmax(axis=1), shares.max(axis=1)
        if self.top_share is None:
            every = dict.fromkeys(range(shares.shape[1]), self.threshold)
            limits = self.threshold if isinstance(self.threshold, Mapping) else every
            sure = scores >= np.array([limits.get(int(label), np.inf) for label in labels])
        else:
            sure = np.zeros(len(scores), bool)
            for label in np.unique(labels):
                places = np.flatnonzero(labels == label)
                most = int(np.ceil(self.top_share * len(places)))
                sure[places[np.argsort(-scores[places], kind="stable")[:most]]] = True
        rows = np.flatnonzero(sure)
        return Round(rows.tolist(), labels[rows].tolist(), [float(score) for score in scores[rows]])

    def _write(self, number: int, found: Round, trainer: Trainer) -> None:
        folder = Path(trainer.args.output_dir or ".")
        folder.mkdir(parents=True, exist_ok=True)
        rows = zip(found.rows, found.labels, found.scores)
        lines = (json.dumps({"row": row, "label": label, "score": score}) for row, label, score in rows)
        write_text(folder / f"round-{number}.jsonl", "".join(f"{line}\n" for line in lines))


def probabilities(logits: Any) -> NDArray[Any]:
    """Softmax of logits (N, C), in float64."""
    values = np.asarray(logits[0] if isinstance(logits, tuple) else logits, np.float64)
    if values.ndim != 2:
        raise InputError(f"self-training needs a classifier with logits (rows, classes), but they are {values.shape}.")
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    shares: NDArray[Any] = powers / powers.sum(axis=1, keepdims=True)
    return shares
