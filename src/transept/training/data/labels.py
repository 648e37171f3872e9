"""Classes of a data set: their names, in a fixed order, and the numbers that stand for them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transept.errors import InputError
from transept.tables.dataset import TableDataset

SINGLE, MULTI, REGRESSION = "single_label_classification", "multi_label_classification", "regression"
MOST_CLASSES = 100_000


@dataclass(frozen=True)
class Labels:
    """The classes of a column of labels."""

    names: tuple[str, ...]  # in the order of their numbers; one that is empty for a number to predict
    problem: str  # `SINGLE`, `MULTI` or `REGRESSION`
    numbers: Mapping[Any, int]  # of the values of the column

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
        """What a loss reads: a class's number, a list of 0.0 and 1.0 for several, or the number to predict."""
        if self.problem == REGRESSION:
            if not is_number(value):
                raise InputError(f"the label {value!r:.80} is no finite number, as the others are.", path=place)
            return float(value)
        if self.problem == MULTI:
            if not isinstance(value, list | tuple):
                raise InputError(f"the label {value!r:.80} is no list of classes, as the others are.", path=place)
            numbers = {self.number(label, place) for label in value}
            return [float(number in numbers) for number in range(len(self.names))]
        return self.number(value, place)


def is_number(value: Any) -> bool:  # which is finite, and no truth value
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def find_labels(dataset: TableDataset, column: str, known: Sequence[str] | None = None) -> Labels:
    """The classes of a column: texts are sorted, numbers stand for themselves, names that the data set tells count.

    A label is a text, a number, or a list of them: several classes, or one a token. Numbers of which any has a
    fraction are to be predicted, and are no classes. ``known`` are the names of the classes of a model that was
    trained before, whose order is kept where they are the same. Labels of mixed kinds, one class only, or far too
    many are refused (``InputError``).
    """
    values, kinds, listed = set[Any](), set[Any](), False
    mixed, path = f"the column {column!r} holds labels of different kinds", dataset.path
    for index, value in enumerate(dataset.values(column)):
        is_list = isinstance(value, list | tuple)
        listed = listed or is_list
        for label in value if is_list else [value]:
            if isinstance(label, float) and not math.isfinite(label):
                raise InputError(f"the label {label!r} is no finite number.", path=dataset.place(index))
            if not isinstance(label, str | int | float):
                raise InputError(f"{mixed}: {label!r:.80} is neither a text nor a number.", path=dataset.place(index))
            kinds.add(bool if isinstance(label, bool) else str if isinstance(label, str) else float)
            values.add(label)
    if len(kinds) > 1:
        raise InputError(f"{mixed}: {', '.join(repr(value) for value in list(values)[:4])}.")
    if kinds == {float} and any(value % 1 for value in values):
        if listed:
            what = f"the column {column!r} holds lists of numbers with fractions, which are no classes."
            raise InputError(what, hint="Classes are texts or whole numbers.", path=path)
        return Labels(("",), REGRESSION, {})
    classes = _classes(values, dataset.class_names.get(column), known)
    count, rows = len(classes), len(dataset)
    if count < 2:
        raise InputError(f"the column {column!r} holds one class only: {next(iter(classes), None)!r}.", path=path)
    if count > MOST_CLASSES or (count > 100 and count > rows * 0.9 and not listed):
        what = f"the column {column!r} holds {count} classes in {rows} rows."
        raise InputError(what, path=path, hint="--label chooses another column.")
    numbers = {value: number for number, value in enumerate(classes)}
    return Labels(tuple(classes.values()), MULTI if listed else SINGLE, numbers)


def token_labels(dataset: TableDataset, column: str, known: Sequence[str] | None = None) -> Labels:
    """Like :func:`find_labels` for a label a token; ``O``, which is no entity, comes first."""
    labels = replace(find_labels(dataset, column, known), problem=SINGLE)
    if "O" in labels.numbers and known is None and column not in dataset.class_names:
        names = ("O", *(name for name in labels.names if name != "O"))
        return Labels(names, SINGLE, {name: number for number, name in enumerate(names)})
    return labels


def _classes(values: set[Any], class_names: list[str] | None, known: Sequence[str] | None) -> dict[Any, str]:
    """The names of the classes by their values, in order."""
    if all(isinstance(value, str) for value in values):
        return {name: name for name in (known if known is not None and values <= set(known) else sorted(values))}
    names = dict(enumerate(class_names or ()))
    if names and all(0 <= value < len(names) for value in values):
        return names
    whole = {value: int(value) if isinstance(value, float) else value for value in sorted(values)}
    return {value: names.get(value, str(number)) for value, number in whole.items()}
