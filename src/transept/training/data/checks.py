"""Mistakes in data that no error would show: each is one warning before the first update."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from transept.errors import TranseptWarning
from transept.tables.dataset import TableDataset

MOST_TRUNCATED = 0.1
# Models have more rows of embeddings than their tokenizers have tokens, to round them up; this share is no rounding.
LEAST_VOCABULARY = 0.9


def warn_of_equal_rows(train: TableDataset, held_out: TableDataset) -> int:
    """Warn where rows of the evaluation are also trained on; gives their number."""
    both = np.flatnonzero(np.isin(held_out.keys(), train.keys()))
    if len(both):
        what = f"{len(both)} of {len(held_out)} rows of the evaluation are also among those trained on"
        _warn(True, f"{what} (the first: {held_out.place(int(both[0]))}). Its figures will be too good.")
    return len(both)


def warn_of_truncation(truncated: int, rows: int, limit: int) -> bool:
    """Warn where more than a tenth of the rows is cut; gives whether."""
    share = f"{truncated} of {rows} rows ({100 * truncated / max(rows, 1):.0f} %)"
    text = f"{share} are longer than {limit} tokens and are cut. Raise max_length, or shorten them."
    return _warn(truncated > MOST_TRUNCATED * rows, text)


def warn_of_tokenizer(tokenizer: Any, model: Any) -> bool:
    """Warn where a tokenizer is not the model's, which the size of the vocabulary tells; gives whether."""
    size, tokens = getattr(model.config, "vocab_size", None), len(tokenizer)
    is_other = size is not None and not LEAST_VOCABULARY * size <= tokens <= size
    return _warn(is_other, f"the tokenizer has {tokens} tokens, but the model {size}: it is hardly the model's own.")


def warn_of_unlearned_end(labels: Iterable[Sequence[int]], end: int | None) -> bool:
    """Warn where no row's labels have the end of text, so that a model would never learn to stop; gives whether."""
    is_missing = end is not None and not any(end in row for row in labels)
    return _warn(is_missing, "the end of text is never among the labels: the model will not learn to stop.")


def _warn(wrong: bool, text: str) -> bool:
    if wrong:
        warnings.warn(text, TranseptWarning, stacklevel=3)
    return wrong
