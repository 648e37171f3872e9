"""Classes of texts or of pairs of texts, several classes at once, or a number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from transept.core.auto import AutoModelForSequenceClassification
from transept.training.collate.padding import DataCollatorWithPadding
from transept.training.data.columns import LABEL, TEXT, Column, find_pair, is_text
from transept.training.data.dataset import Row, TableDataset
from transept.training.recipes.base import TextRecipe
from transept.training.recipes.classes import ClassRecipe


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

    def encode(self, dataset: TableDataset) -> Sequence[Row]:
        self.need_pad_token()
        pairs = dataset.column(self.found["text_pair"]) if "text_pair" in self.found else None
        return self.rows(self.tokens(dataset.column(self.found["text"]), pairs), labels=self.numbers(dataset))

    def collator(self) -> Callable[[list[Any]], Any]:
        return DataCollatorWithPadding(self.reader)

    def shown_labels(self, labels: Any, ids: Any) -> str:
        found = labels.tolist()
        return self.labels.id2label.get(found, str(found)) if isinstance(found, int) else str(found)


RECIPE = TextClassification
