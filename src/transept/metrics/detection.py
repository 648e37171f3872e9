"""The mean average precision of boxes, as COCO computes it (Lin et al. 2014)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np

from transept.errors import InputError
from transept.metrics.base import Floats, Metric, array, same_number

OVERLAPS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0, 1, 101)


def overlaps(first: Floats, second: Floats) -> Floats:
    """(n, m) of intersections over unions of boxes (n, 4) and (m, 4), as left, top, right and bottom."""
    corners = np.maximum(first[:, None, :2], second[None, :, :2]), np.minimum(first[:, None, 2:], second[None, :, 2:])
    both = np.maximum(corners[1] - corners[0], 0).prod(axis=2)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(axis=1) for boxes in (first, second)]
    union = areas[0][:, None] + areas[1][None] - both
    shares: Floats = np.divide(both, union, out=np.zeros_like(both), where=union > 0)
    return shares


class MeanAveragePrecision(Metric):
    """``map``, the mean over classes and overlaps of 0.5 to 0.95, ``map_50`` and ``map_75``, and ``mar_100``, the mean recall.

    Predictions are mappings for each picture with ``scores`` (n), ``labels`` (n) and ``boxes`` (n, 4); labels are such with
    ``labels`` (or ``class_labels``) and ``boxes``. Boxes are left, top, right and bottom, in any unit that both share. The 100
    best boxes of a picture count.
    """

    def reset(self) -> None:
        # For each class: scores, and for each overlap whether a box hits; the number of right boxes.
        self.scores: dict[int, list[Floats]] = defaultdict(list)
        self.hits: dict[int, list[Any]] = defaultdict(list)
        self.right: dict[int, int] = defaultdict(int)

    def update(self, predictions: Any, labels: Any) -> None:
        same_number(predictions, labels)
        for row, (found, right) in enumerate(zip(predictions, labels)):
            own, boxes = _boxes(found, row, "predictions")
            wanted, targets = _boxes(right, row, "labels")
            scores = array(found["scores"], "scores").astype(np.float64)
            if scores.shape != own.shape:
                raise InputError(f"picture {row} has {scores.shape} scores for {len(own)} boxes.")
            best = np.argsort(-scores, kind="stable")[:100]
            for kind in {*own[best].tolist(), *wanted.tolist()}:
                chosen, truth = best[own[best] == kind], targets[wanted == kind]
                self.scores[kind].append(scores[chosen])
                self.hits[kind].append(_matched(overlaps(boxes[chosen], truth)))
                self.right[kind] += len(truth)

    def result(self) -> dict[str, float]:
        kinds = [kind for kind, count in self.right.items() if count]
        if not kinds:
            return dict.fromkeys(("map", "map_50", "map_75", "mar_100"), math.nan)
        precisions, recalls = (np.array(each) for each in zip(*(self._curve(kind) for kind in kinds)))
        mean = precisions.mean(axis=0)
        return {"map": float(mean.mean()), "map_50": float(mean[0]), "map_75": float(mean[5]), "mar_100": float(recalls.mean())}

    def _curve(self, kind: int) -> tuple[Floats, Floats]:
        """A class's average precision and recall, for each overlap."""
        order = np.argsort(-np.concatenate(self.scores[kind]), kind="stable")
        hits = np.concatenate(self.hits[kind], axis=1)[:, order]
        found = np.cumsum(hits, axis=1)
        recall = found / self.right[kind]
        precision = found / np.arange(1, hits.shape[1] + 1)
        precision = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]  # the best at this recall or a higher one
        means = []
        for own, height in zip(recall, precision):
            places = np.searchsorted(own, RECALLS, side="left")
            means.append(np.where(places < len(own), np.append(height, 0.0)[places], 0.0).mean())
        last = recall[:, -1] if hits.shape[1] else np.zeros(len(OVERLAPS))
        return np.array(means), last


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
    """(overlaps, n) of bool: boxes, best first, each of which takes the free right box that it overlaps most."""
    hits = np.zeros((len(OVERLAPS), overlap.shape[0]), dtype=bool)
    for level, least in enumerate(OVERLAPS):
        free = np.ones(overlap.shape[1], dtype=bool)
        for box, row in enumerate(overlap):
            open_row = np.where(free, row, -1.0)
            if len(row) and open_row.max() >= least - 1e-10:
                free[open_row.argmax()] = False
                hits[level, box] = True
    return hits
