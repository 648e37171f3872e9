"""Texts as blocks of tokens, for language models."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transept.errors import InputError
from transept.tables.arrow import RowWriter
from transept.training.data.columns import TEXT, Column
from transept.training.data.table import Row, TableDataset
from transept.training.recipes.base import TextRecipe

WINDOW = 2**18  # characters of a text that are encoded at once
OVERLAP = 2**12  # of one window and the next
AGREED = 8  # tokens on which two windows agree where one takes over from the other


class BlockRecipe(TextRecipe):
    """A recipe of language models over running text: all texts, with the end of text between them, in blocks.

    The held-out rows are blocks: a text of one piece could not be split otherwise.
    """

    columns: tuple[Column, ...] = (TEXT,)
    sample_by = "part"
    splits_encoded = True
    batch_size = 16
    framed = 0  # special tokens around a block

    def encode(self, dataset: TableDataset) -> TableDataset:
        self.need_pad_token()
        writer = RowWriter()
        for block in blocks_of(self.tokens_of_texts(dataset), self.limit - self.framed):
            writer.add(self.block(block))
        if not writer.columns:
            raise InputError("the texts hold fewer than two tokens.", path=dataset.path)
        return TableDataset(writer.finish(), list(writer.columns), path=dataset.path)

    def tokens_of_texts(self, dataset: TableDataset) -> Iterator[NDArray[Any]]:
        """The tokens of all texts, some at a time, with the end of text behind each where there are several."""
        column, end = self.found["text"], self.reader.eos_token_id
        if dataset.is_one_text:
            yield from tokens_of(self.reader, dataset.values(column))
            return
        ends = [end] if end is not None and len(dataset) > 1 else []
        for chunk in dataset.chunks():
            texts = chunk.column(column)
            short = [text if len(text) <= WINDOW else "" for text in texts]
            encoded = self.reader(short, add_special_tokens=False, verbose=False)["input_ids"]
            for text, ids in zip(texts, encoded):
                yield from [np.array(ids, np.int32)] if len(text) <= WINDOW else tokens_of(self.reader, [text])
                yield np.array(ends, np.int32)

    def block(self, ids: list[int]) -> Row:
        """A block as a row for the model."""
        return {"input_ids": ids}

    def derived(self, metrics: Mapping[str, float]) -> dict[str, float]:
        loss = metrics.get("eval_loss")
        return {} if loss is None or loss > 700 else {"eval_perplexity": math.exp(loss)}


def blocks_of(tokens: Iterable[NDArray[Any]], size: int) -> Iterator[list[int]]:
    """Tokens laid end to end, in blocks of ``size``; the last one may be shorter, but is not a single token."""
    waiting, count = list[NDArray[Any]](), 0
    for part in tokens:
        waiting.append(part)
        count += len(part)
        if count >= size:
            whole = np.concatenate(waiting)
            end = count - count % size
            yield from whole[:end].reshape(-1, size).tolist()
            waiting, count = [whole[end:]], count % size
    if count > 1:
        yield np.concatenate(waiting).tolist()


def tokens_of(reader: Any, parts: Iterable[str]) -> Iterator[NDArray[Any]]:
    """The tokens of a text that comes in parts.

    Long texts are encoded in windows that overlap. In the midst of what two windows share, the later one takes over, at a token
    from which on they agree. Where they agree nowhere, the text is cut at the end of the earlier one.
    """
    ids = starts = np.zeros(0, np.int64)
    if not reader.is_fast:  # such tokenizers do not tell where tokens begin
        yield np.array(reader("".join(parts), add_special_tokens=False, verbose=False)["input_ids"], np.int32)
        return
    for place, text in _windows(parts):
        new = _encoded(reader, text, place)
        if place:
            own, other = _meeting((ids, starts), new, place + OVERLAP // 2)
            if own is None:
                new, other = _encoded(reader, text[OVERLAP:], place + OVERLAP), 0
            yield ids[:own]
            new = new[0][other:], new[1][other:]
        ids, starts = new
    yield ids


def _windows(parts: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Windows over a text, each with the place at which it begins."""
    text, place = "", 0
    for part in parts:
        text += part
        while len(text) > WINDOW:
            yield place, text[:WINDOW]
            text, place = text[WINDOW - OVERLAP :], place + WINDOW - OVERLAP
    yield place, text


def _encoded(reader: Any, text: str, place: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """The tokens of a text that begins at a place of a longer one, and the places at which they begin."""
    encoded = reader(text, add_special_tokens=False, verbose=False, return_offsets_mapping=True)
    starts = np.array([start for start, _ in encoded["offset_mapping"]], np.int64)
    return np.array(encoded["input_ids"], np.int32), starts + place


def _meeting(
    before: tuple[NDArray[Any], NDArray[Any]], after: tuple[NDArray[Any], NDArray[Any]], middle: int
) -> tuple[int | None, int]:
    """The tokens of two windows, by number, from which on they agree, behind a place that both have read."""
    shared = np.intersect1d(before[1], after[1])
    for place in shared[shared >= middle]:
        own, other = (int(np.searchsorted(starts, place)) for _, starts in (before, after))
        pairs = [(one[own : own + AGREED], two[other : other + AGREED]) for one, two in zip(before, after)]
        if all(np.array_equal(one, two) for one, two in pairs):
            return own, other
    return None, 0
