"""Classes of texts, of tokens and of several answers; self-training, which learns from texts without a class too."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np

from transept.core.auto import (
    AutoModelForMultipleChoice,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)
from transept.errors import InputError
from transept.fields import Count, Range, Share
from transept.metrics.numbers import F1, Accuracy, Regression
from transept.metrics.texts import EntityF1, is_entity_tag
from transept.objectives.classification import IGNORED
from transept.tables.dataset import Row, TableDataset
from transept.training.collate.padding import DataCollatorForMultipleChoice, DataCollatorForTokenClassification
from transept.training.data.columns import LABEL, TEXT, Column, find_columns, is_label, is_labels, is_text, is_texts
from transept.training.data.labels import MULTI, REGRESSION, SINGLE, Labels, find_labels, token_labels
from transept.training.model_card import Answers
from transept.training.recipes.base import Options, Recipe
from transept.training.recipes.text import TextRecipe, rows_from
from transept.training.trainers.semi_supervised import RoundsTrainer, last_of_rounds

ENDINGS = ("ending", "choice", "option", "answer")
METRICS = {SINGLE: "accuracy", MULTI: "f1", REGRESSION: "pearson"}


class LabelledRecipe(Recipe):
    """A recipe whose rows name classes, for which the model gets a head."""

    labels: Labels

    def look(self, dataset: TableDataset, config: Any = None) -> str | None:
        told = super().look(dataset, config)
        # Those that the model was trained for before keep their order, unless they have no names.
        names = getattr(config, "id2label", None) or {}
        unnamed = all(name == f"LABEL_{number}" for number, name in names.items())
        self.labels = self.find_labels(dataset, None if unnamed else [names[number] for number in sorted(names)])
        return told

    @abstractmethod
    def find_labels(self, dataset: TableDataset, known: list[str] | None) -> Labels:
        """The classes of the data; ``known`` are those of the model."""

    def settings(self) -> dict[str, Any]:
        if self.labels.problem == REGRESSION:
            return {"num_labels": 1}
        names = self.labels.id2label
        return {"id2label": names, "label2id": {name: number for number, name in names.items()}}


class ClassRecipe(LabelledRecipe):
    """A recipe whose column ``label`` holds a class, several at once, or a number to predict."""

    metric = "accuracy"

    def find_labels(self, dataset: TableDataset, known: list[str] | None) -> Labels:
        labels = find_labels(dataset, self.found["label"], known)
        self.metric = METRICS[labels.problem]
        return labels

    def targets(self, dataset: TableDataset) -> list[Any]:
        """The labels of all rows, as losses read them."""
        values = self.column(dataset, "label")
        return [self.labels.encode(value, dataset.place(index)) for index, value in enumerate(values)]

    def reduce(self, logits: Any, labels: Any) -> Any:
        if self.labels.problem == MULTI:
            return logits > 0
        return logits.squeeze(-1) if self.labels.problem == REGRESSION else logits.argmax(-1)

    def scores(self, predicted: Any, right: Any) -> dict[str, float]:
        if self.labels.problem == SINGLE:
            return class_scores(predicted, right)
        if self.labels.problem == REGRESSION:
            numbers = Regression()(predicted, right)
            return {name: numbers[name] for name in ("pearson", "mse")}
        predicted, right = predicted.astype(bool), right.astype(bool)  # all decisions, and rows with all of them right
        return {"f1": F1("binary")(predicted, right)["f1"], "exact_match": float((predicted == right).all(-1).mean())}

    def answers(self, predicted: Any, right: Any) -> Answers | None:
        if self.labels.problem != SINGLE:
            return None
        return Answers.of(predicted.tolist(), right.tolist(), self.labels.id2label)


def class_scores(predicted: Any, right: Any) -> dict[str, float]:
    """Accuracy, and F1 as the mean over the classes that occur."""
    return Accuracy()(predicted, right) | {"macro_f1": F1("macro")(predicted, right)["f1"]}


class TextClassification(ClassRecipe, TextRecipe):
    """A class for each text; the column of labels tells whether it is one, several at once, or a number."""

    task = tag = "text-classification"
    auto = AutoModelForSequenceClassification
    columns = (TEXT, Column("text_pair", (), is_text, optional=True, by_kind=False), LABEL)
    has_default_model = True
    needs_pad_token = True

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"problem_type": self.labels.problem}

    def encode_texts(self, dataset: TableDataset, columns: Mapping[str, str]) -> Any:
        return self.tokens(*(dataset.column(columns[role]) for role in ("text", "text_pair") if role in columns))

    def encode_rows(self, dataset: TableDataset) -> list[Row]:
        return rows_from(self.encode_texts(dataset, self.found), labels=self.targets(dataset))

    def shown_labels(self, labels: Any, ids: Any) -> str:
        label = labels.tolist()
        return self.labels.id2label.get(label, str(label)) if isinstance(label, int) else str(label)


class SelfTrainingOptions(Options):
    threshold: Share = 0.9  # the least probability of a label that a round keeps
    # In place of a threshold, the share of the rows of each class that is kept, the surest first.
    top_share: Annotated[float, Range(0, 1, "(")] | None = None
    rounds: Count = 3  # at most, the first of which has labelled rows alone


class SelfTraining(TextClassification):
    """Classes of texts, learnt from labelled rows and from rows without a label, which the model labels round by round.

    Rows without a label are those of ``--unlabelled``, and those of the data whose label is missing.
    """

    task = "self-training"
    columns = (*TextClassification.columns[:2], replace(LABEL, optional=True))
    options_class = SelfTrainingOptions
    trainer_class = RoundsTrainer
    last_checkpoint = staticmethod(last_of_rounds)
    unlabelled: Sequence[TableDataset] = ()

    def look(self, dataset: TableDataset, config: Any = None) -> str | None:
        self.choose_columns(dataset)
        if "label" not in self.found:
            columns = ", ".join(dataset.column_names)
            hint = f"Some rows need a label; --label chooses its column. Columns: {columns}."
            raise InputError("there is no column of labels.", path=dataset.path, hint=hint)
        told = super().look(self.divided(dataset)[0], config)
        if self.labels.problem != SINGLE:
            column = self.found["label"]
            what = f"self-training needs a class for each labelled row; the column {column!r} has something else."
            raise InputError(what, path=dataset.path)
        return told

    def divided(self, dataset: TableDataset) -> tuple[TableDataset, TableDataset]:
        """The rows with a label, and those without (``InputError``: none has one); tables write no label as an empty text."""
        labels = dataset.values(self.found["label"])
        has_label = np.fromiter((label is not None and label != "" for label in labels), bool, len(dataset))
        if not has_label.any():
            raise InputError(f"no row has a label in the column {self.found['label']!r}.", path=dataset.path)
        return dataset.select(np.flatnonzero(has_label)), dataset.select(np.flatnonzero(~has_label))

    def labelled(self, dataset: TableDataset, unlabelled: TableDataset | None) -> TableDataset:
        labelled, others = self.divided(dataset)
        self.unlabelled = [rows for rows in (others, unlabelled) if rows is not None and len(rows)]
        if not self.unlabelled:
            hint = "Pass a file of them as --unlabelled, or leave the label of some rows out."
            raise InputError("there are no rows without a label.", path=dataset.path, hint=hint)
        return labelled

    def trainer_options(self) -> dict[str, Any]:
        rows, wanted = list[Row](), [column for column in self.columns[:2] if column.role in self.found]
        for dataset in self.unlabelled:
            given = {role: name for role, name in self.found.items() if role != "label" and name in dataset.column_names}
            columns = find_columns(dataset, wanted, given)
            for chunk in dataset.chunks():
                rows += rows_from(self.encode_texts(chunk, columns))
        return {"unlabelled": rows, **self.options.own()}

    def reduce(self, logits: Any, labels: Any) -> Any:
        return logits  # rounds choose by the probabilities

    def scores(self, predicted: Any, right: Any) -> dict[str, float]:
        return super().scores(predicted.argmax(-1), right)

    def answers(self, predicted: Any, right: Any) -> Answers | None:
        return super().answers(predicted.argmax(-1), right)


class TokenClassification(LabelledRecipe, TextRecipe):
    """A label for the first piece of each token; others, and special tokens, are left out of loss and metrics."""

    task = tag = "token-classification"
    auto = AutoModelForTokenClassification
    columns = (
        Column("tokens", ("tokens", "words"), is_texts),
        Column("tags", ("tags", "ner_tags", "ner", "pos_tags", "pos", "labels", "label"), is_labels),
    )
    collator_class = DataCollatorForTokenClassification
    metric = "f1"
    has_default_model = True

    def find_labels(self, dataset: TableDataset, known: list[str] | None) -> Labels:
        labels = token_labels(dataset, self.found["tags"], known)
        self.metric = "f1" if all(map(is_entity_tag, labels.names)) else "accuracy"
        return labels

    def encode_rows(self, dataset: TableDataset) -> list[Row]:
        tokens, tags = self.column(dataset, "tokens"), self.column(dataset, "tags")
        for index, (words, given) in enumerate(zip(tokens, tags)):
            if len(words) != len(given):
                what = f"there are {len(words)} tokens, but {len(given)} tags."
                raise InputError(what, path=dataset.place(index))
        encoded = self.tokens(tokens, is_split_into_words=True)
        labels = []
        for index, given in enumerate(tags):
            numbers = [self.labels.number(tag, dataset.place(index)) for tag in given]
            words = encoded.word_ids(index)
            is_first = [word is not None and word != before for word, before in zip(words, [None, *words])]
            labels.append([numbers[word] if first else IGNORED for word, first in zip(words, is_first)])
        return rows_from(encoded, labels=labels)

    def reduce(self, logits: Any, labels: Any) -> Any:
        return logits.argmax(-1)

    def scores(self, predicted: Any, right: Any) -> dict[str, float]:
        """Precision, recall and F1 of whole entities, and the accuracy of tokens; without entities as for classes."""
        return EntityF1(self.labels.names)(predicted, right) if self.metric == "f1" else class_scores(predicted, right)

    def shown_labels(self, labels: Any, ids: Any) -> str:
        pairs = zip(self.reader.convert_ids_to_tokens(ids.tolist()), labels.tolist())
        return " ".join(f"{token}/{self.labels.names[label]}" for token, label in pairs if label != IGNORED)


class MultipleChoice(TextRecipe):
    """A question or a beginning with several choices, of which ``label`` is the right one's number, letter or text.

    The choices are one column of lists, or columns such as ``ending0``, ``ending1``, ... (then ``sent2`` goes before each).
    """

    task = tag = "multiple-choice"
    auto = AutoModelForMultipleChoice
    columns = (
        Column("question", ("question", "context", "prompt", "premise", "sent1", "startphrase"), is_text),
        Column("choices", ("choices", "options", "endings"), is_texts, optional=True, by_kind=False),
        Column("label", ("label", "answer", "answerkey", "correct"), is_label),
    )
    collator_class = DataCollatorForMultipleChoice
    metric = "accuracy"
    has_default_model = True
    batch_size = 8

    def encode_rows(self, dataset: TableDataset) -> list[Row]:
        rows = []
        for index, row in enumerate(dataset):
            choices = self.choices(row, dataset.place(index))
            encoded = self.tokens([row[self.found["question"]]] * len(choices), choices)
            rows.append({**encoded, "labels": right_choice(row[self.found["label"]], choices, dataset.place(index))})
        return rows

    def choices(self, row: Mapping[str, Any], place: str) -> list[str]:
        """The choices of a row (``InputError``: there are fewer than two)."""
        if "choices" in self.found:
            choices = list(row[self.found["choices"]])
        else:
            columns = [name for name in row if name.lower().rstrip("0123456789") in ENDINGS and name[-1:].isdecimal()]
            start = row.get("sent2")
            choices = [f"{start} {row[name]}" if start else str(row[name]) for name in sorted(columns)]
        if len(choices) < 2:
            hint = "--choices names a column of lists; or there are columns ending0, ending1, ..."
            raise InputError(f"there are {len(choices)} choices.", path=place, hint=hint)
        return choices

    def reduce(self, logits: Any, labels: Any) -> Any:
        return logits.argmax(-1)

    def scores(self, predicted: Any, right: Any) -> dict[str, float]:
        return Accuracy()(predicted, right)

    def shown(self, batch: Mapping[str, Any], index: int) -> dict[str, str]:
        texts = self.reader.batch_decode(batch["input_ids"][index].tolist(), skip_special_tokens=True)
        right = int(batch["labels"][index])
        return {f"choice {number}{' (right)' if number == right else ''}": text for number, text in enumerate(texts)}


def right_choice(label: Any, choices: Sequence[str], place: str) -> int:
    """The number of the right choice from its number, its letter (A is the first) or its text."""
    text = str(label).strip()
    if text in choices:
        return list(choices).index(text)
    number = int(text) if text.isdecimal() else ord(text.upper()) - ord("A") if len(text) == 1 else -1
    if not 0 <= number < len(choices):
        raise InputError(f"the label {label!r:.60} is none of the {len(choices)} choices.", path=place)
    return number
