"""Pairs of texts: a text from a text, sentences that are alike, preferred answers, and answers in a context."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from transept.config.fields import Count, Positive, Range
from transept.core.auto import AutoModelForCausalLM, AutoModelForQuestionAnswering, AutoModelForSeq2SeqLM
from transept.errors import refuse
from transept.metrics.base import Metric
from transept.metrics.texts import AnswerF1, Bleu, ChrF, Rouge
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
MOST_ANSWER_TOKENS = 30
# The first and last character of each token of a window, and `None` for those that are not of the context.
Offsets = Sequence[tuple[int, int] | None]
# Rows hold two texts, so that there is no one length to group by, nor one number of tokens.
UNGROUPED = {"train_sampling_strategy": "random", "include_num_input_tokens_seen": "no"}


class Seq2SeqOptions(Options):
    max_target_length: Count = 128  # tokens of a target at most
    prefix: str = ""  # what stands before each source, such as `summarize: `


class Seq2Seq(TextRecipe):
    """A target for each source; a column of translations by language is one of both (``--source en --target de``)."""

    task = "seq2seq"
    pipeline_tag = "text2text-generation"
    model_class = AutoModelForSeq2SeqLM
    options_class = Seq2SeqOptions
    trainer_class = Seq2SeqTrainer
    arguments_class = Seq2SeqTrainingArguments
    columns = (Column("source", SOURCES, is_text), Column("target", TARGETS, is_text))
    metrics: ClassVar[tuple[type[Metric], ...]] = (Bleu, ChrF, Rouge)  # of what the model writes for the sources
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


class QuestionOptions(Options):
    stride: int = 64  # tokens that windows over a long text share


class QuestionAnswering(TextRecipe):
    """Answers in windows over a context (Rajpurkar et al. 2016); the label of other windows is the first token."""

    task = pipeline_tag = "question-answering"
    model_class = AutoModelForQuestionAnswering
    options_class = QuestionOptions
    columns = (
        Column("question", ("question", "query"), is_text),
        Column("context", ("context", "passage", "document"), is_text),
        Column("answers", ("answers", "answer"), is_mapping),
    )
    metric = "f1"
    has_default_model = True
    batch_size = 16

    def encode(self, dataset: TableDataset) -> TableDataset:
        # Of the rows that were encoded last, which are those to evaluate: windows with the numbers of their rows.
        self.dataset, self.windows, self.right_answers = dataset, list[tuple[int, Offsets]](), list[list[str]]()
        return super().encode(dataset)

    def encode_rows(self, dataset: TableDataset) -> Iterable[Row]:
        columns = [self.column(dataset, column.role) for column in self.columns]
        options: dict[str, Any] = {"truncation": "only_second", "max_length": self.limit}
        options |= {"stride": min(self.options.stride, self.limit // 4), "return_overflowing_tokens": True}
        for index, (question, context, answer) in enumerate(zip(*columns)):
            texts, start, end = read_answer(answer, context, dataset.place(index))
            self.right_answers.append(texts)
            encoded = self.processor([question], [context], return_offsets_mapping=True, **options)
            for window, pairs in enumerate(encoded["offset_mapping"]):
                sequences = encoded.sequence_ids(window)
                offsets = [pair if sequence == 1 else None for pair, sequence in zip(pairs, sequences)]
                self.windows.append((len(self.right_answers) - 1, offsets))
                # The tokens of the answer; twice the first token where the window lacks a part of it.
                inside = [(token, at) for token, at in enumerate(offsets) if at and at[0] < end and at[1] > start]
                is_whole = inside and inside[0][1][0] <= start and inside[-1][1][1] >= end
                first, last = (inside[0][0], inside[-1][0]) if is_whole else (0, 0)
                names = [name for name in self.processor.model_input_names if name in encoded]
                inputs = {name: encoded[name][window] for name in names}
                yield inputs | {"start_positions": first, "end_positions": last}

    def compute_metrics(self, predictions: Any, labels: Any) -> dict[str, float]:
        """Exact matches, and the F1 of words, of the best span of all windows of each row; ``labels`` are tokens."""
        contexts, answers = self.column(self.dataset, "context"), [""] * len(self.right_answers)
        best = [-np.inf] * len(answers)
        for start, end, (row, offsets) in zip(predictions[0], predictions[1], self.windows):
            score, span = best_span(start, end, offsets)
            if score > best[row]:
                best[row], answers[row] = score, contexts[row][slice(*span)]
        return {name: percent / 100 for name, percent in AnswerF1()(answers, self.right_answers).items()}

    def describe(self, batch: Mapping[str, Any], index: int) -> dict[str, str]:
        start, end = int(batch["start_positions"][index]), int(batch["end_positions"][index])
        answer = self.decode(batch["input_ids"][index][start : end + 1])
        return super().describe(batch, index) | {"answer": answer if start else "(not in this window)"}


def read_answer(answer: Mapping[str, Any], context: str, place: str) -> tuple[list[str], int, int]:
    """The right texts, empty for no answer, and the characters of the first (``InputError``: it is not there)."""
    texts, starts = answer.get("text", []), answer.get("answer_start", [])
    texts = [texts] if isinstance(texts, str) else list(texts) or [""]
    starts = [starts] if isinstance(starts, int) else starts
    if not len(starts):
        return texts, 0, 0
    start, end = starts[0], starts[0] + len(texts[0])
    what = f"the answer {texts[0]!r:.60} does not stand at character {start} of its context"
    refuse(context[start:end] != texts[0], f"{what}, but {context[start:end]!r:.60}.", path=place)
    return texts, start, end


def best_span(start: Any, end: Any, offsets: Offsets) -> tuple[float, tuple[int, int]]:
    """The score of a window's best answer, and its characters, which are none where the first token is likelier."""
    tokens = np.array([token for token, at in enumerate(offsets) if at is not None and at[1] > at[0]], dtype=int)
    if not len(tokens):
        return -np.inf, (0, 0)
    sums = start[tokens][:, None] + end[tokens][None, :]
    is_span = np.triu(np.tri(len(tokens), k=MOST_ANSWER_TOKENS - 1, dtype=bool))  # forward, and not too long
    sums = np.where(is_span, sums, -np.inf)
    first, last = np.unravel_index(int(sums.argmax()), sums.shape)
    score, no_answer = float(sums[first, last]), float(start[0] + end[0])
    span = (offsets[tokens[first]][0], offsets[tokens[last]][1]) if score >= no_answer else (0, 0)
    return max(score, no_answer), span
