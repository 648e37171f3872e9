"""What recipes share that choose one of some classes for each row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from transept.training.data.dataset import TableDataset
from transept.training.data.labels import MULTI, REGRESSION, SINGLE, Labels, find_labels
from transept.training.metrics.classification import F1, Accuracy
from transept.training.metrics.regression import Regression
from transept.training.recipes.base import Recipe
from transept.training.reports.card import Answers


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


class ClassRecipe(Recipe):
    """A recipe whose column ``label`` holds classes: metrics, and what a card tells of them."""

    metric = "accuracy"
    labels: Labels

    def look(self, dataset: TableDataset, config: Any = None) -> str | None:
        told = super().look(dataset, config)
        self.labels = find_labels(dataset, self.found["label"], known_classes(config))
        self.metric = {REGRESSION: "pearson", MULTI: "f1"}.get(self.labels.problem, "accuracy")
        return told

    def settings(self) -> dict[str, Any]:
        return class_settings(self.labels)

    def numbers(self, dataset: TableDataset) -> list[Any]:
        """The labels of all rows, as losses read them."""
        values = dataset.column(self.found["label"])
        return [self.labels.encode(value, dataset.place(index)) for index, value in enumerate(values)]

    def reduce(self) -> Callable[[Any, Any], Any] | None:
        found: Callable[[Any, Any], Any] = {REGRESSION: _values, MULTI: _held}.get(self.labels.problem, _best)
        return found

    def scores(self) -> Callable[[Any], dict[str, float]]:
        return {REGRESSION: _number_scores, MULTI: _multi_scores}.get(self.labels.problem, class_scores)

    def answers(self, predictions: Any, labels: Any) -> Answers | None:
        if self.labels.problem != SINGLE:
            return None
        return Answers.of(predictions.tolist(), labels.tolist(), self.labels.id2label)


def _best(logits: Any, labels: Any) -> Tensor:
    best: Tensor = logits.argmax(-1)
    return best


def _held(logits: Any, labels: Any) -> Tensor:
    return logits > 0  # type: ignore[no-any-return]


def _values(logits: Any, labels: Any) -> Tensor:
    values: Tensor = logits.squeeze(-1)
    return values


def class_scores(prediction: Any) -> dict[str, float]:
    """Accuracy, and F1 as the mean over the classes that occur."""
    pair = prediction.predictions, prediction.label_ids
    return Accuracy()(*pair) | {"macro_f1": F1("macro")(*pair)["f1"]}


def _multi_scores(prediction: Any) -> dict[str, float]:
    """F1 over all decisions, and the share of the rows with all of them right."""
    said, right = prediction.predictions.astype(bool), prediction.label_ids.astype(bool)
    return {"f1": F1("binary")(said, right)["f1"], "exact_match": float((said == right).all(-1).mean())}


def _number_scores(prediction: Any) -> dict[str, float]:
    found = Regression()(prediction.predictions, prediction.label_ids)
    return {name: found[name] for name in ("pearson", "mse")}
