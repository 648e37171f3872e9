"""Tables in text: a line a row, with a comma, a semicolon or a tab between values."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator
from typing import Any

from transept.errors import FormatError
from transept.training.data.arrow import Row
from transept.training.data.lines import MAX_LINE_BYTES, lines_of

MOST_HEADER_WORDS = 4
MOST_DIGITS = 64
# What a column holds is the highest of its cells: nothing, whole numbers, numbers, texts.
_EMPTY, _WHOLE, _NUMBER, _TEXT = range(4)
_CONVERSIONS: dict[int, Callable[[str], Any]] = {_WHOLE: int, _NUMBER: float}


def read_delimited(
    name: str, codec: str, header: bool | None, **dialect: Any
) -> tuple[list[str], bool, Iterator[tuple[int, Row]]]:
    """The columns of a table, whether it names them itself, and its rows with the lines on which they begin.

    The file is read twice, first for what the columns hold.
    ``header`` tells whether the first line has the columns' names, which are else ``column1`` and so on; ``dialect`` is as for
    Python's ``csv.reader``.

    Raises:
        FormatError: lines with different numbers of values, a name that stands twice, or what is no CSV, with the line.
    """
    csv.field_size_limit(MAX_LINE_BYTES)
    records = _records(name, codec, dialect)
    _, first = next(records, (1, list[str]()))
    kinds, may_be_names = [0] * len(first), _may_be_names(first)
    for _, cells in records:
        for column, cell in enumerate(cells):
            may_be_names = may_be_names and cell != first[column]
            kinds[column] = max(kinds[column], _kind(cell)) if kinds[column] < _TEXT else _TEXT
    has_names = may_be_names if header is None else header
    if has_names and len(set(first)) != len(first):
        raise FormatError(f"two columns have one name: {', '.join(first)}.", path=f"{name}:1")
    names = first if has_names else [f"column{number + 1}" for number in range(len(first))]
    if not has_names:
        kinds = [max(kind, _kind(cell)) for kind, cell in zip(kinds, first)]
    read = [_CONVERSIONS.get(kind, str) for kind in kinds]
    records = _records(name, codec, dialect)
    if has_names:
        next(records)
    rows = (
        (line, {name: kind(cell) if kind is str or cell.strip() else None for name, kind, cell in zip(names, read, cells)})
        for line, cells in records
    )
    return names, has_names, rows


def _records(name: str, codec: str, dialect: dict[str, Any]) -> Iterator[tuple[int, list[str]]]:
    """The cells of each line that is not empty, and the line's number (``FormatError``: lines of unequal lengths)."""
    reader, start, width = csv.reader((text for _, text in lines_of(name, codec)), **dialect), 1, 0
    try:
        for cells in reader:
            if cells and len(cells) != (width := width or len(cells)):
                raise _uneven(f"{name}:{start}", len(cells), width)
            if cells:
                yield start, cells
            start = reader.line_num + 1
    except csv.Error as error:
        raise FormatError(f"is not CSV: {error}.", path=f"{name}:{reader.line_num}") from error


def _uneven(place: str, found: int, expected: int) -> FormatError:
    hint = "Put values that hold the separator between double quotes." if found > expected else None
    return FormatError(f"the line has {found} values, but the first one has {expected}.", path=place, hint=hint)


def _may_be_names(cells: list[str]) -> bool:
    """Whether that may be names of columns: short, different, and no numbers; as values they do not come again."""
    named = all(cell.strip() and not _is_number(cell) and len(cell.split()) <= MOST_HEADER_WORDS for cell in cells)
    return named and len(set(cells)) == len(cells)


def _is_number(text: str) -> bool:
    """Whether that is a number, and not a code such as 007."""
    try:
        if len(text) > MOST_DIGITS or not math.isfinite(float(text)):
            return False
    except ValueError:
        return False
    digits = text.strip().lstrip("+-")
    return "_" not in text and digits[:1].isdecimal() and not (digits[:1] == "0" and digits[1:2].isdecimal())


def _kind(cell: str) -> int:
    if not cell.strip():
        return _EMPTY
    if not _is_number(cell):
        return _TEXT
    return _WHOLE if cell.strip().lstrip("+-").isdecimal() else _NUMBER
