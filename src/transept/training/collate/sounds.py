"""Collators for sounds: waves or spectrograms of several lengths, with classes, transcripts, or frames that are hidden."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from transept.objectives.classification import IGNORED
from transept.training.collate.padding import PaddingCollator, labels_of
from transept.training.collate.rows import DrawingCollator, Row, checked_rows, filled, listed, multiple, padded


@dataclass
class DataCollatorForAudio(PaddingCollator):
    """Pads sounds by their feature extractor, and labels that are lists by ``label_pad_token_id``.

    Args:
        tokenizer: the feature extractor, or a processor with one.
        padding, max_length, pad_to_multiple_of, return_tensors: see :class:`DataCollatorWithPadding`.
        label_pad_token_id: the label of padding.
        decoder_start_token_id: a token that is dropped where all rows' labels begin with it, since models put it there.
    """

    tokenizer: Any
    padding: bool | str = True
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    label_pad_token_id: int = IGNORED
    decoder_start_token_id: int | None = None
    return_tensors: str = "pt"

    def __post_init__(self) -> None:
        self.tokenizer = getattr(self.tokenizer, "feature_extractor", self.tokenizer)

    def collate(self, features: Any) -> Any:
        rows, labels = self.split(features)
        batch = self.pad(rows)
        if labels is None:
            return batch
        if not isinstance(listed(labels[0]), list | tuple):
            batch["labels"] = labels_of([{"labels": label} for label in labels], "labels")
            return batch
        start = self.decoder_start_token_id
        lists = [listed(label) for label in labels]
        if start is not None and all(isinstance(row, list | tuple) and len(row) and row[0] == start for row in lists):
            lists = [row[1:] for row in lists]
        batch["labels"] = filled("labels", lists, fill=self.label_pad_token_id)
        return batch


@dataclass
class DataCollatorForWav2Vec2Pretraining(DrawingCollator):
    """Pads waves, and draws which frames are hidden and what each is told from (Baevski et al. 2020).

    The batch has the model's ``mask_time_indices`` (B, T) and ``sampled_negative_indices`` (B, T, K).

    Args:
        model: one with ``sample_targets``, whose config says how much is hidden and how many negatives there are.
        feature_extractor: what pads.
        padding, max_length, pad_to_multiple_of: see :class:`DataCollatorWithPadding`.
        return_tensors: ``pt`` or ``np``.
        seed, generator: where random numbers come from; see :class:`~transept.training.collate.rows.DrawingCollator`.

    Raises:
        InputError: a row too short for two hidden frames.
    """

    model: Any
    feature_extractor: Any
    padding: bool | str = True
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    generator: torch.Generator | None = field(default=None, repr=False, compare=False)
    seed: int | None = None
    return_tensors: str = "pt"

    def collate(self, features: Any) -> Any:
        rows: list[Row] = checked_rows(features)
        length = None if self.max_length is None else multiple(self.max_length, self.pad_to_multiple_of)
        batch = padded(self.feature_extractor, rows, self.padding, length, self.pad_to_multiple_of)
        targets = self.model.sample_targets(batch["input_values"], batch.get("attention_mask"), self.generator)
        for name, value in targets.items():
            batch[name] = value
        return batch
