"""Classes of texts, of tokens and of several answers; self-training, which learns from texts without a class too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np

from transept.config.fields import Count, Range, Share
from transept.core import auto
from transept.errors import refuse
from transept.metrics.numbers import F1, Accuracy, Regression
from transept.metrics.texts import EntityF1, is_entity_tag
from transept.objectives.classification import IGNORED
from transept.tables.dataset import Row, TableDataset
from transept.training.collate.padding import DataCollatorForMultipleChoice, DataCollatorForTokenClassification
from transept.training.data.columns import LABEL, TEXT, Column, find_columns, is_label, is_labels, is_text, is_texts
from transept.training.data.labels import MULTI, REGRESSION, SINGLE, Labels, find_labels, token_labels
from transept.training.model_card import Answers
from transept.training.recipes.base import Options, Recipe, TextRecipe, most_likely, rows_from
from transept.training.trainers.semi_supervised import RoundsTrainer, last_checkpoint_of_rounds

ENDINGS = ("ending", "choice", "option", "answer")
METRICS = {SINGLE: "accuracy", MULTI: "f1", REGRESSION: "pearson"}


class LabelledRecipe(Recipe):
    """A recipe with a head for the classes of the data; a ``label`` is a class, several at once, or a number."""

    labels: Labels

    def inspect(self, dataset: TableDataset, config: Any = None) -> str | None:
        note = super().inspect(dataset, config)
        # Classes that the model was trained for before keep their order, unless they have no names.
        names = getattr(config, "id2label", None) or {}
        unnamed = all(name == f"LABEL_{number}" for number, name in names.items())
        self.labels = self.find_labels(dataset, None if unnamed else [names[number] for number in sorted(names)])
        return note

    def find_labels(self, dataset: TableDataset, model_classes: list[str] | None) -> Labels:
        """The classes of the data; ``model_classes`` are the model's."""
        labels = find_labels(dataset, self.column_names["label"], model_classes)
        self.metric = METRICS[labels.problem]
        return labels

    def model_settings(self, *, is_new: bool) -> dict[str, Any]:
        if self.labels.problem == REGRESSION:
            return {"num_labels": 1}
        names = self.labels.id2label
        return {"id2label": names, "label2id": {name: number for number, name in names.items()}}

    def targets(self, dataset: TableDataset) -> list[Any]:
        """The labels of all rows, as losses read them."""
        values = self.column(dataset, "label")
        return [self.labels.encode(value, dataset.place(index)) for index, value in enumerate(values)]

    def preprocess_logits(self, logits: Any, labels: Any) -> Any:
        if self.labels.problem == MULTI:
            return logits > 0
        return logits.squeeze(-1) if self.labels.problem == REGRESSION else logits.argmax(-1)

    def compute_metrics(self, predictions: Any, labels: Any) -> dict[str, float]:
        if self.labels.problem == SINGLE:
            self.answers = Answers.of(predictions.tolist(), labels.tolist(), self.labels.id2label)
            return class_metrics(predictions, labels)
        if self.labels.problem == REGRESSION:
            metrics = Regression()(predictions, labels)
            return {name: metrics[name] for name in ("pearson", "mse")}
        predictions, labels = predictions.astype(bool), labels.astype(bool)
        exact = float((predictions == labels).all(-1).mean())  # rows with all decisions right
        return {"f1": F1("binary")(predictions, labels)["f1"], "exact_match": exact}


def class_metrics(predictions: Any, labels: Any) -> dict[str, float]:
    """Accuracy, and F1 as the mean over the classes that occur."""
    return Accuracy()(predictions, labels) | {"macro_f1": F1("macro")(predictions, labels)["f1"]}


class TextClassification(LabelledRecipe, TextRecipe):
    """A class for each text; the column of labels tells whether it is one, several at once, or a number."""

    task = pipeline_tag = "text-classification"
    model_class = auto.AutoModelForSequenceClassification
    columns = (TEXT, Column("text_pair", (), is_text, optional=True, by_kind=False), LABEL)
    has_default_model = True
    needs_pad_token = True

    def model_settings(self, *, is_new: bool) -> dict[str, Any]:
        return super().model_settings(is_new=is_new) | {"problem_type": self.labels.problem}

    def encode_texts(self, dataset: TableDataset, columns: Mapping[str, str]) -> Any:
        return self.tokens(*(dataset.column(columns[role]) for role in ("text", "text_pair") if role in columns))

    def encode_rows(self, dataset: TableDataset) -> list[Row]:
        return rows_from(self.encode_texts(dataset, self.column_names), labels=self.targets(dataset))

    def describe_labels(self, labels: Any, ids: Any) -> str:
        label = labels.tolist()
        return self.labels.id2label.get(label, str(label)) if isinstance(label, int) else str(label)


