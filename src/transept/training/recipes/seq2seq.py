"""A text from a text: translation, summaries, answers."""

from __future__ import annotations

from operator import itemgetter
from typing import Any, ClassVar

from transept.core.auto import AutoModelForSeq2SeqLM
from transept.fields import Count
from transept.metrics.base import Metric
from transept.metrics.texts import Bleu, ChrF, Rouge
from transept.tables.dataset import Row, TableDataset
from transept.training.arguments.training import Seq2SeqTrainingArguments
from transept.training.collate.padding import DataCollatorForSeq2Seq
from transept.training.data.columns import Column, is_mapping, is_text
from transept.training.recipes.base import LazyRows, Options
from transept.training.recipes.text import TextRecipe, rows_from, texts_of, written_at_evaluation
from transept.training.trainers.seq2seq import Seq2SeqTrainer

SOURCES = ("source", "document", "dialogue", "article", "input", "question", "src")
TARGETS = ("target", "summary", "highlights", "output", "answer", "tgt")


class Seq2SeqOptions(Options):
    max_target_length: Count = 128  # tokens of a target at most
    prefix: str = ""  # what stands before each source, such as `summarize: `


class Seq2Seq(TextRecipe):
    """A target for each source; a column of translations by language is one of both (``--source en --target de``).

    Evaluations have the model write a text for each source, and compare it with the target.
    """

    task = "seq2seq"
    tag = "text2text-generation"
    auto = AutoModelForSeq2SeqLM
    options_class = Seq2SeqOptions
    trainer_class = Seq2SeqTrainer
    arguments_class = Seq2SeqTrainingArguments
    columns = (Column("source", SOURCES, is_text), Column("target", TARGETS, is_text))
    metrics: ClassVar[tuple[type[Metric], ...]] = (Bleu, ChrF, Rouge)
    batch_size = 8

    def look(self, dataset: TableDataset, config: Any = None) -> str | None:
        return super().look(by_language(dataset), config)

    def encode_rows(self, dataset: TableDataset) -> list[Row]:
        dataset, longest = by_language(dataset), self.options.max_target_length
        sources = [self.options.prefix + text for text in self.column(dataset, "source")]
        targets = self.reader(text_target=self.column(dataset, "target"), truncation=True, max_length=longest)
        return rows_from(self.tokens(sources), labels=targets["input_ids" if "input_ids" in targets else "labels"])

    def collator(self) -> Any:
        return DataCollatorForSeq2Seq(self.reader, model=self.model)

    def scores(self, predicted: Any, right: Any) -> dict[str, float]:
        pair = texts_of(self.reader, predicted), texts_of(self.reader, right)
        return {name: value for metric in self.metrics for name, value in metric()(*pair).items()}

    def arguments(self, rows: int) -> dict[str, Any]:
        return super().arguments(rows) | written_at_evaluation(self.model, self.options.max_target_length)


class Translation(Seq2Seq):
    """A text in another language; translations are compared by BLEU and chrF."""

    task = tag = "translation"
    metrics = (Bleu, ChrF)


class Summarization(Seq2Seq):
    """A summary of a text; summaries are compared by ROUGE."""

    task = tag = "summarization"
    metrics = (Rouge,)


def by_language(dataset: TableDataset) -> TableDataset:
    """Rows of one column ``translation`` of texts by language as rows with a column for each language."""
    if dataset.column_names != ["translation"] or not is_mapping(dataset[0]["translation"]):
        return dataset
    languages = dict.fromkeys(language for texts in dataset.values("translation") for language in texts)
    rows = LazyRows(dataset, itemgetter("translation"))
    return TableDataset(rows, [*languages], path=dataset.path, lines=dataset.lines)
