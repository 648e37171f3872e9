"""What metrics share: ``update`` with a batch, and ``result`` at the end."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from transept.errors import InputError, InputTypeError
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
    value = value.detach().cpu() if hasattr(value, "detach") else value
    value = value.float() if str(getattr(value, "dtype", "")) == "torch.bfloat16" else value
    try:
        found = np.asarray(value)
    except ValueError as error:
        raise InputTypeError(f"`{name}` has rows of different lengths.", hint="Pad them, labels by -100.") from error
    if found.dtype.kind not in "biuf":
        raise InputTypeError(f"`{name}` must be numbers, but is {str(value)[:60]!r}.")
    return found


def classes(predictions: Any, labels: Any) -> tuple[Integers, Integers]:
    """Predicted and right classes, (N) each, of class numbers, or of logits with one axis more than the labels.

    Places whose label is -100 are left out.
    """
    right, found = array(labels, "labels"), array(predictions, "predictions")
    if found.ndim == right.ndim + 1:
        found = found.argmax(axis=-1)
    if found.shape != right.shape:
        shapes = found.shape, right.shape
        raise InputError("predictions have the shape {}, but labels {}.".format(*shapes), hint="Pass classes or logits.")
    for name, value in (("predictions", found), ("labels", right)):
        if value.dtype.kind == "f" and not (value == value.round()).all():
            raise InputError(f"`{name}` must be classes, but has fractions.")
    kept = right.reshape(-1) != IGNORED
    pair = found.reshape(-1)[kept].astype(np.int64), right.reshape(-1)[kept].astype(np.int64)
    if pair[0].size and min(pair[0].min(), pair[1].min()) < 0:
        raise InputError(
            f"class {int(min(pair[0].min(), pair[1].min()))} is negative.", hint=f"{IGNORED} as a label is ignored."
        )
    return pair


def values(predictions: Any, labels: Any) -> tuple[Floats, Floats]:
    """Predicted and right numbers, (N) each."""
    pair = tuple(
        array(value, name).astype(np.float64).reshape(-1) for value, name in ((predictions, "predictions"), (labels, "labels"))
    )
    if pair[0].shape != pair[1].shape:
        raise InputError(f"there are {pair[0].size} predictions for {pair[1].size} labels.")
    return pair  # type: ignore[return-value]


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
