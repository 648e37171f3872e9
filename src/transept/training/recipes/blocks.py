"""Texts as blocks of tokens, for language models."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from transept.errors import InputError
from transept.training.data.columns import TEXT, Column
from transept.training.data.dataset import Row, TableDataset
from transept.training.recipes.base import TextRecipe


def blocks_of(documents: Sequence[Sequence[int]], size: int) -> list[list[int]]:
    """The documents end to end, cut into blocks of ``size`` tokens; the last one may be shorter, but is not a single token."""
    stream = list(chain.from_iterable(documents))
    blocks = [stream[start : start + size] for start in range(0, len(stream), size)]
    return [block for block in blocks if len(block) > 1]


class BlockRecipe(TextRecipe):
    """A recipe of language models over running text: all texts, with the end of text between them, in blocks.

    The held-out rows are blocks: a text of one piece could not be split otherwise.
    """

    columns: tuple[Column, ...] = (TEXT,)
    sample_by = "document"
    splits_encoded = True
    batch_size = 16

    def encode(self, dataset: TableDataset) -> Sequence[Row]:
        self.need_pad_token()
        encoded = self.reader(dataset.column(self.found["text"]), add_special_tokens=False, verbose=False)["input_ids"]
        ends = [self.reader.eos_token_id] if self.reader.eos_token_id is not None and len(encoded) > 1 else []
        blocks = blocks_of([[*ids, *ends] for ids in encoded], self.limit - self.framed)
        if not blocks:
            raise InputError("the texts hold fewer than two tokens.", path=dataset.path)
        return [self.block(block) for block in blocks]

    framed = 0  # special tokens around a block

    def block(self, ids: list[int]) -> Row:
        """A block as a row for the model."""
        return {"input_ids": ids}

    def derived(self, metrics: Mapping[str, float]) -> dict[str, float]:
        loss = metrics.get("eval_loss")
        return {} if loss is None or loss > 700 else {"eval_perplexity": math.exp(loss)}

    def scores(self) -> Callable[[Any], dict[str, float]] | None:
        return None
