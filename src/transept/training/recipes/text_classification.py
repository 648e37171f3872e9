"""Classes of texts or of pairs of texts, several classes at once, or a number; with rows without labels too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from transept.core.auto import AutoModelForSequenceClassification
from transept.errors import InputError
from transept.fields import Count, Range, Share
from transept.training.data.columns import LABEL, TEXT, Column, find_columns, find_pair, is_text
from transept.training.data.labels import SINGLE
from transept.training.data.table import Row, TableDataset
from transept.training.model_card import Answers
from transept.training.recipes.base import Options, TextRecipe
from transept.training.recipes.classes import ClassRecipe, class_scores
from transept.training.state import EvalPrediction
from transept.training.trainers.self_training import RoundsTrainer, last_of_rounds


class TextClassification(ClassRecipe, TextRecipe):
    """A class for each text; the column of labels tells whether it is one, several at once, or a number."""

    task = tag = "text-classification"
    auto = AutoModelForSequenceClassification
    columns = (TEXT, Column("text_pair", (), is_text, optional=True, by_kind=False), LABEL)
    has_default_model = True

    def guesses(self, dataset: TableDataset) -> dict[str, str]:
        return find_pair(dataset, self.given)

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"problem_type": self.labels.problem}

    def encode_rows(self, dataset: TableDataset) -> list[Row]:
        self.need_pad_token()
        pairs = dataset.column(self.found["text_pair"]) if "text_pair" in self.found else None
        return self.rows(self.tokens(dataset.column(self.found["text"]), pairs), labels=self.numbers(dataset))

    def shown_labels(self, labels: Any, ids: Any) -> str:
        found = labels.tolist()
        return self.labels.id2label.get(found, str(found)) if isinstance(found, int) else str(found)


class SelfTrainingOptions(Options):
    """Options of self-training.

    Args:
        threshold: the least probability of a label that a round keeps.
        top_share: in place of a threshold, the share of the rows of each class that is kept, the surest first.
        rounds: how many at most, the first of which has labelled rows alone.
    """

    threshold: Share = 0.9
    top_share: Annotated[float, Range(0, 1, "(")] | None = None
    rounds: Count = 3


class SelfTraining(TextClassification):
    """Classes of texts, learnt from labelled rows and from rows without a label, which the model labels itself round by round.

    Rows without a label are those of ``--unlabelled``, and those of the data whose label is missing.
    """

    task = "self-training"
    columns = (*TextClassification.columns[:2], replace(LABEL, optional=True))
    options_class = SelfTrainingOptions
    trainer_class = RoundsTrainer
    unlabelled: Sequence[TableDataset] = ()

    def look(self, dataset: TableDataset, config: Any = None) -> str | None:
        self.found = find_columns(dataset, self.columns, {**self.guesses(dataset), **self.given})
        if "label" not in self.found:
            columns = ", ".join(dataset.column_names)
            hint = f"Some rows need a label; --label chooses its column. Columns: {columns}."
            raise InputError("there is no column of labels.", path=dataset.path, hint=hint)
        told = super().look(self.divided(dataset)[0], config)
        if self.labels.problem != SINGLE:
            what = f"self-training needs a class for each labelled row; the column {self.found['label']!r} has something else."
            raise InputError(what, path=dataset.path)
        return told

    def divided(self, dataset: TableDataset) -> tuple[TableDataset, TableDataset]:
        """The rows with a label, and those without (``InputError``: none has one)."""
        has = np.fromiter(map(held, dataset.values(self.found["label"])), bool, len(dataset))
        if not has.any():
            raise InputError(f"no row has a label in the column {self.found['label']!r}.", path=dataset.path)
        return dataset.select(np.flatnonzero(has)), dataset.select(np.flatnonzero(~has))

    def parted(self, dataset: TableDataset, unlabelled: TableDataset | None) -> TableDataset:
        labelled, others = self.divided(dataset)
        self.unlabelled = [each for each in (others, unlabelled) if each is not None and len(each)]
        if not self.unlabelled:
            hint = "Pass a file of them as --unlabelled, or leave the label of some rows out."
            raise InputError("there are no rows without a label.", path=dataset.path, hint=hint)
        return labelled

    def trainer_options(self) -> dict[str, Any]:
        options, rows = self.options, list[Row]()
        for dataset in self.unlabelled:
            given = {role: name for role, name in self.found.items() if role != "label" and name in dataset.column_names}
            found = find_columns(dataset, [each for each in self.columns[:2] if each.role in self.found], given)
            for chunk in dataset.chunks():
                texts = [chunk.column(found[role]) for role in ("text", "text_pair") if role in found]
                rows += self.rows(self.tokens(*texts))
        chosen = {"threshold": options.threshold, "top_share": options.top_share, "rounds": options.rounds}
        return {"unlabelled": rows} | chosen

    def reduce(self) -> None:
        return None  # rounds choose by the probabilities

    def scores(self) -> Callable[[Any], dict[str, float]]:
        return lambda found: class_scores(EvalPrediction(found.predictions.argmax(-1), found.label_ids))

    def answers(self, predictions: Any, labels: Any) -> Answers | None:
        return super().answers(predictions.argmax(-1), labels)

    @classmethod
    def last_checkpoint(cls, run: str) -> Path | None:
        return last_of_rounds(run)


def held(label: Any) -> bool:
    """Whether there is a label; tables write an empty text where there is none."""
    return label is not None and label != ""
