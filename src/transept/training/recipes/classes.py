"""What recipes share that choose one of some classes for each row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transept.training.data.labels import MULTI, REGRESSION, SINGLE, Labels, find_labels
from transept.training.data.table import TableDataset
from transept.training.metrics.classification import F1, Accuracy
from transept.training.metrics.regression import Regression
from transept.training.model_card import Answers
from transept.training.recipes.base import Recipe


def known_classes(config: Any) -> list[str] | None:
    """The classes of a model that was trained for some before, in their order; none of those that have no names."""
    names = getattr(config, "id2label", None) or {}
    unnamed = all(name == f"LABEL_{number}" for number, name in names.items())
    return None if unnamed else [names[number] for number in sorted(names)]


def class_settings(labels: Labels) -> dict[str, Any]:
    """Settings of a model for these classes."""
    if labels.problem == REGRESSION:
        return {"num_labels": 1}
    return {"id2label": labels.id2label, "label2id": {name: number for number, name in labels.id2label.items()}}


def class_scores(prediction: Any) -> dict[str, float]:
    """Accuracy, and F1 as the mean over the classes that occur."""
    pair = prediction.predictions, prediction.label_ids
    return Accuracy()(*pair) | {"macro_f1": F1("macro")(*pair)["f1"]}


def _multi_scores(prediction: Any) -> dict[str, float]:
    """F1 over all decisions, and the share of the rows with all of them right."""
    predicted, right = prediction.predictions.astype(bool), prediction.label_ids.astype(bool)
    return {"f1": F1("binary")(predicted, right)["f1"], "exact_match": float((predicted == right).all(-1).mean())}


def _number_scores(prediction: Any) -> dict[str, float]:
    scores = Regression()(prediction.predictions, prediction.label_ids)
    return {name: scores[name] for name in ("pearson", "mse")}


def best_class(logits: Any, labels: Any) -> Any:
    return logits.argmax(-1)


@dataclass(frozen=True)
class Problem:
    """How answers are measured: the metric that counts, what is kept of logits (logits, labels -> answers), and all metrics."""

    metric: str
    reduce: Callable[[Any, Any], Any]
    scores: Callable[[Any], dict[str, float]]


PROBLEMS = {
    SINGLE: Problem("accuracy", best_class, class_scores),
    MULTI: Problem("f1", lambda logits, labels: logits > 0, _multi_scores),
    REGRESSION: Problem("pearson", lambda logits, labels: logits.squeeze(-1), _number_scores),
}


class ClassRecipe(Recipe):
    """A recipe whose column ``label`` holds classes: metrics, and what a card tells of them."""

    metric = "accuracy"
    labels: Labels

    def look(self, dataset: TableDataset, config: Any = None) -> str | None:
        told = super().look(dataset, config)
        self.labels = find_labels(dataset, self.found["label"], known_classes(config))
        self.metric = PROBLEMS[self.labels.problem].metric
        return told

    def settings(self) -> dict[str, Any]:
        return class_settings(self.labels)

    def numbers(self, dataset: TableDataset) -> list[Any]:
        """The labels of all rows, as losses read them."""
        values = dataset.column(self.found["label"])
        return [self.labels.encode(value, dataset.place(index)) for index, value in enumerate(values)]

    def reduce(self) -> Callable[[Any, Any], Any] | None:
        return PROBLEMS[self.labels.problem].reduce

    def scores(self) -> Callable[[Any], dict[str, float]]:
        return PROBLEMS[self.labels.problem].scores

    def answers(self, predictions: Any, labels: Any) -> Answers | None:
        if self.labels.problem != SINGLE:
            return None
        return Answers.of(predictions.tolist(), labels.tolist(), self.labels.id2label)
