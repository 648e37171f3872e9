"""A label for each token of a text, such as entities in the BIO scheme."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transept.core.auto import AutoModelForTokenClassification
from transept.errors import InputError
from transept.objectives.classification import IGNORED
from transept.training.collate.padding import DataCollatorForTokenClassification
from transept.training.data.columns import Column, is_labels, is_texts
from transept.training.data.labels import Labels, token_labels
from transept.training.data.table import Row, TableDataset
from transept.training.metrics.tokens import EntityF1, is_entity_tag
from transept.training.recipes.base import TextRecipe
from transept.training.recipes.classes import best_class, class_scores, class_settings, known_classes
from transept.training.state import EvalPrediction


class TokenClassification(TextRecipe):
    """A label for the first piece of each token; others, and special tokens, are left out of the loss and of the metrics."""

    task = tag = "token-classification"
    auto = AutoModelForTokenClassification
    columns = (
        Column("tokens", ("tokens", "words"), is_texts),
        Column("tags", ("tags", "ner_tags", "ner", "pos_tags", "pos", "labels", "label"), is_labels),
    )
    collator_class = DataCollatorForTokenClassification
    metric = "f1"
    has_default_model = True
    labels: Labels

    def look(self, dataset: TableDataset, config: Any = None) -> str | None:
        told = super().look(dataset, config)
        self.labels = token_labels(dataset, self.found["tags"], known_classes(config))
        self.metric = "f1" if all(map(is_entity_tag, self.labels.names)) else "accuracy"
        return told

    def settings(self) -> dict[str, Any]:
        return class_settings(self.labels)

    def encode_rows(self, dataset: TableDataset) -> list[Row]:
        tokens, tags = dataset.column(self.found["tokens"]), dataset.column(self.found["tags"])
        for index, (words, given) in enumerate(zip(tokens, tags)):
            if len(words) != len(given):
                what = f"there are {len(words)} tokens, but {len(given)} tags."
                raise InputError(what, path=dataset.place(index))
        encoded = self.tokens(tokens, is_split_into_words=True)
        labels = []
        for index, given in enumerate(tags):
            numbers = [self.labels.number(tag, dataset.place(index)) for tag in given]
            words = encoded.word_ids(index)
            firsts = [word is not None and word != before for word, before in zip(words, [None, *words])]
            labels.append([numbers[word] if first else IGNORED for word, first in zip(words, firsts)])
        return self.rows(encoded, labels=labels)

    def reduce(self) -> Callable[[Any, Any], Any]:
        return best_class

    def scores(self) -> Callable[[Any], dict[str, float]]:
        """Precision, recall and F1 of whole entities, and the accuracy of tokens; without entities as for classes."""
        metric = EntityF1(self.labels.names)
        return lambda prediction: metric(*prediction) if self.metric == "f1" else token_scores(prediction)

    def shown_labels(self, labels: Any, ids: Any) -> str:
        pairs = zip(self.reader.convert_ids_to_tokens(ids.tolist()), labels.tolist())
        return " ".join(f"{token}/{self.labels.names[label]}" for token, label in pairs if label != IGNORED)


def token_scores(prediction: Any) -> dict[str, float]:
    """The figures of classes over all tokens with a label."""
    kept = prediction.label_ids != IGNORED
    return class_scores(EvalPrediction(prediction.predictions[kept], prediction.label_ids[kept]))
