"""What metrics share: ``update`` with a batch and ``result`` at the end; and the outputs of batches as arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transept.errors import InputError, InputTypeError, refuse
from transept.objectives.classification import IGNORED

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class Metric:
    """Figures of a data set that comes in batches; they do not depend on how the data are cut into batches."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all batches."""
        raise NotImplementedError

    def update(self, predictions: Any, labels: Any) -> None:
        """Add a batch (``InputError``: predictions and labels that do not fit each other)."""
        raise NotImplementedError

    def result(self) -> dict[str, float]:
        """The figures by name; NaN where nothing was counted."""
        raise NotImplementedError

    def __call__(self, predictions: Any, labels: Any) -> dict[str, float]:
        """The figures of one batch by itself."""
        self.reset()
        self.update(predictions, labels)
        return self.result()


class MeanMetric(Metric):
    """Means by name: sums over all batches, divided by one count."""

    names: ClassVar[tuple[str, ...]]

    def reset(self) -> None:
        self.sums, self.count = dict.fromkeys(self.names, 0.0), 0

    def add(self, count: int, *sums: float) -> None:
        """Add the sums over ``count`` more items, one for each name."""
        self.count += count
        for name, value in zip(self.names, sums, strict=True):
            self.sums[name] += value

    def result(self) -> dict[str, float]:
        return {name: ratio(value, self.count, math.nan) for name, value in self.sums.items()}


def array(value: Any, name: str) -> NDArray[Any]:
    """An array of numbers (``InputTypeError``: a value that is none)."""
    try:
        numbers = np.asarray(to_array(value) if isinstance(value, Tensor) else value)
    except ValueError as error:
        raise InputTypeError(f"`{name}` has rows of different lengths.", hint="Pad them, labels by -100.") from error
    if numbers.dtype.kind not in "biuf":
        raise InputTypeError(f"`{name}` must be numbers, but is {str(value)[:60]!r}.")
    return numbers


def class_arrays(predictions: Any, labels: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Predictions and labels as arrays; logits, which have one axis more than the labels, become classes."""
    target, predicted = array(labels, "labels"), array(predictions, "predictions")
    return (predicted.argmax(axis=-1) if predicted.ndim == target.ndim + 1 else predicted), target


def classes(predictions: Any, labels: Any) -> tuple[Integers, Integers]:
    """Predicted and right classes, (N) each, of classes or logits; places whose label is -100 are left out."""
    predicted, target = class_arrays(predictions, labels)
    if predicted.shape != target.shape:
        message = f"predictions have the shape {predicted.shape}, but labels {target.shape}."
        raise InputError(message, hint="Pass classes or logits.")
    for name, numbers in (("predictions", predicted), ("labels", target)):
        fractions = numbers.dtype.kind == "f" and (numbers != numbers.round()).any()
        refuse(fractions, f"`{name}` must be classes, but has fractions.")
    counted = target != IGNORED
    predicted, target = predicted[counted].astype(np.int64), target[counted].astype(np.int64)
    least = int(min(predicted.min(initial=0), target.min(initial=0)))
    refuse(least < 0, f"class {least} is negative.", hint=f"{IGNORED} as a label is ignored.")
    return predicted, target


def values(predictions: Any, labels: Any) -> tuple[Floats, Floats]:
    """Predicted and right numbers, (N) each."""
    predicted, target = array(predictions, "predictions"), array(labels, "labels")
    refuse(predicted.size != target.size, f"there are {predicted.size} predictions for {target.size} labels.")
    return predicted.astype(np.float64).reshape(-1), target.astype(np.float64).reshape(-1)


def same_number(predictions: Any, labels: Any) -> None:
    """Refuse lists of different lengths, and texts in the place of lists."""
    for name, rows in (("predictions", predictions), ("labels", labels)):
        if isinstance(rows, str) or not hasattr(rows, "__len__"):
            raise InputTypeError(f"`{name}` must be a list, but is {type(rows).__name__}.")
    count, wanted = len(predictions), len(labels)
    refuse(count != wanted, f"there are {count} predictions for {wanted} labels.")


def ratio(part: float, whole: float, empty: float = 0.0) -> float:
    """``part / whole``; ``empty`` where there is nothing to divide by."""
    return float(part) / float(whole) if whole else empty


def softmax(logits: NDArray[Any]) -> NDArray[Any]:
    """Probabilities (..., C) of logits (..., C), of the same type."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return cast(NDArray[Any], powers / powers.sum(axis=-1, keepdims=True))


def f1(hits: int, predicted: int, target: int) -> float:
    """The harmonic mean of precision and recall; 0 where there is nothing."""
    return ratio(2 * hits, predicted + target)


def f1_scores(hits: int, predicted: int, target: int) -> dict[str, float]:
    return {"precision": ratio(hits, predicted), "recall": ratio(hits, target), "f1": f1(hits, predicted, target)}


def to_array(value: Any) -> Any:
    """Tensors as arrays, inside tuples, lists and mappings too; bfloat16 becomes float32."""
    match value:
        case Tensor():
            value = value.detach().cpu()
            return (value.float() if value.dtype == torch.bfloat16 else value).numpy()
        case Mapping():
            return {name: to_array(part) for name, part in value.items()}
        case tuple() | list():
            return type(value)(to_array(part) for part in value)
    return value


def joined(batches: list[Any], places: NDArray[Any] | None) -> Any:
    """The arrays of batches as one, padded with -100 to the longest; row ``i`` of them is put at ``places[i]``.

    A list of mappings, as the labels of detectors are, has one for each row.
    """
    first = batches[0]
    if isinstance(first, list) and isinstance(first[0], Mapping):
        rows = [row for batch in batches for row in batch]
        return rows if places is None else [rows[row] for row in np.argsort(places)]
    if isinstance(first, tuple | list):
        return type(first)(joined(list(parts), places) for parts in zip(*batches))
    if isinstance(first, Mapping):
        return {name: joined([batch[name] for batch in batches], places) for name in first}
    if not isinstance(first, np.ndarray):
        return first
    arrays = [np.atleast_1d(batch) for batch in batches]
    if arrays[0].ndim > 1:
        longest, rest = max(part.shape[1] for part in arrays), [(0, 0)] * (arrays[0].ndim - 2)
        widths = [[(0, 0), (0, longest - part.shape[1]), *rest] for part in arrays]
        arrays = [np.pad(part, width, constant_values=IGNORED) for part, width in zip(arrays, widths)]
    whole = np.concatenate(arrays)
    return whole[np.argsort(places)] if places is not None and len(places) == len(whole) else whole


class Gathered:
    """The outputs of batches, which move to the CPU after every ``every`` batches."""

    def __init__(self, every: int | None) -> None:
        self.every, self.batches = every or 1, list[Any]()

    def add(self, batch: Any) -> None:
        if batch is not None:
            self.batches.append(batch)
            if len(self.batches) % self.every == 0:
                self.batches[-self.every :] = map(to_array, self.batches[-self.every :])

    def result(self, places: NDArray[Any] | None, whole: bool) -> Any:
        """One array, or those of the batches; ``None`` where there is nothing."""
        arrays = [to_array(batch) for batch in self.batches]
        if not arrays:
            return None
        return joined(arrays, places) if whole else arrays
