"""Lines of text files, and rows of ``.csv``, ``.tsv`` and ``.jsonl`` files, read as they are worked on.

Memory does not grow with the file. A wrong row is an error in its place; what is wrong with the file is raised.
"""

from __future__ import annotations

import codecs
import csv
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

from transept.errors import FormatError, TranseptError
from transept.storage.files import parse_json

LINES, JSON, CSV, TSV, PARQUET = "lines", "jsonl", "csv", "tsv", "parquet"
SEPARATED = (CSV, TSV)
ENDINGS = {
    ".txt": LINES,
    ".jsonl": JSON,
    ".ndjson": JSON,
    ".csv": CSV,
    ".tsv": TSV,
    ".tab": TSV,
    ".parquet": PARQUET,
}
IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff")
SOUNDS = (".wav", ".flac", ".mp3", ".ogg")
MEDIA = IMAGES + SOUNDS
STANDARD_NAME = "standard input"  # which may be empty
BLOCK = 2**18  # bytes that are read at a time
MAX_LINE = 64 * 2**20  # characters of a line, and of a row of several
FIRST_GROUP, GROUP = 64, 512  # rows: few at first, so that an answer comes soon
_UNDECODABLE = "\udcff"  # stands for bytes that are no text; no text holds it
codecs.register_error("transept.undecodable", lambda error: (_UNDECODABLE, error.end))  # type: ignore[attr-defined]


@dataclass(frozen=True)
class PlacedRow:
    """Columns by name, a line's text, another JSON value, or the error in its place; and where it stands."""

    value: Any
    where: str


class Readable(Protocol):
    """What bytes are read from."""

    def read(self, size: int, /) -> bytes: ...


def kind_of(name: str) -> str | None:
    """How a file of that name is read; ``None`` where its ending does not tell."""
    return next((kind for ending, kind in ENDINGS.items() if name.lower().endswith(ending)), None)


def undecodable(text: str) -> int | None:
    """The byte of a decoded line at which it is no text, counted in UTF-8; ``None`` where it is text."""
    if not text.isascii():  # which is much faster to know
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            return len(text[: error.start].encode("utf-8"))
    return None


def read_lines(file: Readable, name: str, codec: str = "utf-8", *, zeros: bool = True) -> Iterator[list[str]]:
    """The lines of an open file with their ends, in groups of what is there at a time.

    Bytes that are no text in ``codec`` make a line that :func:`undecodable` tells.

    Raises:
        FormatError: a line is too long, or, without ``zeros``, the file begins with a block that holds zero bytes.
    """
    read = getattr(file, "read1", file.read)  # waits for something, and takes no more than there is
    decoder = codecs.getincrementaldecoder("utf-8-sig" if codec == "utf-8" else codec)("transept.undecodable")
    unfinished, length, size, number, block = list[str](), 0, FIRST_GROUP, 1, b"-"
    while block:
        block = read(BLOCK)
        if not zeros and b"\0" in block:
            hint = "Texts are read as UTF-8, pictures and sounds only by the tasks for them."
            raise FormatError("is no text file, since it holds zero bytes.", path=name, hint=hint)
        zeros = True
        first, *others = decoder.decode(block, not block).split("\n")
        unfinished.append(first)
        length += len(first)
        if length > MAX_LINE:
            raise FormatError(f"has a line of more than {MAX_LINE} characters.", path=f"{name}:{number}")
        if others:
            lines = [f"{line}\n" for line in ("".join(unfinished), *others[:-1])]
            unfinished, length = [others[-1]], len(others[-1])
            number += len(lines)
        while others and lines:
            yield lines[:size]
            lines, size = lines[size:], min(2 * size, GROUP)
    if length:
        yield ["".join(unfinished)]


def read_rows(file: Readable, name: str, kind: str, before: int = 0) -> Iterator[list[PlacedRow]]:
    """The rows of an open file of lines, JSON lines or separated values, in groups of what is there at a time.

    Of a part of a file, ``before`` lines stand before it.

    Raises:
        FormatError: it is empty or no text, a line is too long, or its columns cannot be told apart.
    """
    groups = read_lines(file, name, zeros=False)
    first = next(groups, [])
    if not first and name != STANDARD_NAME:
        raise FormatError("is empty.", path=name)
    groups, number = chain([first], groups), before
    if kind in SEPARATED:
        yield from _rows_of_table(read_records(groups, name, kind, before), name)
        return
    for group in groups:
        lines = [(place, line) for place, line in enumerate(group, number + 1) if kind == LINES or line.strip()]
        number += len(group)
        if lines:
            yield [read_value(line.removesuffix("\n"), kind, f"{name}:{place}") for place, line in lines]