class SelfTrainingOptions(Options):
    threshold: Share = 0.9  # the least probability of a label that a round keeps
    # In place of a threshold, the share of the rows of each class that is kept, the surest first.
    top_share: Annotated[float, Range(0, 1, "(")] | None = None
    rounds: Count = 3  # at most, the first of which has labelled rows alone


class SelfTraining(TextClassification):
    """Classes of texts, learnt from labelled rows, and from others, which the model labels round by round.

    Rows without a label are those of ``--unlabelled``, and those of the data whose label is missing.
    """

    task = "self-training"
    columns = (*TextClassification.columns[:2], replace(LABEL, optional=True))
    options_class = SelfTrainingOptions
    trainer_class = RoundsTrainer
    last_checkpoint = staticmethod(last_checkpoint_of_rounds)
    unlabelled: Sequence[TableDataset] = ()

    def inspect(self, dataset: TableDataset, config: Any = None) -> str | None:
        self.find_columns(dataset)
        hint = f"Some rows need a label; --label chooses its column. Columns: {', '.join(dataset.column_names)}."
        refuse("label" not in self.column_names, "there is no column of labels.", hint, path=dataset.path)
        note, column = super().inspect(self.split(dataset)[0], config), self.column_names["label"]
        what = f"self-training needs a class for each labelled row; the column {column!r} has something else."
        refuse(self.labels.problem != SINGLE, what, path=dataset.path)
        return note

    def split(self, dataset: TableDataset) -> tuple[TableDataset, TableDataset]:
        """The rows with a label, and those without: tables write no label as an empty text."""
        column = self.column_names["label"]
        is_given = (label is not None and label != "" for label in dataset.values(column))
        has_label = np.fromiter(is_given, bool, len(dataset))
        refuse(not has_label.any(), f"no row has a label in the column {column!r}.", path=dataset.path)
        return dataset.select(np.flatnonzero(has_label)), dataset.select(np.flatnonzero(~has_label))

    def take_unlabelled(self, dataset: TableDataset, unlabelled: TableDataset | None) -> TableDataset:
        labelled, others = self.split(dataset)
        self.unlabelled = [rows for rows in (others, unlabelled) if rows is not None and len(rows)]
        hint = "Pass a file of them as --unlabelled, or leave the label of some rows out."
        refuse(not self.unlabelled, "there are no rows without a label.", hint, path=dataset.path)
        return labelled

    def trainer_options(self) -> dict[str, Any]:
        rows = list[Row]()
        texts = [column for column in self.columns[:2] if column.role in self.column_names]
        for dataset in self.unlabelled:
            names = {column.role: self.column_names[column.role] for column in texts}
            same = {role: name for role, name in names.items() if name in dataset.column_names}
            columns = find_columns(dataset, texts, same)
            for chunk in dataset.chunks():
                rows += rows_from(self.encode_texts(chunk, columns))
        return {"unlabelled": rows, "options": self.options.of_task()}

    def preprocess_logits(self, logits: Any, labels: Any) -> Any:
        return logits  # rounds choose by the probabilities

    def compute_metrics(self, predictions: Any, labels: Any) -> dict[str, float]:
        return super().compute_metrics(predictions.argmax(-1), labels)


