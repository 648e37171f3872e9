"""The mean average precision of boxes, as COCO computes it (Lin et al. 2014)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from transept.errors import InputError
from transept.metrics.base import Floats, Metric, array, same_number
from transept.objectives.matching import overlap

OVERLAPS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0, 1, 101)
NAMES = ("map", "map_50", "map_75", "mar_100")


def overlaps(first: Floats, second: Floats) -> Floats:
    """(n, m) of intersections over unions of boxes (n, 4) and (m, 4), as left, top, right and bottom."""
    shares, _ = overlap(torch.from_numpy(first)[:, None], torch.from_numpy(second)[None])
    return array(shares.nan_to_num(), "boxes")  # NaN are shares of two boxes without an area


class MeanAveragePrecision(Metric):
    """``map``, the mean over classes and overlaps of 0.5 to 0.95; ``map_50``; ``map_75``; ``mar_100``, mean recall.

    Predictions are mappings for each picture with ``scores`` (n), ``labels`` (n) and ``boxes`` (n, 4); labels are
    mappings with ``labels`` (or ``class_labels``) and ``boxes``. Boxes are left, top, right and bottom, in any unit.
    The 100 best boxes of a picture count.
    """

    def reset(self) -> None:
        # By class: scores, and whether a box hits (overlaps, n), of each picture; and the number of labelled boxes.
        self.scores: dict[int, list[Floats]] = defaultdict(list)
        self.hits: dict[int, list[Any]] = defaultdict(list)
        self.counts: dict[int, int] = defaultdict(int)

    def update(self, predictions: Any, labels: Any) -> None:
        same_number(predictions, labels)
        for row, (prediction, label) in enumerate(zip(predictions, labels)):
            predicted, boxes = _boxes(prediction, row, "predictions")
            target, target_boxes = _boxes(label, row, "labels")
            scores = array(prediction["scores"], "scores").astype(np.float64)
            if scores.shape != predicted.shape:
                raise InputError(f"picture {row} has {scores.shape} scores for {len(predicted)} boxes.")
            best = np.argsort(-scores, kind="stable")[:100]
            for kind in {*predicted[best].tolist(), *target.tolist()}:
                chosen, wanted = best[predicted[best] == kind], target_boxes[target == kind]
                self.scores[kind].append(scores[chosen])
                self.hits[kind].append(_matched(overlaps(boxes[chosen], wanted)))
                self.counts[kind] += len(wanted)

    def result(self) -> dict[str, float]:
        kinds = [kind for kind, count in self.counts.items() if count]
        if not kinds:
            return dict.fromkeys(NAMES, math.nan)
        precisions, recalls = (np.array(figures) for figures in zip(*map(self._averages, kinds)))
        mean = precisions.mean(axis=0)
        return dict(zip(NAMES, map(float, (mean.mean(), mean[0], mean[5], recalls.mean()))))

    def _averages(self, kind: int) -> tuple[Floats, Floats]:
        """A class's average precision and its recall, for each overlap."""
        order = np.argsort(-np.concatenate(self.scores[kind]), kind="stable")
        hits = np.concatenate(self.hits[kind], axis=1)[:, order].cumsum(axis=1)
        recalls = hits / self.counts[kind]
        precisions = hits / np.arange(1, hits.shape[1] + 1)
        precisions = np.maximum.accumulate(precisions[:, ::-1], axis=1)[:, ::-1]  # the best from this recall on
        curves = zip(recalls, precisions)
        means = [np.append(precision, 0.0)[np.searchsorted(recall, RECALLS)].mean() for recall, precision in curves]
        return np.array(means), recalls.max(axis=1, initial=0.0)


def _boxes(picture: Any, row: int, name: str) -> tuple[Any, Floats]:
    """The classes and boxes of a picture."""
    if not isinstance(picture, Mapping) or "boxes" not in picture:
        raise InputError(f"picture {row} of the {name} has no boxes: {str(picture)[:60]!r}.")
    kinds = array(picture["labels"] if "labels" in picture else picture["class_labels"], name).astype(np.int64)
    boxes = array(picture["boxes"], "boxes").astype(np.float64).reshape(-1, 4)
    if kinds.shape != boxes.shape[:1]:
        raise InputError(f"picture {row} of the {name} has {len(boxes)} boxes and {kinds.shape} classes.")
    return kinds, boxes


def _matched(overlap: Floats) -> Any:
    """(overlaps, n) of bool: boxes, best first, each of which takes the free labelled box that it overlaps most."""
    hits = np.zeros((len(OVERLAPS), overlap.shape[0]), dtype=bool)
    for level, least in enumerate(OVERLAPS):
        free = np.ones(overlap.shape[1], dtype=bool)
        for box, row in enumerate(overlap):
            shares = np.where(free, row, -1.0)
            if shares.max(initial=-1.0) >= least - 1e-10:
                free[shares.argmax()] = False
                hits[level, box] = True
    return hits
