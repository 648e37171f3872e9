"""Figures of classifiers: accuracy, F1, Matthews correlation, area under the ROC curve, intersection over union."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from transept.errors import InputError, refuse
from transept.training.metrics.base import Floats, Integers, Metric, array, classes, f1_scores, ratio

MAX_CLASSES = 5000  # a table of all pairs takes 200 MB
Average = Literal["binary", "micro", "macro", "weighted"]


def ranks(values: Floats) -> Floats:
    """Ranks from 1 on of values (N); equal ones share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return ((2 * ends - counts + 1) / 2)[inverse]


class Confusion(Metric):
    """Keeps how often each class was taken for each other: ``matrix`` (right, predicted)."""

    matrix: Integers

    def reset(self) -> None:
        self.matrix = np.zeros((0, 0), dtype=np.int64)

    def update(self, predictions: Any, labels: Any) -> None:
        predicted, right = classes(predictions, labels)
        size = max(len(self.matrix), int(max(predicted.max(initial=-1), right.max(initial=-1))) + 1)
        refuse(size > MAX_CLASSES, f"class {size - 1} was met, but a table of {MAX_CLASSES} classes is the largest.")
        matrix = np.bincount(right * size + predicted, minlength=size * size).reshape(size, size)
        matrix[: len(self.matrix), : len(self.matrix)] += self.matrix
        self.matrix = matrix

    @property
    def hits(self) -> Integers:
        return np.diagonal(self.matrix)


class Accuracy(Metric):
    """``accuracy``: the share of right classes."""

    def reset(self) -> None:
        self.right = self.count = 0

    def update(self, predictions: Any, labels: Any) -> None:
        predicted, right = classes(predictions, labels)
        self.right, self.count = self.right + int((predicted == right).sum()), self.count + len(right)

    def result(self) -> dict[str, float]:
        return {"accuracy": ratio(self.right, self.count, math.nan)}


class F1(Confusion):
    """``precision``, ``recall`` and ``f1``, as scikit-learn averages them.

    Args:
        average: ``binary`` for one class against all others, ``micro`` over all places, ``macro`` over classes, or
            ``weighted`` by how often each class is right. Classes that are neither right nor predicted do not count.
        positive: the class for ``binary``.
    """

    def __init__(self, average: Average = "macro", positive: int = 1) -> None:
        kinds = ("binary", "micro", "macro", "weighted")
        refuse(average not in kinds, f"`average` is {average!r}.", hint=f"It is one of: {', '.join(kinds)}.")
        self.average, self.positive = average, positive
        super().__init__()

    def result(self) -> dict[str, float]:
        predicted, right, hits = self.matrix.sum(axis=0), self.matrix.sum(axis=1), self.hits
        if not self.matrix.sum():
            return dict.fromkeys(("precision", "recall", "f1"), math.nan)
        if self.average == "binary":
            return f1_scores(*(part[self.positive] if self.positive < len(part) else 0 for part in (hits, predicted, right)))
        if self.average == "micro":
            return f1_scores(hits.sum(), predicted.sum(), right.sum())
        there = (predicted + right) > 0
        scores = [f1_scores(*counts) for counts in zip(hits[there], predicted[there], right[there])]
        weights = right[there] if self.average == "weighted" else None
        return {name: float(np.average([score[name] for score in scores], weights=weights)) for name in scores[0]}


class Matthews(Confusion):
    """``matthews_correlation`` of classes (Gorodkin 2004); 0 where one side has but one class."""

    def result(self) -> dict[str, float]:
        predicted, right = (self.matrix.sum(axis=axis).astype(np.float64) for axis in (0, 1))
        total = float(self.matrix.sum())
        if not total:
            return {"matthews_correlation": math.nan}
        spread = (total**2 - predicted @ predicted) * (total**2 - right @ right)
        return {"matthews_correlation": ratio(self.hits.sum() * total - predicted @ right, math.sqrt(spread))}


class MeanIoU(Confusion):
    """``mean_iou``, the mean over classes of intersection over union, and ``mean_accuracy`` and ``overall_accuracy``.

    Classes that are neither right nor predicted do not count, nor do places with the label -100.
    """

    def result(self) -> dict[str, float]:
        predicted, right, hits = self.matrix.sum(axis=0), self.matrix.sum(axis=1), self.hits
        union = predicted + right - hits
        if not self.matrix.sum():
            return dict.fromkeys(("mean_iou", "mean_accuracy", "overall_accuracy"), math.nan)
        return {
            "mean_iou": float((hits[union > 0] / union[union > 0]).mean()),
            "mean_accuracy": float((hits[right > 0] / right[right > 0]).mean()),
            "overall_accuracy": ratio(hits.sum(), right.sum()),
        }


class AUC(Metric):
    """``roc_auc``: the probability that a positive scores higher than a negative, ties being half.

    Predictions are scores (N) of the class 1, or (N, C), of which the mean of one class against all others is taken. It keeps
    all scores.
    """

    def reset(self) -> None:
        self.scores: list[Floats] = []
        self.labels: list[Integers] = []

    def update(self, predictions: Any, labels: Any) -> None:
        scores, right = array(predictions, "predictions").astype(np.float64), array(labels, "labels").astype(np.int64)
        if scores.ndim not in (1, 2) or right.shape != scores.shape[:1]:
            raise InputError(f"scores must be (N) or (N, C) for labels (N), but are {scores.shape} for {right.shape}.")
        self.scores.append(scores)
        self.labels.append(right)

    def result(self) -> dict[str, float]:
        if not self.scores:
            return {"roc_auc": math.nan}
        scores, labels = np.concatenate(self.scores), np.concatenate(self.labels)
        if scores.ndim == 2 and scores.shape[1] == 2:
            shares = np.allclose(scores.sum(axis=1), 1)  # of which a difference would part what is equal, by rounding
            scores = scores[:, 1] if shares else scores[:, 1] - scores[:, 0]
        columns = [(scores, 1)] if scores.ndim == 1 else [(scores[:, number], number) for number in range(scores.shape[1])]
        return {"roc_auc": float(np.mean([_area(column, labels == number) for column, number in columns]))}


def _area(scores: Floats, positive: Any) -> float:
    """The area under the curve of one class, by ranks (Mann & Whitney 1947)."""
    count = int(positive.sum())
    others = len(positive) - count
    return ratio(ranks(scores)[positive].sum() - count * (count + 1) / 2, count * others, math.nan)
