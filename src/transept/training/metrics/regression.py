"""Figures of regressors: errors, and the correlations of Pearson and Spearman."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from transept.training.metrics.base import Floats, Metric, ratio, values
from transept.training.metrics.classification import ranks


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
        self.absolute, self.squared = self.absolute + float(np.abs(error).sum()), self.squared + float(error @ error)
        means = pair.mean(axis=1)
        apart, total = means - self.means, self.count + size  # the pairwise update of Chan et al. 1979
        own = pair - means[:, None]
        self.spread = self.spread + own @ own.T + np.outer(apart, apart) * self.count * size / total
        self.means, self.count = self.means + apart * size / total, total

    def result(self) -> dict[str, float]:
        across = math.sqrt(float(self.spread[0, 0]) * float(self.spread[1, 1]))
        return {
            "mse": ratio(self.squared, self.count, math.nan),
            "mae": ratio(self.absolute, self.count, math.nan),
            "r2": 1 - ratio(self.squared, float(self.spread[1, 1]), math.nan),
            "pearson": ratio(float(self.spread[0, 1]), across, math.nan),
        }


class Pearson(Regression):
    """``pearson``: the linear correlation; not a number where one side does not vary."""

    def result(self) -> dict[str, float]:
        return {"pearson": super().result()["pearson"]}


class Spearman(Metric):
    """``spearmanr``: the correlation of ranks, equal values sharing the mean of theirs. It keeps all values."""

    def reset(self) -> None:
        self.pairs: list[tuple[Floats, Floats]] = []

    def update(self, predictions: Any, labels: Any) -> None:
        self.pairs.append(values(predictions, labels))

    def result(self) -> dict[str, float]:
        if not self.pairs:
            return {"spearmanr": math.nan}
        sides = [ranks(np.concatenate([pair[side] for pair in self.pairs])) for side in (0, 1)]
        return {"spearmanr": Pearson()(*sides)["pearson"]}
