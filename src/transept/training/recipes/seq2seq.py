"""A text from a text: translation, summaries, answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from transept.core.auto import AutoModelForSeq2SeqLM
from transept.fields import Count
from transept.training.collate.padding import DataCollatorForSeq2Seq
from transept.training.data.columns import Column, is_mapping, is_text
from transept.training.data.dataset import Row, TableDataset
from transept.training.recipes.base import Options, TextRecipe

SOURCES = ("source", "document", "dialogue", "article", "input", "question", "src")
TARGETS = ("target", "summary", "highlights", "output", "answer", "tgt")


class Seq2SeqOptions(Options):
    """Options of texts from texts.

    Args:
        max_target_length: tokens of a target at most.
        prefix: what stands before each source, such as ``summarize:`` and a space.
    """

    max_target_length: Count = 128
    prefix: str = ""


class Seq2Seq(TextRecipe):
    """A target for each source; a column of translations by language is one of both (``--source en --target de``)."""

    task = "seq2seq"
    tag = "text2text-generation"
    auto = AutoModelForSeq2SeqLM
    options_class = Seq2SeqOptions
    columns = (Column("source", SOURCES, is_text), Column("target", TARGETS, is_text))
    batch_size = 8

    def look(self, dataset: TableDataset, config: Any = None) -> str | None:
        return super().look(unfolded(dataset), config)

    def encode(self, dataset: TableDataset) -> Sequence[Row]:
        dataset = unfolded(dataset)
        sources = [self.options.prefix + text for text in dataset.column(self.found["source"])]
        targets = self.reader(
            text_target=dataset.column(self.found["target"]), truncation=True, max_length=self.options.max_target_length
        )
        return self.rows(self.tokens(sources), labels=targets["input_ids" if "input_ids" in targets else "labels"])

    def collator(self) -> Callable[[list[Any]], Any]:
        return DataCollatorForSeq2Seq(self.reader, model=self.model)

    def shown_labels(self, labels: Any, ids: Any) -> str:
        return str(self.reader.decode(labels[labels >= 0].tolist()))


def unfolded(dataset: TableDataset) -> TableDataset:
    """Rows of one column ``translation`` of texts by language as rows with a column for each language."""
    if dataset.column_names != ["translation"] or not all(map(is_mapping, dataset.column("translation")[:1])):
        return dataset
    rows = [row["translation"] for row in dataset]
    return TableDataset(rows, path=dataset.path, lines=dataset.lines)
