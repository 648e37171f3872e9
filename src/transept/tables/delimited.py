"""Tables in text whose columns get types, and may have no names."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from transept.tables.dataset import Row, TableDataset, collected
from transept.tables.text import read_records, uneven, unique

MOST_HEADER_WORDS = 4
MOST_DIGITS = 64
# What a column holds is the highest of its cells: nothing, whole numbers, numbers, texts.
_EMPTY, _WHOLE, _NUMBER, _TEXT = range(4)
_CONVERSIONS: dict[int, Callable[[str], Any]] = {_WHOLE: int, _NUMBER: float}
Records = Iterator[tuple[int, list[str]]]


def read_delimited(groups: Callable[[], Iterator[list[str]]], name: str, kind: str, header: bool | None) -> TableDataset:
    """The rows of a table, which is read twice, first for what the columns hold.

    Args:
        groups: gives its lines anew.
        name: the file.
        kind: ``csv`` or ``tsv``.
        header: whether the first line has the columns' names, which are else ``column1`` and so on; told when absent.

    Raises:
        FormatError: lines with different numbers of values, a name that stands twice, or what is no CSV, with the line.
    """
    records = _records(groups(), name, kind)
    _, first = next(records, (1, list[str]()))
    kinds, may_be_names = [_EMPTY] * len(first), _may_be_names(first)
    for _, cells in records:
        for column, cell in enumerate(cells):
            may_be_names = may_be_names and cell != first[column]
            kinds[column] = max(kinds[column], _kind(cell)) if kinds[column] < _TEXT else _TEXT
    if has_names := may_be_names if header is None else header:
        names = unique(first, f"{name}:1")
    else:
        names = [f"column{number + 1}" for number in range(len(first))]
        kinds = [max(kind, _kind(cell)) for kind, cell in zip(kinds, first)]
    records = _records(groups(), name, kind)
    if has_names:
        next(records)
    types = [_CONVERSIONS.get(kind, str) for kind in kinds]
    rows = ((line, _row(names, types, cells)) for line, cells in records)
    notes = [f"{name}: the first line holds no names, so that the columns are called {', '.join(names)}."]
    return collected(name, rows, names, notes=() if has_names else notes)


def _row(names: list[str], types: list[Callable[[str], Any]], cells: list[str]) -> Row:
    return {name: kind(cell) if kind is str or cell.strip() else None for name, kind, cell in zip(names, types, cells)}


def _records(groups: Iterator[list[str]], name: str, kind: str) -> Records:
    """The cells of the lines that are not empty, with the lines' numbers (``FormatError``: lines of unequal lengths)."""
    width = 0
    for records in read_records(groups, name, kind):
        for line, cells in records:
            width = width or len(cells)
            if len(cells) != width:
                raise uneven(cells, width, f"{name}:{line}")
            yield line, cells


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
