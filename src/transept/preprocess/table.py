"""Tables: columns with names, rows of texts, and the numbers and dates in them, by the rules of TAPAS. Imports no torch.

A number is a float; a date is a triple of year, month and day, of which each may be ``None``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from transept.errors import InputError, InputTypeError

Date = tuple[int | None, int | None, int | None]
Value = float | Date
_HINT = 'Pass {"name": [cells], ...}, a list of rows {"name": cell, ...}, or a DataFrame of pandas.'


@dataclass(frozen=True)
class TextTable:
    """A table of texts: the names of its columns, and its rows."""

    columns: list[str]
    rows: list[list[str]]


def read_table(table: Any) -> TextTable:
    """The table of a mapping of columns, of a list of rows, or of a DataFrame; numbers become texts, ``None`` an empty one.

    Raises:
        InputTypeError, InputError: what is no table, columns of different lengths, rows of other names, a cell of no text.
    """
    if isinstance(table, TextTable):
        return table
    if hasattr(table, "itertuples") and hasattr(table, "columns"):
        names, rows = list(table.columns), [list(row) for row in table.itertuples(index=False, name=None)]
    elif isinstance(table, Mapping) and all(isinstance(column, list | tuple) for column in table.values()):
        names, lengths = list(table), {len(column) for column in table.values()}
        if len(lengths) > 1:
            raise InputError(
                f"the columns of a table have {min(lengths)} to {max(lengths)} cells.", hint="Pass as many for each."
            )
        rows = [list(row) for row in zip(*table.values(), strict=True)]
    elif isinstance(table, list | tuple) and all(isinstance(row, Mapping) for row in table):
        names = list(table[0]) if table else []
        for place, row in enumerate(table):
            if row.keys() != set(names):
                raise InputError(
                    f"row {place} of a table has the names {list(row)!r:.80}, but the first {names!r:.80}.", hint=_HINT
                )
        rows = [[row[name] for name in names] for row in table]
    else:
        raise InputTypeError(f"a table was expected, but {type(table).__name__} was passed.", hint=_HINT)
    cells = [
        [_text(cell, f"row {place}, column {name!r:.40}") for name, cell in zip(names, row, strict=True)]
        for place, row in enumerate(rows)
    ]
    return TextTable([_text(name, "a name of a column") for name in names], cells)


def _text(cell: Any, where: str) -> str:
    if hasattr(cell, "item"):
        cell = cell.item()
    if cell is None or cell != cell:
        return ""
    if isinstance(cell, str | int | float):
        return str(cell)
    raise InputTypeError(f"{where}: a cell is {cell!r:.40} ({type(cell).__name__}), but must be text or a number.", hint=_HINT)


# Numbers

_NUMBER = re.compile(r"((^|\s)[+-])?((\.\d+)|(\d+(,\d\d\d)*(\.\d*)?))")
_PART_OF_DATE = re.compile(r"\d|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec")
_WORDS = "zero one two three four five six seven eight nine ten eleven twelve"
_ORDINALS = "zeroth first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth"
_BY_WORD = {word: float(number) for words in (_WORDS, _ORDINALS) for number, word in enumerate(words.split())}
_FIRST_YEAR, _LAST_YEAR, _DATE_WORDS = 1700, 2016, 5
_COMMON = 0.7  # the share of the cells of a column that must have values of one kind
# Which parts of a date each format has, in the order in which they are tried.
_DATES = (
    *(("%B", "m"), ("%Y", "y"), ("%Ys", "y"), ("%b %Y", "ym"), ("%B %Y", "ym"), ("%B %d", "md"), ("%b %d", "md")),
    *(("%d %b", "md"), ("%d %B", "md"), ("%B %d, %Y", "ymd"), ("%d %B %Y", "ymd"), ("%m-%d-%Y", "ymd"), ("%Y-%m-%d", "ymd")),
    *(
        ("%Y-%m", "ym"),
        ("%d %b %Y", "ymd"),
        ("%b %d, %Y", "ymd"),
        ("%d.%m.%Y", "ymd"),
        ("%A, %b %d", "md"),
        ("%A, %B %d", "md"),
    ),
)


def _number(text: str) -> float | None:
    for suffix in ("st", "nd", "rd", "th"):
        if text.endswith(suffix):
            text = text.removesuffix(suffix)
            break
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return None if value == float("inf") or value != value else value


def _date(text: str) -> Date | None:
    if _PART_OF_DATE.search(text) is None or "- " in text:
        return None
    for form, parts in _DATES:
        given = (text, form) if "y" in parts else (f"{text} 1900", f"{form} %Y")
        try:
            found = datetime.strptime(*given)
        except ValueError:
            continue
        if _FIRST_YEAR <= found.year <= _LAST_YEAR:
            year, month, day = (getattr(found, name) if name[0] in parts else None for name in ("year", "month", "day"))
            return year, month, day
    return None


def _spans(text: str, most: int) -> Iterator[tuple[int, int]]:
    """Where runs of up to ``most`` words begin and end."""
    starts: list[int] = []
    for place, character in enumerate(text):
        if not character.isalnum():
            continue
        if place == 0 or not text[place - 1].isalnum():
            starts.append(place)
        if place + 1 == len(text) or not text[place + 1].isalnum():
            yield from ((start, place + 1) for start in starts[-most:])


def values_of(text: str) -> list[Value]:
    """The numbers and dates of a text, in their order; those within longer ones are left out."""
    text, found = " ".join(text.lower().split()), dict[tuple[int, int], list[Value]]()
    for match in _NUMBER.finditer(text):
        if (number := _number(match.group())) is not None:
            found.setdefault(match.span(), []).append(number)
    for span in _spans(text, 1):
        if span not in found:
            word = text[slice(*span)]
            numbers = [number for number in (_number(word), _BY_WORD.get(word)) if number is not None]
            if numbers:
                found[span] = list(numbers)
    for span in _spans(text, _DATE_WORDS):
        if (date := _date(text[slice(*span)])) is not None:
            found.setdefault(span, []).append(date)
    kept: list[tuple[int, int]] = []
    for span in sorted(found, key=lambda span: (span[0] - span[1], span[0])):
        if not any(first <= span[0] and span[1] <= last for first, last in kept):
            kept.append(span)
    return [value for span in sorted(kept) for value in found[span]]


def column_values(cells: Sequence[str]) -> dict[int, Value]:
    """Row -> the value of its cell, of the kind that most cells of a column have; none where too few have one kind."""
    found = [values_of(cell) for cell in cells]
    kinds = Counter(kind for values in found for kind in {type(value) for value in values})
    if not kinds or (most := max(kinds.values())) < len(cells) * _COMMON:
        return {}
    kind = tuple if kinds[tuple] == most else float
    first = ((row, next((value for value in values if type(value) is kind), None)) for row, values in enumerate(found))
    return {row: value for row, value in first if value is not None}


def comparable(values: Sequence[Value]) -> list[Any] | None:
    """Values as what can be compared: dates by the parts that all have; ``None`` where they have nothing in common."""
    if len({type(value) for value in values}) != 1:
        return None
    if not isinstance(values[0], tuple):
        return list(values)
    shared = [part for part in range(3) if all(value[part] is not None for value in values)]  # type: ignore[index]
    return [tuple(value[part] for part in shared) for value in values] if shared else None  # type: ignore[index]