class TokenClassification(LabelledRecipe, TextRecipe):
    """A label for the first piece of each token; others, and special tokens, are left out of loss and metrics."""

    task = pipeline_tag = "token-classification"
    model_class = auto.AutoModelForTokenClassification
    columns = (
        Column("tokens", ("tokens", "words"), is_texts),
        Column("tags", ("tags", "ner_tags", "ner", "pos_tags", "pos", "labels", "label"), is_labels),
    )
    collator_class = DataCollatorForTokenClassification
    has_default_model = True

    def find_labels(self, dataset: TableDataset, model_classes: list[str] | None) -> Labels:
        labels = token_labels(dataset, self.column_names["tags"], model_classes)
        self.metric = "f1" if all(map(is_entity_tag, labels.names)) else "accuracy"
        return labels

    def encode_rows(self, dataset: TableDataset) -> list[Row]:
        tokens, tags = self.column(dataset, "tokens"), self.column(dataset, "tags")
        encoded, labels = self.tokens(tokens, is_split_into_words=True), []
        for index, tags_of_row in enumerate(tags):
            place, counts = dataset.place(index), (len(tokens[index]), len(tags_of_row))
            refuse(counts[0] != counts[1], f"there are {counts[0]} tokens, but {counts[1]} tags.", path=place)
            numbers, words = [self.labels.number(tag, place) for tag in tags_of_row], encoded.word_ids(index)
            is_first = [word is not None and word != before for word, before in zip(words, [None, *words])]
            labels.append([numbers[word] if first else IGNORED for word, first in zip(words, is_first)])
        return rows_from(encoded, labels=labels)

    def compute_metrics(self, predictions: Any, labels: Any) -> dict[str, float]:
        """Precision, recall and F1 of whole entities, and the accuracy of tokens; without entities as for classes."""
        metrics = EntityF1(self.labels.names) if self.metric == "f1" else class_metrics
        return metrics(predictions, labels)

    def describe_labels(self, labels: Any, ids: Any) -> str:
        pairs = zip(self.processor.convert_ids_to_tokens(ids.tolist()), labels.tolist())
        return " ".join(f"{token}/{self.labels.names[label]}" for token, label in pairs if label != IGNORED)


class MultipleChoice(TextRecipe):
    """A question or a beginning with several choices, of which ``label`` is the right one's number, letter or text.

    The choices are one column of lists, or columns ``ending0``, ``ending1``, ... (then ``sent2`` goes before each).
    """

    task = pipeline_tag = "multiple-choice"
    model_class = auto.AutoModelForMultipleChoice
    columns = (
        Column("question", ("question", "context", "prompt", "premise", "sent1", "startphrase"), is_text),
        Column("choices", ("choices", "options", "endings"), is_texts, optional=True, by_kind=False),
        Column("label", ("label", "answer", "answerkey", "correct"), is_label),
    )
    collator_class = DataCollatorForMultipleChoice
    metric = "accuracy"
    has_default_model = True
    batch_size = 8
    preprocess_logits = staticmethod(most_likely)
    compute_metrics = Accuracy()

    def encode_rows(self, dataset: TableDataset) -> Iterator[Row]:
        for index, row in enumerate(dataset):
            choices, right = self.choices(row, dataset.place(index))
            encoded = self.tokens([row[self.column_names["question"]]] * len(choices), choices)
            yield {**encoded, "labels": right}

    def choices(self, row: Mapping[str, Any], place: str) -> tuple[list[str], int]:
        """The choices of a row, and the number of the right one (``InputError``: one choice, or none is right)."""
        if "choices" in self.column_names:
            choices = list(row[self.column_names["choices"]])
        else:
            columns = [name for name in row if name.lower().rstrip("0123456789") in ENDINGS and name[-1:].isdecimal()]
            start = row.get("sent2")
            choices = [f"{start} {row[name]}" if start else str(row[name]) for name in sorted(columns)]
        hint = "--choices names a column of lists; or there are columns ending0, ending1, ..."
        refuse(len(choices) < 2, f"there are {len(choices)} choices.", hint, path=place)
        label = row[self.column_names["label"]]
        text = str(label).strip()
        if text in choices:
            return choices, choices.index(text)
        number = int(text) if text.isdecimal() else ord(text.upper()) - ord("A") if len(text) == 1 else -1
        what = f"the label {label!r:.60} is none of the {len(choices)} choices."
        refuse(not 0 <= number < len(choices), what, path=place)
        return choices, number

    def describe(self, batch: Mapping[str, Any], index: int) -> dict[str, str]:
        texts = self.processor.batch_decode(batch["input_ids"][index].tolist(), skip_special_tokens=True)
        right = int(batch["labels"][index])
        return {f"choice {number}{' (right)' if number == right else ''}": text for number, text in enumerate(texts)}
