"""Pipelines over text: tokenizing a whole window at once, and padding rows into batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from transept.backbone import Model
from transept.errors import TranseptError
from transept.pipelines.base import Pipeline, attempt, check_text
from transept.pipelines.batching import Sample

O = TypeVar("O")  # noqa: E741 (the options of a task, a dataclass)


class TextPipeline(Pipeline[O]):
    """A task over text.

    Args:
        model: in evaluation mode.
        tokenizer: of the same checkpoint.
        options, batching: see :class:`Pipeline`.
    """

    def __init__(self, model: Model, tokenizer: Any, options: O, **batching: Any) -> None:
        super().__init__(model, options, **batching)
        self.tokenizer = tokenizer

    @property
    def max_length(self) -> int:
        """Positions of a text at most: what the tokenizer and the model both allow."""
        limit = min(self.tokenizer.model_max_length, 2**31)
        positions = getattr(self.model.config, "max_position_embeddings", limit)
        return int(min(limit, positions))

    def prepare(self, items: Sequence[Any], options: O) -> list[list[Sample] | TranseptError]:
        """One row a text, all tokenized in one call."""
        checked = [attempt(check_text, item) for item in items]
        texts = [text for text in checked if isinstance(text, str)]
        rows = iter(self.tokenizer.encode_ids(texts, truncation=True, max_length=self.max_length))
        return [[text_sample(next(rows))] if isinstance(text, str) else text for text in checked]

    def collate(self, samples: Sequence[Sample]) -> dict[str, Tensor]:
        """Rows as (B, T) tensors on the model's device; no mask where nothing is padded."""
        side = self.tokenizer.padding_side
        pads = {"input_ids": self.tokenizer.pad_token_id or 0, "token_type_ids": self.tokenizer.pad_token_type_id}
        return collate(samples, pads, side, self.model.device)


def text_sample(ids: list[int], **more: list[int]) -> Sample:
    """A row of token ids."""
    return Sample({"input_ids": ids, **more}, len(ids))


def collate(samples: Sequence[Sample], pads: dict[str, int], side: str, device: torch.device) -> dict[str, Tensor]:
    """Pad integer rows of each name to (B, T), with an ``attention_mask`` where rows differ in length.

    Args:
        samples: rows with the same names.
        pads: what to fill with, by name; 0 for others.
        side: ``left`` or ``right``.
        device: where the tensors go.
    """
    longest = max(sample.length for sample in samples)
    columns: dict[str, list[list[int]]] = {name: [] for name in samples[0].inputs}
    mask: list[list[int]] = []
    for sample in samples:
        missing = longest - sample.length
        for name, values in sample.inputs.items():
            filler = [pads.get(name, 0)] * missing
            columns[name].append([*filler, *values] if side == "left" else [*values, *filler])
        mask.append([0] * missing + [1] * sample.length if side == "left" else [1] * sample.length + [0] * missing)
    batch = {name: torch.tensor(rows, device=device) for name, rows in columns.items()}
    if any(sample.length < longest for sample in samples):
        batch["attention_mask"] = torch.tensor(mask, device=device)
    return batch
