"""Which columns of a data set hold what a task reads: by their names, else by what they hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transept.errors import InputError, nearest
from transept.tables.dataset import TableDataset

LOOKED_AT = 200  # rows, to tell what a column holds


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_label(value: Any) -> bool:
    """A class by name or number, a number to predict, or several classes."""
    return isinstance(value, str | int | float) or is_labels(value)


def is_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)


def is_labels(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, str | int | float) for each in value)


def is_media(value: Any) -> bool:
    """A path, or a picture or sound as data sets hold it."""
    return isinstance(value, str | Mapping) or hasattr(value, "getbands") or hasattr(value, "shape")


def is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


def is_messages(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, Mapping) and "role" in each for each in value)


@dataclass(frozen=True)
class Column:
    """What a task reads from one column.

    Args:
        role: what the task calls it, as an option of the command does.
        names: names that such a column usually has, in small letters.
        holds: whether a value is of the kind that it must be.
        optional: whether the task does without it.
        by_kind: whether a column of any name is taken that is the only one of its kind.
    """

    role: str
    names: tuple[str, ...]
    holds: Callable[[Any], bool]
    optional: bool = False
    by_kind: bool = True


TEXT = Column("text", ("text", "sentence", "content", "review", "utterance", "query", "comment"), is_text)
LABEL = Column("label", ("label", "labels", "category", "target", "class", "intent", "sentiment", "score"), is_label)
PAIRS = (
    *(("sentence1", "sentence2"), ("premise", "hypothesis"), ("question", "passage"), ("question", "sentence")),
    *(("question1", "question2"), ("text", "text_pair"), ("text1", "text2"), ("query", "passage"), ("anchor", "positive")),
)


def find_columns(dataset: TableDataset, wanted: Sequence[Column], given: Mapping[str, str | None]) -> dict[str, str]:
    """The column for each role of a task.

    Args:
        dataset: the rows.
        wanted: what the task reads.
        given: columns that were chosen by hand, by role; ``None`` is none.

    Returns:
        Names of columns by role, without the optional roles that no column fits.

    Raises:
        InputError: a column that was chosen is not there or holds something else, none or several would do. It lists them.
    """
    found: dict[str, str] = {role: name for role, name in given.items() if name is not None}
    known = {column.role for column in wanted}
    for role, name in found.items():
        if role not in known:
            raise InputError(f"the task reads no column as {role!r}.", hint=nearest(role, known))
        if name not in dataset.column_names:
            hint = nearest(name, dataset.column_names)
            raise InputError(f"there is no column {name!r} for `{role}`.", path=dataset.path, hint=hint)
    for column in wanted:
        guess = None if column.role in found else _guessed(dataset, column, set(found.values()))
        if guess is not None:
            found[column.role] = guess
    by_kind = [column for column in wanted if column.role not in found and not column.optional]
    for column in by_kind:
        found[column.role] = _only(dataset, column, set(found.values()))
    _check_kinds(dataset, wanted, found)
    return found


def find_pair(dataset: TableDataset, given: Mapping[str, str | None]) -> dict[str, str]:
    """The columns of two texts that belong together, where there are such and no other was chosen; else none."""
    if any(given.get(role) is not None for role in ("text", "text_pair")):
        return {}
    lower = {name.lower(): name for name in dataset.column_names}
    pairs = [pair for pair in PAIRS if set(pair) <= lower.keys()]
    if len(pairs) > 1:
        told = " and ".join(f"{one}/{other}" for one, other in pairs)
        raise _doubt(dataset, "text", f"several pairs of columns may hold the texts: {told}.")
    return {role: lower[name] for role, name in zip(("text", "text_pair"), pairs[0])} if pairs else {}


def told(found: Mapping[str, str], given: Mapping[str, str | None]) -> str | None:
    """What was guessed, in one line; ``None`` where nothing was."""
    guessed = [f"{role} is column {name!r}" for role, name in found.items() if given.get(role) is None]
    if not guessed:
        return None
    options = " ".join(f"--{role.replace('_', '-')}" for role in found if given.get(role) is None)
    return f"{', '.join(guessed)} (guessed; {options} chooses)."


def values_of(dataset: TableDataset, name: str) -> list[Any]:
    """Some values of a column that are there."""
    some = (dataset[index].get(name) for index in range(min(len(dataset), LOOKED_AT)))
    return [value for value in some if value is not None]


def _guessed(dataset: TableDataset, column: Column, taken: set[str]) -> str | None:
    """The column with one of the usual names (``InputError``: there are several)."""
    fitting = [name for name in dataset.column_names if name.lower() in column.names and name not in taken]
    fitting = [name for name in fitting if (some := values_of(dataset, name)) and all(map(column.holds, some))]
    if len(fitting) > 1:
        raise _doubt(dataset, column.role, f"several columns may be the {column.role}: {', '.join(fitting)}.")
    return fitting[0] if fitting else None


def _only(dataset: TableDataset, column: Column, taken: set[str]) -> str:
    """The only column that holds what is needed (``InputError``: there is none, or there are several)."""
    free = [name for name in dataset.column_names if name not in taken] if column.by_kind else []
    fitting = [name for name in free if (some := values_of(dataset, name)) and all(map(column.holds, some))]
    if column.holds is is_text and len(fitting) > 1:  # a label is a text too, but has few values
        many = [name for name in fitting if not _few(values_of(dataset, name))]
        fitting = many or fitting
    if column.holds is is_label and len(fitting) > 1:
        fitting = [name for name in fitting if _few(values_of(dataset, name))] or fitting
    if len(fitting) != 1:
        which = f"several columns may be it: {', '.join(fitting)}" if fitting else "no column looks like it"
        raise _doubt(dataset, column.role, f"the {column.role} is not clear: {which}.")
    return fitting[0]


def _few(values: list[Any]) -> bool:
    """Whether values repeat, as those of classes do."""
    return len({str(value) for value in values}) <= max(2, len(values) // 3)


def _doubt(dataset: TableDataset, role: str, what: str) -> InputError:
    columns = ", ".join(dataset.column_names) or "none"
    return InputError(what, path=dataset.path, hint=f"Choose one with --{role.replace('_', '-')}. Columns: {columns}.")


def _check_kinds(dataset: TableDataset, wanted: Sequence[Column], found: Mapping[str, str]) -> None:
    for column in wanted:
        name = found.get(column.role)
        if name is None:
            continue
        for index, value in enumerate(dataset.values(name)):
            missing = value is None and not column.optional
            if missing or (value is not None and not column.holds(value)):
                what = "is missing" if missing else f"is {type(value).__name__} ({value!r:.60})"
                hint = f"Every row needs it; --{column.role.replace('_', '-')} chooses another column."
                raise InputError(f"the {column.role} (column {name!r}) {what}.", path=dataset.place(index), hint=hint)
