"""A label for each token of a text, such as entities in the BIO scheme."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from transept.core.auto import AutoModelForTokenClassification
from transept.errors import InputError
from transept.objectives.classification import IGNORED
from transept.training.collate.padding import DataCollatorForTokenClassification
from transept.training.data.columns import Column, is_labels, is_texts
from transept.training.data.dataset import Row, TableDataset
from transept.training.data.labels import Labels, token_labels
from transept.training.recipes.base import TextRecipe
from transept.training.recipes.classes import class_settings, known_classes


class TokenClassification(TextRecipe):
    """A label for the first piece of each token; others, and special tokens, are left out of the loss and of the metrics."""

    task = tag = "token-classification"
    auto = AutoModelForTokenClassification
    columns = (
        Column("tokens", ("tokens", "words"), is_texts),
        Column("tags", ("tags", "ner_tags", "ner", "pos_tags", "pos", "labels", "label"), is_labels),
    )
    metric = "f1"
    has_default_model = True
    labels: Labels

    def look(self, dataset: TableDataset, config: Any = None) -> str | None:
        told = super().look(dataset, config)
        self.labels = token_labels(dataset, self.found["tags"], known_classes(config))
        return told

    def settings(self) -> dict[str, Any]:
        return class_settings(self.labels)

    def encode(self, dataset: TableDataset) -> Sequence[Row]:
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

    def collator(self) -> Callable[[list[Any]], Any]:
        return DataCollatorForTokenClassification(self.reader)

    def reduce(self) -> Callable[[Any, Any], Any]:
        return lambda logits, labels: logits.argmax(-1)

    def scores(self) -> Callable[[Any], dict[str, float]]:
        """Precision, recall and F1 of whole entities, as in CoNLL-2003, and the accuracy of tokens."""
        names = self.labels.names

        def scores(prediction: Any) -> dict[str, float]:
            kept = [labels != IGNORED for labels in prediction.label_ids]
            right = [[names[tag] for tag in tags[held]] for tags, held in zip(prediction.label_ids, kept)]
            said = [[names[tag] for tag in tags[held]] for tags, held in zip(prediction.predictions, kept)]
            pairs = [(one, other) for a, b in zip(said, right) for one, other in zip(a, b)]
            accuracy = sum(one == other for one, other in pairs) / max(len(pairs), 1)
            found, wanted = ({(row, *span) for row, tags in enumerate(each) for span in spans(tags)} for each in (said, right))
            both = len(found & wanted)
            precision, recall = both / max(len(found), 1), both / max(len(wanted), 1)
            f1 = 2 * both / max(len(found) + len(wanted), 1)
            return {"f1": f1, "precision": precision, "recall": recall, "accuracy": accuracy}

        return scores

    def shown_labels(self, labels: Any, ids: Any) -> str:
        pairs = zip(self.reader.convert_ids_to_tokens(ids.tolist()), labels.tolist())
        return " ".join(f"{token}/{self.labels.names[label]}" for token, label in pairs if label != IGNORED)


def spans(tags: Sequence[str]) -> list[tuple[int, int, str]]:
    """The entities of a text: where they begin and end, and their kinds.

    An entity begins with ``B-``, ``S-`` or a change of kind, and goes on with ``I-`` or ``E-`` of its kind; a label without
    such a prefix is an entity of one token.
    """
    found: list[tuple[int, int, str]] = []
    for place, tag in enumerate(tags):
        prefix, dash, kind = tag.partition("-")
        inside = dash and prefix in ("I", "E", "L") and found and found[-1][1] == place and found[-1][2] == kind
        if inside:
            found[-1] = (found[-1][0], place + 1, kind)
        elif tag != "O":
            found.append((place, place + 1, kind if dash else tag))
    return found


RECIPE = TokenClassification
