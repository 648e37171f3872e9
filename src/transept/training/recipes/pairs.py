"""Pairs of texts: sentences that belong together or are alike by a score, and answers of which one is preferred."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from transept.core.auto import AutoModelForCausalLM
from transept.fields import Count, Positive, Range
from transept.tables.dataset import Row, TableDataset
from transept.training.collate.padding import DataCollatorForPairs
from transept.training.data.columns import Column, is_text
from transept.training.data.labels import is_number
from transept.training.recipes.base import Options
from transept.training.recipes.text import TextRecipe, rows_from
from transept.training.trainers.pairs import NAMES, DataCollatorForPreference, DPOTrainer, SentenceTrainer

# Rows hold two texts, so that there is no one length to group by, nor one number of tokens.
UNGROUPED = {"train_sampling_strategy": "random", "include_num_input_tokens_seen": "no"}


class EmbeddingOptions(Options):
    scale: Positive = 20.0  # what cosines are multiplied by; the inverse of a temperature
    mini_batch_size: Count | None = None  # texts that are embedded at a time, which changes no result


class SentenceEmbedding(TextRecipe):
    """Two texts a row that mean the same, each told from the others of its batch; or alike by a score a row."""

    task = "sentence-embedding"
    tag = "sentence-similarity"
    columns = (
        Column("text", ("anchor", "query", "sentence1", "text1"), is_text),
        Column("text_pair", ("positive", "passage", "sentence2", "text2"), is_text),
        Column("label", ("score", "similarity", "label", "labels"), is_number, optional=True, by_kind=False),
    )
    options_class = EmbeddingOptions
    collator_class = DataCollatorForPairs
    trainer_class = SentenceTrainer
    has_default_model = True

    def trainer_options(self) -> dict[str, Any]:
        loss = "cosent" if "label" in self.found else "multiple_negatives"
        options = self.options
        return {"loss": loss, "options": {"scale": options.scale}, "mini_batch_size": options.mini_batch_size}

    def encode_rows(self, dataset: TableDataset) -> Iterable[Row]:
        first, second = (rows_from(self.tokens(self.column(dataset, role))) for role in ("text", "text_pair"))
        scores = map(float, self.column(dataset, "label")) if "label" in self.found else [None] * len(dataset)
        for anchor, positive, score in zip(first, second, scores):
            yield {"anchor": anchor, "positive": positive} | ({} if score is None else {"score": score})

    def arguments(self, rows: int) -> dict[str, Any]:
        return UNGROUPED

    def shown(self, batch: Mapping[str, Any], index: int) -> dict[str, str]:
        words = {}
        for name in ("anchor", "positive"):
            ids, mask = batch[f"{name}_input_ids"][index], batch[f"{name}_attention_mask"][index]
            words[name] = str(self.reader.decode(ids[mask.bool()].tolist()))
        return words | ({"score": str(float(batch["labels"][index]))} if "labels" in batch else {})


class PreferenceOptions(Options):
    beta: Positive = 0.1  # how strongly the model is held to what it was
    loss_type: Literal["sigmoid", "ipo", "simpo"] = "sigmoid"  # sigmoid is DPO's
    label_smoothing: Annotated[float, Range(0, 0.5, ")")] = 0.0  # the share of pairs whose preference is wrong


class Preference(TextRecipe):
    """A prompt, the answer that people chose, and one that they rejected: direct preference optimization."""

    task = "preference"
    tag = "text-generation"
    auto = AutoModelForCausalLM
    columns = tuple(Column(name, (name,), is_text, by_kind=False) for name in NAMES)
    options_class = PreferenceOptions
    trainer_class = DPOTrainer
    batch_size = 8
    needs_pad_token = True

    def trainer_options(self) -> dict[str, Any]:
        return {**self.options.own()}

    def encode_rows(self, dataset: TableDataset) -> Iterable[Row]:
        return rows_from({name: self.column(dataset, name) for name in NAMES})

    def collator(self) -> Any:
        return DataCollatorForPreference(self.reader, max_length=self.limit)

    def arguments(self, rows: int) -> dict[str, Any]:
        return UNGROUPED | {"learning_rate": 1e-6}

    def shown(self, batch: Mapping[str, Any], index: int) -> dict[str, str]:
        words = {}
        for name, row in (("chosen", index), ("rejected", index + len(batch["labels"]) // 2)):
            ids, labels = batch["input_ids"][row], batch["labels"][row]
            is_prompt = batch["attention_mask"][row].bool() & (labels < 0)
            words["prompt"] = str(self.reader.decode(ids[is_prompt].tolist()))
            words[name] = str(self.reader.decode(ids[labels >= 0].tolist()))
        return words
