"""Pairs of texts: a text from a text, sentences that are alike, and answers of which one is preferred."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Annotated, Any, ClassVar, Literal

from transept.core.auto import AutoModelForCausalLM, AutoModelForSeq2SeqLM
from transept.fields import Count, Positive, Range
from transept.metrics.base import Metric
from transept.metrics.texts import Bleu, ChrF, Rouge
from transept.tables.dataset import Row, TableDataset
from transept.training.arguments.training import Seq2SeqTrainingArguments
from transept.training.collate.padding import DataCollatorForPairs, DataCollatorForSeq2Seq
from transept.training.data.columns import Column, is_mapping, is_text
from transept.training.data.labels import is_number
from transept.training.recipes.base import LazyRows, Options, TextRecipe, rows_from, texts_of
from transept.training.trainers.pairs import NAMES, DataCollatorForPreference, DPOTrainer, SentenceTrainer
from transept.training.trainers.seq2seq import Seq2SeqTrainer

SOURCES = ("source", "document", "dialogue", "article", "input", "question", "src")
TARGETS = ("target", "summary", "highlights", "output", "answer", "tgt")
# Rows hold two texts, so that there is no one length to group by, nor one number of tokens.
UNGROUPED = {"train_sampling_strategy": "random", "include_num_input_tokens_seen": "no"}


class Seq2SeqOptions(Options):
    max_target_length: Count = 128  # tokens of a target at most
    prefix: str = ""  # what stands before each source, such as `summarize: `


class Seq2Seq(TextRecipe):
    """A target for each source; a column of translations by language is one of both (``--source en --target de``).

    Evaluations have the model write a text for each source, and compare it with the target.
    """

    task = "seq2seq"
    pipeline_tag = "text2text-generation"
    model_class = AutoModelForSeq2SeqLM
    options_class = Seq2SeqOptions
    trainer_class = Seq2SeqTrainer
    arguments_class = Seq2SeqTrainingArguments
    columns = (Column("source", SOURCES, is_text), Column("target", TARGETS, is_text))
    metrics: ClassVar[tuple[type[Metric], ...]] = (Bleu, ChrF, Rouge)
    batch_size = 8

    def inspect(self, dataset: TableDataset, config: Any = None) -> str | None:
        self.longest_output = self.options.max_target_length
        return super().inspect(by_language(dataset), config)

    def encode_rows(self, dataset: TableDataset) -> list[Row]:
        dataset, longest = by_language(dataset), self.options.max_target_length
        sources = [self.options.prefix + text for text in self.column(dataset, "source")]
        targets = self.processor(text_target=self.column(dataset, "target"), truncation=True, max_length=longest)
        return rows_from(self.tokens(sources), labels=targets["input_ids" if "input_ids" in targets else "labels"])

    def collator(self) -> Any:
        return DataCollatorForSeq2Seq(self.processor, model=self.model)

    def compute_metrics(self, predictions: Any, labels: Any) -> dict[str, float]:
        texts = texts_of(self.processor, predictions), texts_of(self.processor, labels)
        return {name: value for metric in self.metrics for name, value in metric()(*texts).items()}


class Translation(Seq2Seq):
    """A text in another language; translations are compared by BLEU and chrF."""

    task = pipeline_tag = "translation"
    metrics = (Bleu, ChrF)


class Summarization(Seq2Seq):
    """A summary of a text; summaries are compared by ROUGE."""

    task = pipeline_tag = "summarization"
    metrics = (Rouge,)


def by_language(dataset: TableDataset) -> TableDataset:
    """Rows of one column ``translation`` of texts by language as rows with a column for each language."""
    if dataset.column_names != ["translation"] or not is_mapping(dataset[0]["translation"]):
        return dataset
    languages = dict.fromkeys(language for texts in dataset.values("translation") for language in texts)
    rows = LazyRows(itemgetter("translation"), dataset)
    return TableDataset(rows, [*languages], path=dataset.path, lines=dataset.lines)


class EmbeddingOptions(Options):
    scale: Positive = 20.0  # what cosines are multiplied by; the inverse of a temperature
    mini_batch_size: Count | None = None  # texts that are embedded at a time, which changes no result


class SentenceEmbedding(TextRecipe):
    """Two texts a row that mean the same, each told from the others of its batch; or alike by a score a row."""

    task = "sentence-embedding"
    pipeline_tag = "sentence-similarity"
    columns = (
        Column("text", ("anchor", "query", "sentence1", "text1"), is_text),
        Column("text_pair", ("positive", "passage", "sentence2", "text2"), is_text),
        Column("label", ("score", "similarity", "label", "labels"), is_number, optional=True, by_kind=False),
    )
    options_class = EmbeddingOptions
    collator_class = DataCollatorForPairs
    trainer_class = SentenceTrainer
    trainer_settings = UNGROUPED
    has_default_model = True

    def trainer_options(self) -> dict[str, Any]:
        loss, size = "cosent" if "label" in self.column_names else "multiple_negatives", self.options.mini_batch_size
        return {"loss": loss, "options": {"scale": self.options.scale}, "mini_batch_size": size}

    def encode_rows(self, dataset: TableDataset) -> list[Row]:
        anchors, positives = (self.tokens(self.column(dataset, role)) for role in ("text", "text_pair"))
        columns: dict[str, Any] = {"anchor": rows_from(anchors), "positive": rows_from(positives)}
        if "label" in self.column_names:
            columns["score"] = [float(score) for score in self.column(dataset, "label")]
        return rows_from(columns)

    def describe(self, batch: Mapping[str, Any], index: int) -> dict[str, str]:
        texts = {}
        for name in ("anchor", "positive"):
            ids, mask = batch[f"{name}_input_ids"][index], batch[f"{name}_attention_mask"][index]
            texts[name] = self.decode(ids[mask.bool()])
        return texts | ({"score": str(float(batch["labels"][index]))} if "labels" in batch else {})


class PreferenceOptions(Options):
    beta: Positive = 0.1  # how strongly the model is held to what it was
    loss_type: Literal["sigmoid", "ipo", "simpo"] = "sigmoid"  # sigmoid is DPO's
    label_smoothing: Annotated[float, Range(0, 0.5, ")")] = 0.0  # the share of pairs whose preference is wrong


class Preference(TextRecipe):
    """A prompt, the answer that people chose, and one that they rejected: direct preference optimization."""

    task = "preference"
    pipeline_tag = "text-generation"
    model_class = AutoModelForCausalLM
    columns = tuple(Column(name, (name,), is_text, by_kind=False) for name in NAMES)
    options_class = PreferenceOptions
    trainer_class = DPOTrainer
    trainer_settings = UNGROUPED | {"learning_rate": 1e-6}
    batch_size = 8
    needs_pad_token = True

    def trainer_options(self) -> dict[str, Any]:
        return dict(self.options.of_task())

    def encode_rows(self, dataset: TableDataset) -> Iterable[Row]:
        return rows_from({name: self.column(dataset, name) for name in NAMES})

    def collator(self) -> Any:
        return DataCollatorForPreference(self.processor, max_length=self.limit)

    def describe(self, batch: Mapping[str, Any], index: int) -> dict[str, str]:
        texts = dict[str, str]()
        for name, row in (("chosen", index), ("rejected", index + len(batch["labels"]) // 2)):
            ids, labels = batch["input_ids"][row], batch["labels"][row]
            is_prompt = batch["attention_mask"][row].bool() & (labels < 0)
            texts |= {"prompt": self.decode(ids[is_prompt]), name: self.decode(ids[labels >= 0])}
        return texts
