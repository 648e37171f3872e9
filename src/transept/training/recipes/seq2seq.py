"""A text from a text: translation, summaries, answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from transept.core.auto import AutoModelForSeq2SeqLM
from transept.fields import Count
from transept.training.arguments.training import Seq2SeqTrainingArguments
from transept.training.collate.padding import DataCollatorForSeq2Seq
from transept.training.data.columns import Column, is_mapping, is_text
from transept.training.data.table import Row, TableDataset
from transept.training.metrics.base import Metric
from transept.training.metrics.written import Bleu, ChrF, Rouge
from transept.training.recipes.base import Options, TextRecipe, texts_of, written_at_evaluation
from transept.training.trainers.seq2seq import Seq2SeqTrainer

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
        return super().look(unfolded(dataset), config)

    def encode_rows(self, dataset: TableDataset) -> list[Row]:
        dataset = unfolded(dataset)
        sources = [self.options.prefix + text for text in dataset.column(self.found["source"])]
        targets = self.reader(
            text_target=dataset.column(self.found["target"]), truncation=True, max_length=self.options.max_target_length
        )
        return self.rows(self.tokens(sources), labels=targets["input_ids" if "input_ids" in targets else "labels"])

    def collator(self) -> Callable[[list[Any]], Any]:
        return DataCollatorForSeq2Seq(self.reader, model=self.model)

    def scores(self) -> Callable[[Any], dict[str, float]]:
        def scores(prediction: Any) -> dict[str, float]:
            pair = texts_of(self.reader, prediction.predictions), texts_of(self.reader, prediction.label_ids)
            return {name: value for metric in self.metrics for name, value in metric()(*pair).items()}

        return scores

    def defaults(self, rows: int, parameters: int, *, evaluated: bool) -> dict[str, Any]:
        found = super().defaults(rows, parameters, evaluated=evaluated)
        return found | written_at_evaluation(self.model, self.options.max_target_length)

    def shown_labels(self, labels: Any, ids: Any) -> str:
        return str(self.reader.decode(labels[labels >= 0].tolist()))


class Translation(Seq2Seq):
    """A text in another language; translations are compared by BLEU and chrF."""

    task = tag = "translation"
    metrics = (Bleu, ChrF)


class Summarization(Seq2Seq):
    """A summary of a text; summaries are compared by ROUGE."""

    task = tag = "summarization"
    metrics = (Rouge,)


def unfolded(dataset: TableDataset) -> TableDataset:
    """Rows of one column ``translation`` of texts by language as rows with a column for each language."""
    if dataset.column_names != ["translation"] or not is_mapping(dataset[0]["translation"]):
        return dataset
    languages = dict.fromkeys(language for texts in dataset.values("translation") for language in texts)
    return TableDataset(Translations(dataset), [*languages], path=dataset.path, lines=dataset.lines)


class Translations(Sequence[Row]):
    """The texts by language of each row."""

    def __init__(self, dataset: TableDataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[index]["translation"]
