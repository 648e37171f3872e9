"""Classes of a data set: their names, in a fixed order, and the numbers that stand for them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transept.errors import InputError
from transept.tables.dataset import TableDataset

SINGLE, MULTI, REGRESSION = "single_label_classification", "multi_label_classification", "regression"
MOST_CLASSES = 100_000


@dataclass(frozen=True)
class Labels:
    """The classes of a column of labels.

    Args:
        names: the classes' names, in the order of their numbers; one that is empty for a number to predict.
        problem: ``single_label_classification``, ``multi_label_classification`` or ``regression``.
        numbers: the number of each value of the column.
    """

    names: tuple[str, ...]
    problem: str
    numbers: Mapping[Any, int]

    @property
    def id2label(self) -> dict[int, str]:
        return dict(enumerate(self.names))

    def number(self, value: Any, place: str) -> int:
        """The number of a value (``InputError``, with its place: it is none of the classes)."""
        number = self.numbers.get(value) if isinstance(value, str | int | float) else None
        if number is None:
            some = ", ".join(self.names[:8]) + (", ..." if len(self.names) > 8 else "")
            what = f"the label {value!r:.80} is none of the {len(self.names)} classes ({some})."
            raise InputError(what, path=place, hint="Every class must be in the training data.")
        return number

    def encode(self, value: Any, place: str) -> Any:
        """What a loss reads: a class's number, a list of 0.0 and 1.0 for several, or the number to predict.

        Raises:
            InputError: a value of another kind, with its place.
        """
        if self.problem == REGRESSION:
            if not is_number(value):
                raise InputError(f"the label {value!r:.80} is no finite number, as the others are.", path=place)
            return float(value)
        if self.problem == MULTI:
            if not isinstance(value, list | tuple):
                raise InputError(f"the label {value!r:.80} is no list of classes, as the others are.", path=place)
            held = {self.number(label, place) for label in value}
            return [float(index in held) for index in range(len(self.names))]
        return self.number(value, place)


def is_number(value: Any) -> bool:
    """Whether that is a finite number, and no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def find_labels(dataset: TableDataset, column: str, known: Sequence[str] | None = None) -> Labels:
    """The classes of a column: texts are sorted, numbers stand for themselves, names that the data set tells count.

    Numbers of which any has a fraction are to be predicted, and are no classes.

    Args:
        dataset: the rows to train on.
        column: the column of labels, each a text, a number, or a list of them (several classes at once, or one a token).
        known: names of the classes of a model that was trained before, whose order is kept where they are the same.

    Raises:
        InputError: labels of mixed kinds, one class only, or far too many.
    """
    values, kinds, listed = set[Any](), set[Any](), False
    for index, value in enumerate(dataset.values(column)):
        is_list = isinstance(value, list | tuple)
        listed = listed or is_list
        for label in value if is_list else [value]:
            if isinstance(label, float) and not math.isfinite(label):
                raise InputError(f"the label {label!r} is no finite number.", path=dataset.place(index))
            if not isinstance(label, str | int | float):
                what = f"the column {column!r} holds labels of different kinds: {label!r:.80} is neither a text nor a number."
                raise InputError(what, path=dataset.place(index))
            kinds.add(bool if isinstance(label, bool) else str if isinstance(label, str) else float)
            values.add(label)
    if len(kinds) > 1:
        some = ", ".join(repr(value) for value in list(values)[:4])
        raise InputError(f"the column {column!r} holds labels of different kinds: {some}.")
    if kinds == {float} and any(value % 1 for value in values):
        if listed:
            what = f"the column {column!r} holds lists of numbers with fractions, which are no classes."
            raise InputError(what, hint="Classes are texts or whole numbers.", path=dataset.path)
        return Labels(("",), REGRESSION, {})
    numbers = _numbered(values, dataset.class_names.get(column), known)
    if len(numbers) < 2:
        raise InputError(f"the column {column!r} holds one class only: {next(iter(numbers), None)!r}.", path=dataset.path)
    if len(numbers) > MOST_CLASSES or (len(numbers) > 100 and len(numbers) > len(dataset) * 0.9 and not listed):
        hint = "--label chooses another column."
        raise InputError(
            f"the column {column!r} holds {len(numbers)} classes in {len(dataset)} rows.", path=dataset.path, hint=hint
        )
    names = {number: _name(value, dataset.class_names.get(column)) for value, number in numbers.items()}
    return Labels(tuple(names[number] for number in sorted(names)), MULTI if listed else SINGLE, numbers)


def token_labels(dataset: TableDataset, column: str, known: Sequence[str] | None = None) -> Labels:
    """Like :func:`find_labels` for a label a token; ``O``, which is no entity, comes first."""
    found = find_labels(dataset, column, known)
    if "O" in found.numbers and known is None and column not in dataset.class_names:
        names = ("O", *(name for name in found.names if name != "O"))
        found = Labels(names, SINGLE, {name: index for index, name in enumerate(names)})
    return Labels(found.names, SINGLE, found.numbers)


def _numbered(values: set[Any], told: list[str] | None, known: Sequence[str] | None) -> dict[Any, int]:
    if all(isinstance(value, str) for value in values):
        same = known is not None and values <= set(known)
        return {name: index for index, name in enumerate(known if same and known is not None else sorted(values))}
    if told is not None and all(0 <= value < len(told) for value in values):
        return {index: index for index in range(len(told))}
    return {value: index for index, value in enumerate(sorted(values))}


def _name(value: Any, told: list[str] | None) -> str:
    if told is not None and isinstance(value, int) and value < len(told):
        return told[value]
    return str(int(value)) if isinstance(value, float) else str(value)


def share_of_most(numbers: Iterable[int]) -> tuple[int, float]:
    """The most frequent class and its share, which a model must beat."""
    from collections import Counter

    counted = Counter(numbers)
    number, times = counted.most_common(1)[0]
    return number, times / counted.total()
