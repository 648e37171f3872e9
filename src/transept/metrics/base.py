"""What metrics share: ``update`` with a batch and ``result`` at the end; and what batches gave, as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transept.errors import InputError, InputTypeError, refuse
from transept.objectives.classification import IGNORED

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class Metric:
    """A figure over a data set that comes in batches; it does not depend on how the data are cut into them."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all batches."""
        raise NotImplementedError

    def update(self, predictions: Any, labels: Any) -> None:
        """Add a batch (``InputError``: predictions and labels that do not fit each other)."""
        raise NotImplementedError

    def result(self) -> dict[str, float]:
        """The figures by name; not a number where nothing was counted."""
        raise NotImplementedError

    def __call__(self, predictions: Any, labels: Any) -> dict[str, float]:
        """The figures of one batch by itself."""
        self.reset()
        self.update(predictions, labels)
        return self.result()


def array(value: Any, name: str) -> NDArray[Any]:
    """Numbers as an array (``InputTypeError``: what is none)."""
    try:
        numbers = np.asarray(to_array(value) if isinstance(value, Tensor) else value)
    except ValueError as error:
        raise InputTypeError(f"`{name}` has rows of different lengths.", hint="Pad them, labels by -100.") from error
    if numbers.dtype.kind not in "biuf":
        raise InputTypeError(f"`{name}` must be numbers, but is {str(value)[:60]!r}.")
    return numbers


def classes(predictions: Any, labels: Any) -> tuple[Integers, Integers]:
    """Predicted and right classes, (N) each, of class numbers, or of logits with one axis more than the labels.

    Places whose label is -100 are left out.
    """
    right, predicted = array(labels, "labels"), array(predictions, "predictions")
    if predicted.ndim == right.ndim + 1:
        predicted = predicted.argmax(axis=-1)
    if predicted.shape != right.shape:
        what = f"predictions have the shape {predicted.shape}, but labels {right.shape}."
        raise InputError(what, hint="Pass classes or logits.")
    for name, value in (("predictions", predicted), ("labels", right)):
        if value.dtype.kind == "f" and not (value == value.round()).all():
            raise InputError(f"`{name}` must be classes, but has fractions.")
    counted = right != IGNORED
    predicted, right = predicted[counted].astype(np.int64), right[counted].astype(np.int64)
    least = int(min(predicted.min(initial=0), right.min(initial=0)))
    refuse(least < 0, f"class {least} is negative.", hint=f"{IGNORED} as a label is ignored.")
    return predicted, right


def values(predictions: Any, labels: Any) -> tuple[Floats, Floats]:
    """Predicted and right numbers, (N) each."""
    predicted, right = array(predictions, "predictions"), array(labels, "labels")
    refuse(predicted.size != right.size, f"there are {predicted.size} predictions for {right.size} labels.")
    return predicted.astype(np.float64).reshape(-1), right.astype(np.float64).reshape(-1)


def same_number(predictions: Any, labels: Any) -> None:
    """Refuse lists of different lengths, and texts in the place of lists."""
    for name, value in (("predictions", predictions), ("labels", labels)):
        if isinstance(value, str) or not hasattr(value, "__len__"):
            raise InputTypeError(f"`{name}` must be a list, but is {type(value).__name__}.")
    if len(predictions) != len(labels):
        raise InputError(f"there are {len(predictions)} predictions for {len(labels)} labels.")


def ratio(part: float, whole: float, empty: float = 0.0) -> float:
    """``part / whole``; ``empty`` where there is nothing to divide by."""
    return float(part) / float(whole) if whole else empty


def f1(hits: int, predicted: int, right: int) -> float:
    """The harmonic mean of precision and recall, 0 where there is nothing."""
    return ratio(2 * hits, predicted + right)


def f1_scores(hits: int, predicted: int, right: int) -> dict[str, float]:
    precision, recall = ratio(hits, predicted), ratio(hits, right)
    return {"precision": precision, "recall": recall, "f1": f1(hits, predicted, right)}


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