def read_value(text: str, kind: str, where: str) -> PlacedRow:
    """What stands in a line or an argument: a text, or JSON."""
    try:
        _check_text(text)
        text = text.removesuffix("\r")
        return PlacedRow(parse_json(text) if kind == JSON else text, where)
    except TranseptError as error:
        error.message = error.message.removesuffix(" (line 1).").rstrip(".") + "."
        return PlacedRow(error, where)


def _check_text(text: str, path: str | None = None) -> None:
    if (at := undecodable(text)) is not None:
        raise FormatError(f"is not UTF-8 text (byte {at}).", path=path)


def read_records(groups: Iterable[list[str]], name: str, kind: str, before: int = 0) -> Iterator[list[tuple[int, list[str]]]]:
    """The cells of a table's lines that are not empty, with the numbers of the lines on which they begin, in groups.

    In CSV a semicolon separates where the first line holds no comma; in TSV quotes are characters.

    Raises:
        FormatError: a row is too long, or quotes are wrong.
    """
    csv.field_size_limit(MAX_LINE)
    unread = pending = 0  # lines of the group at hand, and characters since the last whole record

    def lines() -> Iterator[str]:
        nonlocal unread, pending
        for group in groups:
            for unread, line in zip(reversed(range(len(group))), group):  # noqa: B007
                pending += len(line)
                if pending > MAX_LINE:
                    raise FormatError(f"has a row of more than {MAX_LINE} characters.", path=name)
                yield line

    source = lines()
    first = next(source, "")
    separator = ";" if "," not in first and ";" in first else ","
    dialect: dict[str, Any] = {"delimiter": separator, "strict": True}
    if kind == TSV:
        dialect = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    reader, records, start = csv.reader(chain([first], source), **dialect), list[tuple[int, list[str]]](), before + 1
    try:
        for cells in reader:
            pending = 0
            if cells:
                records.append((start, cells))
            start = before + reader.line_num + 1
            if records and not unread:
                yield records
                records = []
    except csv.Error as error:
        raise FormatError(f"is not {kind.upper()}: {error}.", path=f"{name}:{before + reader.line_num}") from error
    if records:
        yield records


def even_records(groups: Iterable[list[str]], name: str, kind: str) -> Iterator[tuple[int, list[str]]]:
    """Those of :func:`read_records` one by one (``FormatError``: one has another number of cells than the first)."""
    width = 0
    for records in read_records(groups, name, kind):
        for line, cells in records:
            width = width or len(cells)
            if len(cells) != width:
                raise uneven(cells, width, f"{name}:{line}")
            yield line, cells


def unique(names: list[str], path: str) -> list[str]:
    """The names of columns (``FormatError``: two are the same)."""
    if (twice := next((name for name, count in Counter(names).items() if count > 1), None)) is not None:
        raise FormatError(f"has two columns of the name {twice!r}.", path=path)
    return names


def uneven(cells: list[str], columns: int, path: str | None = None) -> FormatError:
    """The error of a line that has another number of values than the first one."""
    hint = "Put values that hold the separator between double quotes." if len(cells) > columns else None
    return FormatError(f"the line has {len(cells)} values, but the first one has {columns}.", path=path, hint=hint)


def _rows_of_table(groups: Iterator[list[tuple[int, list[str]]]], name: str) -> Iterator[list[PlacedRow]]:
    """Rows by the names of the columns, which the first line holds."""
    names: list[str] = []
    for group in groups:
        if not names:
            (_, cells), *group = group
            _check_text("".join(cells), f"{name}:1")
            named = [cell if cell.strip() else f"column{place}" for place, cell in enumerate(cells, 1)]
            names = unique(named, f"{name}:1")
        if group:
            yield [PlacedRow(_columns(names, cells), f"{name}:{line}") for line, cells in group]


def _columns(names: list[str], cells: list[str]) -> dict[str, str] | FormatError:
    try:
        _check_text("".join(cells))
    except FormatError as error:
        return error
    return dict(zip(names, cells)) if len(cells) == len(names) else uneven(cells, len(names))
