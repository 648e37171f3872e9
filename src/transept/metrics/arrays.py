"""What batches gave, as arrays for a whole set: joined, padded, and back in the order of the rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

PADDING = -100


def to_array(value: Any) -> Any:
    """Tensors as arrays, inside tuples, lists and mappings too; bfloat16 as float32."""
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        return (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    if isinstance(value, Mapping):
        return {name: to_array(part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(to_array(part) for part in value)
    return value


def joined(batches: list[Any], places: np.ndarray[Any, Any] | None) -> Any:
    """Arrays of batches as one, padded with -100 to the longest, with the rows back at their places.

    A list of mappings, as the labels of detectors are, has one for each row.
    """
    first = batches[0]
    if isinstance(first, list) and isinstance(first[0], Mapping):
        rows = [row for batch in batches for row in batch]
        return rows if places is None else [rows[at] for at in np.argsort(places)]
    if isinstance(first, tuple | list):
        return type(first)(joined([batch[at] for batch in batches], places) for at in range(len(first)))
    if isinstance(first, Mapping):
        return {name: joined([batch[name] for batch in batches], places) for name in first}
    if not isinstance(first, np.ndarray):
        return first
    arrays = [np.atleast_1d(batch) for batch in batches]
    if arrays[0].ndim > 1:
        longest = max(array.shape[1] for array in arrays)
        missing = [[(0, 0), (0, longest - array.shape[1]), *[(0, 0)] * (array.ndim - 2)] for array in arrays]
        arrays = [np.pad(array, widths, constant_values=PADDING) for array, widths in zip(arrays, missing)]
    whole = np.concatenate(arrays)
    return whole[np.argsort(places)] if places is not None and len(places) == len(whole) else whole


class Gathered:
    """What the batches gave, on the processor after every so many of them."""

    def __init__(self, every: int | None) -> None:
        self.every, self.arrays, self.waiting = every or 1, list[Any](), list[Any]()

    def add(self, batch: Any) -> None:
        if batch is not None:
            self.waiting.append(batch)
            if len(self.waiting) >= self.every:
                self.flush()

    def flush(self) -> None:
        self.arrays += map(to_array, self.waiting)
        self.waiting = []

    def result(self, places: np.ndarray[Any, Any] | None, whole: bool) -> Any:
        """One array, or those of the batches; ``None`` where there is nothing."""
        self.flush()
        if not self.arrays:
            return None
        return joined(self.arrays, places) if whole else self.arrays
