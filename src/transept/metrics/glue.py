"""The metrics of the tasks of GLUE and XNLI, by the reference's functions: predictions and labels as arrays in, numbers out."""

from __future__ import annotations

from typing import Any

from transept.errors import InputError, nearest
from transept.metrics import get_metric

# Tasks whose metric is accuracy alone, and what it is called there.
_ACCURACY = {"mnli": "mnli/acc", "mnli-mm": "mnli-mm/acc", **dict.fromkeys(("sst-2", "qnli", "rte", "wnli", "hans"), "acc")}


def _value(name: str, preds: Any, labels: Any) -> float:
    metric = get_metric(name)
    metric.update(preds, labels)
    return metric.result()[name]


def simple_accuracy(preds: Any, labels: Any) -> float:
    """The share of predictions that are right."""
    return float((preds == labels).mean())


def acc_and_f1(preds: Any, labels: Any) -> dict[str, float]:
    """Accuracy, the F1 of class 1, and their mean."""
    right = simple_accuracy(preds, labels)
    hits = float(((preds == 1) & (labels == 1)).sum())
    marked = float((preds == 1).sum() + (labels == 1).sum())
    f1 = 2 * hits / marked if marked else 0.0
    return {"acc": right, "f1": f1, "acc_and_f1": (right + f1) / 2}


def pearson_and_spearman(preds: Any, labels: Any) -> dict[str, float]:
    """Both correlations, and their mean."""
    one, other = _value("pearson", preds, labels), _value("spearmanr", preds, labels)
    return {"pearson": one, "spearmanr": other, "corr": (one + other) / 2}


def _matthews(preds: Any, labels: Any) -> dict[str, float]:
    return {"mcc": _value("matthews_correlation", preds, labels)}


_OTHERS = {"cola": _matthews, "mrpc": acc_and_f1, "qqp": acc_and_f1, "sts-b": pearson_and_spearman}


def glue_compute_metrics(task_name: str, preds: Any, labels: Any) -> dict[str, float]:
    """The metrics of a task of GLUE (``InputError``: an unknown one, or another number of labels)."""
    if len(preds) != len(labels):
        raise InputError(f"there are {len(preds)} predictions for {len(labels)} labels.")
    if task_name in _ACCURACY:
        return {_ACCURACY[task_name]: simple_accuracy(preds, labels)}
    if task_name not in _OTHERS:
        raise InputError(f"GLUE has no task {task_name!r}.", hint=nearest(task_name, {**_ACCURACY, **_OTHERS}))
    return _OTHERS[task_name](preds, labels)


def xnli_compute_metrics(task_name: str, preds: Any, labels: Any) -> dict[str, float]:
    """Accuracy."""
    return glue_compute_metrics("rte", preds, labels)
