"""Figures of classes and numbers: accuracy, F1, Matthews, ROC curves, mean IoU, errors and correlations."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import numpy as np

from transept.errors import InputError, refuse
from transept.metrics.base import Floats, Integers, MeanMetric, Metric, array, classes, f1_scores, ratio, values

MAX_CLASSES = 5000  # a table of all pairs takes 200 MB
AVERAGES = ("binary", "micro", "macro", "weighted")


class Accuracy(MeanMetric):
    """``accuracy``: the share of right classes."""

    names = ("accuracy",)

    def update(self, predictions: Any, labels: Any) -> None:
        predicted, target = classes(predictions, labels)
        self.add(len(target), int((predicted == target).sum()))


class Confusion(Metric):
    """A metric of how often each class was taken for each other: ``matrix`` (right, predicted)."""

    names: ClassVar[tuple[str, ...]]  # of the figures
    matrix: Integers

    def reset(self) -> None:
        self.matrix = np.zeros((0, 0), dtype=np.int64)

    def update(self, predictions: Any, labels: Any) -> None:
        predicted, target = classes(predictions, labels)
        size = max(len(self.matrix), int(max(predicted.max(initial=-1), target.max(initial=-1))) + 1)
        refuse(size > MAX_CLASSES, f"class {size - 1} was met, but a table of {MAX_CLASSES} classes is the largest.")
        matrix = np.bincount(target * size + predicted, minlength=size * size).reshape(size, size)
        matrix[: len(self.matrix), : len(self.matrix)] += self.matrix
        self.matrix = matrix

    def result(self) -> dict[str, float]:
        if not self.matrix.sum():
            return dict.fromkeys(self.names, math.nan)
        return self.figures(self.matrix.sum(axis=0), self.matrix.sum(axis=1), np.diagonal(self.matrix))

    def figures(self, predicted: Integers, target: Integers, hits: Integers) -> dict[str, float]:
        """The figures, by how often each class is predicted, right, and both."""
        raise NotImplementedError


class F1(Confusion):
    """``precision``, ``recall`` and ``f1``, as scikit-learn averages them.

    Args:
        average: ``binary`` for one class against all others, ``micro`` over all places, ``macro`` over classes, or
            ``weighted`` by how often each class is right. Classes that are neither right nor predicted do not count.
        positive: the class for ``binary``.
    """

    names = ("precision", "recall", "f1")

    def __init__(self, average: Literal["binary", "micro", "macro", "weighted"] = "macro", positive: int = 1) -> None:
        refuse(average not in AVERAGES, f"`average` is {average!r}.", hint=f"It is one of: {', '.join(AVERAGES)}.")
        self.average, self.positive = average, positive
        super().__init__()

    def figures(self, predicted: Integers, target: Integers, hits: Integers) -> dict[str, float]:
        counts = np.stack([hits, predicted, target], axis=1)
        if self.average == "binary":
            return f1_scores(*(counts[self.positive] if self.positive < len(counts) else (0, 0, 0)))
        if self.average == "micro":
            return f1_scores(*counts.sum(axis=0))
        counts = counts[(predicted + target) > 0]
        scores = [f1_scores(*row) for row in counts]
        weights = counts[:, 2] if self.average == "weighted" else None
        return {name: float(np.average([score[name] for score in scores], weights=weights)) for name in self.names}


class Matthews(Confusion):
    """``matthews_correlation`` of classes (Gorodkin 2004); 0 where one side has but one class."""

    names = ("matthews_correlation",)

    def figures(self, predicted: Integers, target: Integers, hits: Integers) -> dict[str, float]:
        columns, rows, total = predicted.astype(np.float64), target.astype(np.float64), float(self.matrix.sum())
        spread = (total**2 - columns @ columns) * (total**2 - rows @ rows)
        return {"matthews_correlation": ratio(float(hits.sum() * total - columns @ rows), math.sqrt(spread))}


class MeanIoU(Confusion):
    """``mean_iou``, the mean over classes of intersection over union, and ``mean_accuracy`` and ``overall_accuracy``.

    Classes that are neither right nor predicted do not count, nor do places with the label -100.
    """

    names = ("mean_iou", "mean_accuracy", "overall_accuracy")

    def figures(self, predicted: Integers, target: Integers, hits: Integers) -> dict[str, float]:
        union = predicted + target - hits
        return {
            "mean_iou": float((hits[union > 0] / union[union > 0]).mean()),
            "mean_accuracy": float((hits[target > 0] / target[target > 0]).mean()),
            "overall_accuracy": ratio(hits.sum(), target.sum()),
        }


class AUC(Metric):
    """``roc_auc``: the probability that a positive scores higher than a negative, ties being half.

    Predictions are scores (N) of the class 1, or (N, C), of which the mean of one class against all others is the
    figure. It keeps all scores.
    """

    def reset(self) -> None:
        self.batches: list[tuple[Floats, Integers]] = []

    def update(self, predictions: Any, labels: Any) -> None:
        scores = array(predictions, "predictions").astype(np.float64)
        target = array(labels, "labels").astype(np.int64)
        if scores.ndim not in (1, 2) or target.shape != scores.shape[:1]:
            shapes = f"{scores.shape} for {target.shape}"
            raise InputError(f"scores must be (N) or (N, C) for labels (N), but are {shapes}.")
        self.batches.append((scores, target))

    def result(self) -> dict[str, float]:
        if not self.batches:
            return {"roc_auc": math.nan}
        scores, target = (np.concatenate(parts) for parts in zip(*self.batches))
        if scores.ndim == 2 and scores.shape[1] == 2:
            shares = np.allclose(scores.sum(axis=1), 1)  # of which a difference would part what is equal, by rounding
            scores = scores[:, 1] if shares else scores[:, 1] - scores[:, 0]
        if scores.ndim == 1:
            return {"roc_auc": area(scores, target == 1)}
        return {"roc_auc": float(np.mean([area(column, target == kind) for kind, column in enumerate(scores.T)]))}


def area(scores: Floats, positive: Any) -> float:
    """The area under the ROC curve of one class, by ranks (Mann & Whitney 1947)."""
    count = int(positive.sum())
    others = len(positive) - count
    return ratio(ranks(scores)[positive].sum() - count * (count + 1) / 2, count * others, math.nan)


def ranks(numbers: Floats) -> Floats:
    """Ranks from 1 on of numbers (N); equal ones share the mean of theirs."""
    _, inverse, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return ((2 * ends - counts + 1) / 2)[inverse]


class Regression(Metric):
    """``mse``, ``mae`` and ``r2``, the share of the labels' variance that is explained; ``pearson`` too.

    It keeps means and moments about these alone, so that large means cost no digits.
    """

    def reset(self) -> None:
        self.count, self.absolute, self.squared = 0, 0.0, 0.0
        self.means, self.spread = np.zeros(2), np.zeros((2, 2))

    def update(self, predictions: Any, labels: Any) -> None:
        pair = np.stack(values(predictions, labels))
        if not (size := pair.shape[1]):
            return
        error = pair[0] - pair[1]
        self.absolute += float(np.abs(error).sum())
        self.squared += float(error @ error)
        means = pair.mean(axis=1)
        shift, total = means - self.means, self.count + size  # the pairwise update of Chan et al. 1979
        pair -= means[:, None]
        self.spread = self.spread + pair @ pair.T + np.outer(shift, shift) * self.count * size / total
        self.means, self.count = self.means + shift * size / total, total

    def result(self) -> dict[str, float]:
        (predicted, across), (_, target) = self.spread.tolist()
        return {
            "mse": ratio(self.squared, self.count, math.nan),
            "mae": ratio(self.absolute, self.count, math.nan),
            "r2": 1 - ratio(self.squared, target, math.nan),
            "pearson": ratio(across, math.sqrt(predicted * target), math.nan),
        }


class Pearson(Regression):
    """``pearson``: the linear correlation; NaN where one side does not vary."""

    def result(self) -> dict[str, float]:
        return {"pearson": super().result()["pearson"]}


class Spearman(Metric):
    """``spearmanr``: the correlation of ranks, equal values sharing the mean of theirs. It keeps all values."""

    def reset(self) -> None:
        self.batches: list[tuple[Floats, Floats]] = []

    def update(self, predictions: Any, labels: Any) -> None:
        self.batches.append(values(predictions, labels))

    def result(self) -> dict[str, float]:
        if not self.batches:
            return {"spearmanr": math.nan}
        predicted, target = (ranks(np.concatenate(parts)) for parts in zip(*self.batches))
        return {"spearmanr": Pearson()(predicted, target)["pearson"]}
