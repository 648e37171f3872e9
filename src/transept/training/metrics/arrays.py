"""What batches gave, as arrays for a whole set: joined, padded, and back in the order of the rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

PADDING = -100


def to_array(found: Any) -> Any:
    """Tensors as arrays, inside tuples, lists and mappings too; bfloat16 as float32."""
    if isinstance(found, Tensor):
        found = found.detach().cpu()
        return (found.float() if found.dtype == torch.bfloat16 else found).numpy()
    if isinstance(found, Mapping):
        return {name: to_array(each) for name, each in found.items()}
    if isinstance(found, tuple | list):
        return type(found)(to_array(each) for each in found)
    return found


def joined(batches: list[Any], places: np.ndarray[Any, Any] | None) -> Any:
    """Arrays of batches as one, padded with -100 to the longest, with the rows back at their places."""
    first = batches[0]
    if isinstance(first, tuple | list):
        return type(first)(joined([batch[at] for batch in batches], places) for at in range(len(first)))
    if isinstance(first, Mapping):
        return {name: joined([batch[name] for batch in batches], places) for name in first}
    if not isinstance(first, np.ndarray):
        return first
    arrays = [np.atleast_1d(each) for each in batches]
    if arrays[0].ndim > 1:
        longest = max(each.shape[1] for each in arrays)
        arrays = [
            np.pad(each, [(0, 0), (0, longest - each.shape[1]), *[(0, 0)] * (each.ndim - 2)], constant_values=PADDING)
            for each in arrays
        ]
    whole = np.concatenate(arrays)
    if places is None or len(places) != len(whole):
        return whole
    back = np.empty_like(whole)
    back[places] = whole
    return back


class Gathered:
    """What the batches gave, on the processor after every so many of them."""

    def __init__(self, every: int | None) -> None:
        self.every, self.arrays, self.waiting = every or 1, list[Any](), list[Any]()

    def add(self, found: Any) -> None:
        if found is not None:
            self.waiting.append(found)
            if len(self.waiting) >= self.every:
                self.flush()

    def flush(self) -> None:
        self.arrays += [to_array(each) for each in self.waiting]
        self.waiting = []

    def result(self, places: np.ndarray[Any, Any] | None, whole: bool) -> Any:
        """One array, or those of the batches; ``None`` where there is nothing."""
        self.flush()
        if not self.arrays:
            return None
        return joined(self.arrays, places) if whole else self.arrays
