"""Metrics by name: objects with ``update(predictions, labels)`` for each batch, and ``result()``."""

from __future__ import annotations

from typing import Any

from transept.errors import InputError, nearest
from transept.metrics import detection, numbers, texts
from transept.metrics.base import Metric

METRICS: dict[str, type[Metric]] = {
    "accuracy": numbers.Accuracy,
    "f1": numbers.F1,
    "matthews_correlation": numbers.Matthews,
    "roc_auc": numbers.AUC,
    "mean_iou": numbers.MeanIoU,
    "map": detection.MeanAveragePrecision,
    "regression": numbers.Regression,
    "pearson": numbers.Pearson,
    "spearmanr": numbers.Spearman,
    "entity_f1": texts.EntityF1,
    "squad": texts.AnswerF1,
    "perplexity": texts.Perplexity,
    "bleu": texts.Bleu,
    "chrf": texts.ChrF,
    "rouge": texts.Rouge,
    "wer": texts.WordErrorRate,
    "cer": texts.CharacterErrorRate,
}


def get_metric(name: str, **options: Any) -> Metric:
    """The metric of that name, with its own options (``InputError``: an unknown name)."""
    if name not in METRICS:
        raise InputError(f"no metric is called {name!r}.", hint=nearest(name, METRICS))
    return METRICS[name](**options)
