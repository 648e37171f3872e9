"""Answers that people prefer: direct preference optimization of a language model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from transept.core.auto import AutoModelForCausalLM
from transept.fields import Range
from transept.training.data.columns import Column, is_text
from transept.training.data.table import Row, TableDataset
from transept.training.recipes.base import Options, TextRecipe
from transept.training.trainers.preference import NAMES, DataCollatorForPreference, DPOTrainer


class PreferenceOptions(Options):
    """Options of preferences.

    Args:
        beta: how strongly the model may move away from what it was.
        loss_type: ``sigmoid`` (DPO), ``ipo`` or ``simpo``.
        label_smoothing: the share of pairs whose preference is the wrong way round.
    """

    beta: Annotated[float, Range(0, open="(")] = 0.1
    loss_type: Literal["sigmoid", "ipo", "simpo"] = "sigmoid"
    label_smoothing: Annotated[float, Range(0, 0.5, ")")] = 0.0


class Preference(TextRecipe):
    """A prompt, the answer that was chosen, and one that was rejected."""

    task = "preference"
    tag = "text-generation"
    auto = AutoModelForCausalLM
    columns = tuple(Column(name, (name,), is_text, by_kind=False) for name in NAMES)
    options_class = PreferenceOptions
    trainer_class = DPOTrainer
    batch_size = 8

    def take(self, reader: Any, model: Any) -> None:
        super().take(reader, model)
        self.need_pad_token()

    def trainer_options(self) -> dict[str, Any]:
        options = self.options
        return {"beta": options.beta, "loss_type": options.loss_type, "label_smoothing": options.label_smoothing}

    def encode_rows(self, dataset: TableDataset) -> list[Row]:
        columns = [dataset.column(self.found[name]) for name in NAMES]
        return [dict(zip(NAMES, texts)) for texts in zip(*columns)]

    def collator(self) -> Callable[[list[Any]], Any]:
        return DataCollatorForPreference(self.reader, max_length=self.limit)

    def defaults(self, rows: int, parameters: int, *, evaluated: bool) -> dict[str, Any]:
        found = super().defaults(rows, parameters, evaluated=evaluated)
        return found | {"train_sampling_strategy": "random", "include_num_input_tokens_seen": "no", "learning_rate": 1e-6}

    def shown(self, batch: Mapping[str, Any], index: int) -> dict[str, str]:
        rows = len(batch["labels"]) // 2
        found = {}
        for name, row in (("chosen", index), ("rejected", index + rows)):
            ids, labels = batch["input_ids"][row], batch["labels"][row]
            real = batch["attention_mask"][row].bool()
            found["prompt"] = str(self.reader.decode(ids[real & (labels < 0)].tolist()))
            found[name] = str(self.reader.decode(ids[labels >= 0].tolist()))
        return found
