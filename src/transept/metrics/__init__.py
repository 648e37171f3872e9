"""Metrics by name: objects with ``update(predictions, labels)`` for each batch, and ``result()``."""

from __future__ import annotations

from typing import Any

from transept.errors import InputError, nearest
from transept.metrics.base import Metric
from transept.metrics.detection import MeanAveragePrecision
from transept.metrics.numbers import AUC, F1, Accuracy, Matthews, MeanIoU, Pearson, Regression, Spearman
from transept.metrics.texts import AnswerF1, Bleu, CharacterErrorRate, ChrF, EntityF1, Perplexity, Rouge, WordErrorRate

METRICS: dict[str, type[Metric]] = {
    "accuracy": Accuracy,
    "f1": F1,
    "matthews_correlation": Matthews,
    "roc_auc": AUC,
    "mean_iou": MeanIoU,
    "map": MeanAveragePrecision,
    "regression": Regression,
    "pearson": Pearson,
    "spearmanr": Spearman,
    "entity_f1": EntityF1,
    "squad": AnswerF1,
    "perplexity": Perplexity,
    "bleu": Bleu,
    "chrf": ChrF,
    "rouge": Rouge,
    "wer": WordErrorRate,
    "cer": CharacterErrorRate,
}


def get_metric(name: str, **options: Any) -> Metric:
    """The metric of that name, with its own options (``InputError``: an unknown name)."""
    if name not in METRICS:
        raise InputError(f"no metric is called {name!r}.", hint=nearest(name, METRICS))
    return METRICS[name](**options)
