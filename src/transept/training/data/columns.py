"""Which columns of a data set a task reads, by their names or by what they hold; and media in columns."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transept.errors import InputError, TranseptError, nearest
from transept.preprocess.media import load_audio, open_image
from transept.storage.files import safe_join
from transept.tables.dataset import TableDataset

LOOKED_AT = 200  # rows, to tell what a column holds


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_label(value: Any) -> bool:  # a class by name or number, a number to predict, or several classes
    return isinstance(value, str | int | float) or is_labels(value)


def is_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(text, str) for text in value)


def is_labels(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(label, str | int | float) for label in value)


def is_media(value: Any) -> bool:  # a path, or a picture or sound as data sets hold it
    return isinstance(value, str | Mapping) or hasattr(value, "getbands") or hasattr(value, "shape")


def is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


def is_messages(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(turn, Mapping) and "role" in turn for turn in value)


@dataclass(frozen=True)
class Column:
    """What a task reads from one column."""

    role: str  # what the task calls it, as an option of the command does
    names: tuple[str, ...]  # that such a column usually has, in small letters
    holds: Callable[[Any], bool]  # whether a value is of the kind that it must be
    optional: bool = False
    by_kind: bool = True  # whether a column of any name is taken that is the only one of its kind


TEXT = Column("text", ("text", "sentence", "content", "review", "utterance", "query", "comment"), is_text)
LABEL = Column("label", ("label", "labels", "category", "target", "class", "intent", "sentiment", "score"), is_label)
PAIRS = (
    *(("sentence1", "sentence2"), ("premise", "hypothesis"), ("question", "passage"), ("question", "sentence")),
    *(("question1", "question2"), ("text", "text_pair"), ("text1", "text2"), ("query", "passage")),
    ("anchor", "positive"),
)


def find_columns(dataset: TableDataset, wanted: Sequence[Column], given: Mapping[str, str | None]) -> dict[str, str]:
    """The column for each role of a task, without the optional roles that no column fits.

    ``given`` are the columns that were chosen by hand, by role (``InputError``, which lists the columns: a chosen one
    is not there or holds something else; none or several would do).
    """
    columns = {role: name for role, name in given.items() if name is not None}
    roles = {column.role for column in wanted}
    for role, name in columns.items():
        if role not in roles:
            raise InputError(f"the task reads no column as {role!r}.", hint=nearest(role, roles))
        if name not in dataset.column_names:
            hint = nearest(name, dataset.column_names)
            raise InputError(f"there is no column {name!r} for `{role}`.", path=dataset.path, hint=hint)
    for column in wanted:
        names = [name for name in dataset.column_names if name.lower() in column.names]
        if column.role not in columns and (fitting := _fitting(dataset, column, names, columns.values())):
            if len(fitting) > 1:
                raise _doubt(dataset, column.role, f"several columns may be the {column.role}: {', '.join(fitting)}.")
            columns[column.role] = fitting[0]
    for column in wanted:
        if column.role not in columns and not column.optional:
            columns[column.role] = _only(dataset, column, columns.values())
    for column in wanted:
        chosen = columns.get(column.role)
        for index, value in enumerate(dataset.values(chosen)) if chosen is not None else ():
            missing = value is None
            if column.optional if missing else column.holds(value):
                continue
            what = "is missing" if missing else f"is {type(value).__name__} ({value!r:.60})"
            hint = f"Every row needs it; {_option(column.role)} chooses another column."
            raise InputError(f"the {column.role} (column {chosen!r}) {what}.", path=dataset.place(index), hint=hint)
    return columns


def find_pair(dataset: TableDataset, given: Mapping[str, str | None]) -> dict[str, str]:
    """The columns of two texts that belong together, where there are such and no other was chosen; else none."""
    if any(given.get(role) is not None for role in ("text", "text_pair")):
        return {}
    lower = {name.lower(): name for name in dataset.column_names}
    pairs = [pair for pair in PAIRS if set(pair) <= lower.keys()]
    if len(pairs) > 1:
        names = " and ".join(f"{one}/{other}" for one, other in pairs)
        raise _doubt(dataset, "text", f"several pairs of columns may hold the texts: {names}.")
    return {role: lower[name] for role, name in zip(("text", "text_pair"), pairs[0])} if pairs else {}


def describe_guesses(columns: Mapping[str, str], given: Mapping[str, str | None]) -> str | None:
    """What was guessed, in one line; ``None`` where nothing was."""
    guessed = {role: name for role, name in columns.items() if given.get(role) is None}
    choices = ", ".join(f"{role} is column {name!r}" for role, name in guessed.items())
    return f"{choices} (guessed; {' '.join(map(_option, guessed))} chooses)." if guessed else None


def values_of(dataset: TableDataset, name: str) -> list[Any]:
    """Some values of a column that are there."""
    some = (dataset[index].get(name) for index in range(min(len(dataset), LOOKED_AT)))
    return [value for value in some if value is not None]


def _fitting(dataset: TableDataset, column: Column, names: Sequence[str], used: Collection[str]) -> list[str]:
    free = [name for name in names if name not in used]
    return [name for name in free if (some := values_of(dataset, name)) and all(map(column.holds, some))]


def _only(dataset: TableDataset, column: Column, used: Collection[str]) -> str:
    """The only column that holds what is needed (``InputError``: there is none, or there are several)."""
    fitting = _fitting(dataset, column, dataset.column_names if column.by_kind else (), used)
    if len(fitting) > 1 and column.holds in (is_text, is_label):  # a label is a text too, but its values repeat
        values = {name: values_of(dataset, name) for name in fitting}
        repeats = {name: len(set(map(str, some))) <= max(2, len(some) // 3) for name, some in values.items()}
        fitting = [name for name in fitting if repeats[name] == (column.holds is is_label)] or fitting
    if len(fitting) != 1:
        which = f"several columns may be it: {', '.join(fitting)}" if fitting else "no column looks like it"
        raise _doubt(dataset, column.role, f"the {column.role} is not clear: {which}.")
    return fitting[0]


def _option(role: str) -> str:
    return f"--{role.replace('_', '-')}"


def _doubt(dataset: TableDataset, role: str, what: str) -> InputError:
    columns = ", ".join(dataset.column_names) or "none"
    return InputError(what, path=dataset.path, hint=f"Choose one with {_option(role)}. Columns: {columns}.")


def resolved(value: Any, data: str | None) -> Any:
    """A media value of a row: a relative path is one beside ``data``, the file that the rows were read from."""
    if not isinstance(value, str) or value.startswith(("data:", "http:", "https:")):
        return value
    # The paths of a folder are whole, since it was walked here.
    return value if data is None or os.path.isdir(data) else str(safe_join(Path(data).parent, value))


def read_picture(value: Any, place: str) -> Any:
    """A picture of a row (``TranseptError``, with the row's place: it cannot be read)."""
    with _naming_row(place):
        return open_image(value)


def read_sound(value: Any, rate: int, place: str) -> Any:
    """The samples (T,) of a row's sound at a rate in Hz (``TranseptError``, with its place: it cannot be read)."""
    with _naming_row(place):
        return load_audio(value, rate)


@contextmanager
def _naming_row(place: str) -> Iterator[None]:
    try:
        yield
    except TranseptError as error:
        error.message = f"{error.message} (of {place})"
        raise
