"""Rows of ``.csv``, ``.tsv``, ``.jsonl`` and ``.parquet`` files and lines of texts, read as they are worked on.

Memory does not grow with the file. What is wrong with one row is an error in its place; what is wrong with the file is raised.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from transept.errors import FormatError, MissingExtraError, TranseptError
from transept.files import open_regular, parse_json

LINES, JSON, CSV, TSV, PARQUET = "lines", "jsonl", "csv", "tsv", "parquet"
ENDINGS = {
    ".txt": LINES,
    ".jsonl": JSON,
    ".ndjson": JSON,
    ".csv": CSV,
    ".tsv": TSV,
    ".tab": TSV,
    ".parquet": PARQUET,
}
STANDARD_NAME = "standard input"  # which may be empty
BLOCK = 2**18
MAX_LINE = 16 * 2**20  # bytes of a line, and of a row of several
MAX_BATCH = 2**30  # bytes of the rows of a Parquet file that are held at a time
FIRST_GROUP, GROUP = 64, 512  # rows: few at first, so that an answer comes soon


@dataclass(frozen=True)
class Row:
    """Its columns by name; or a line's text, or another JSON value; or the error that stands in its place. And where it is."""

    value: Any
    where: str


def kind_of(name: str) -> str | None:
    """How a file of that name is read; ``None`` where its ending does not tell."""
    return next((kind for ending, kind in ENDINGS.items() if name.lower().endswith(ending)), None)


def read_rows(file: BinaryIO, name: str, kind: str) -> Iterator[list[Row]]:
    """The rows of an open file of lines, JSON lines or separated values, in groups of what is there at a time.

    Raises:
        FormatError: it is empty or no text, a line is too long, or its columns cannot be told apart.
    """
    if kind in (CSV, TSV):
        yield from _Separated(file, name, kind).rows()
        return
    number = 0
    for group in _raw_lines(file, name):
        lines = enumerate(group, number + 1)
        rows = [_row(raw, kind, f"{name}:{line}") for line, raw in lines if kind == LINES or raw.strip()]
        number += len(group)
        if rows:
            yield rows


def read_value(raw: bytes, kind: str, where: str) -> Row:
    """What stands in an argument: a text, or JSON."""
    return _row(raw, kind, where)


def _row(raw: bytes, kind: str, where: str) -> Row:
    try:
        text = decoded(raw.removesuffix(b"\r"))
        return Row(parse_json(text) if kind == JSON else text, where)
    except TranseptError as error:
        error.message = error.message.removesuffix(" (line 1).").rstrip(".") + "."
        return Row(error, where)


def decoded(raw: bytes, path: str | None = None) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"is not UTF-8 text (byte {error.start}).", path=path) from error


def _raw_lines(file: BinaryIO, name: str) -> Iterator[list[bytes]]:
    """Lines without their ends, in groups: a read waits for something, and takes no more than there is."""
    read = getattr(file, "read1", file.read)
    block = read(BLOCK).removeprefix(b"\xef\xbb\xbf")
    if not block and name != STANDARD_NAME:
        raise FormatError("is empty.", path=name)
    if b"\0" in block:
        hint = "Texts are read as UTF-8, pictures and sounds only by the tasks for them."
        raise FormatError("is no text file, since it holds zero bytes.", path=name, hint=hint)
    rest, size = b"", FIRST_GROUP
    while block:
        *found, rest = (rest + block).split(b"\n")
        if len(rest) > MAX_LINE:
            raise FormatError(f"has a line of more than {MAX_LINE} bytes.", path=name)
        while found:
            yield found[:size]
            found, size = found[size:], min(2 * size, GROUP)
        block = read(BLOCK)
    if rest:
        yield [rest]


class _Separated:
    """Rows of a file of separated values, whose first line holds the names of its columns."""

    def __init__(self, file: BinaryIO, name: str, kind: str) -> None:
        self.file, self.name, self.kind = file, name, kind
        self.pending = 0  # bytes that were read since the last whole row
        self.at_end = False  # whether the line at hand is the last one of those that are there

    def rows(self) -> Iterator[list[Row]]:
        csv.field_size_limit(MAX_LINE)
        lines = self._lines()
        if (first := next(lines, None)) is None:
            return
        comma = "," in first or ";" not in first
        dialect: dict[str, Any] = {"delimiter": "," if comma else ";", "strict": True}
        if self.kind == TSV:
            dialect = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
        reader = csv.reader(_before(first, lines), **dialect)
        try:
            names = self._names(next(reader))
            group, start = list[Row](), reader.line_num + 1
            for cells in reader:
                self.pending = 0
                if cells:
                    group.append(Row(_columns(names, cells), f"{self.name}:{start}"))
                start = reader.line_num + 1
                if group and self.at_end:
                    yield group
                    group = []
            if group:
                yield group
        except csv.Error as error:
            raise FormatError(f"is not {self.kind.upper()}: {error}.", path=f"{self.name}:{reader.line_num}") from error

    def _lines(self) -> Iterator[str]:
        for group in _raw_lines(self.file, self.name):
            for place, raw in enumerate(group, 1):
                self.at_end, self.pending = place == len(group), self.pending + len(raw)
                if self.pending > MAX_LINE:
                    raise FormatError(f"has a row of more than {MAX_LINE} bytes.", path=self.name)
                yield raw.decode("utf-8", "surrogateescape") + "\n"

    def _names(self, cells: list[str]) -> list[str]:
        names = [cell if cell.strip() else f"column{place}" for place, cell in enumerate(cells, 1)]
        decoded("".join(names).encode("utf-8", "surrogateescape"), path=f"{self.name}:1")
        return unique(names, f"{self.name}:1")


def unique(names: list[str], path: str) -> list[str]:
    """The names of columns; a ``FormatError`` where two are the same."""
    if (twice := next((name for name, count in Counter(names).items() if count > 1), None)) is not None:
        raise FormatError(f"has two columns of the name {twice!r}.", path=path)
    return names


def _before(first: str, lines: Iterator[str]) -> Iterator[str]:
    yield first
    yield from lines


def _columns(names: list[str], cells: list[str]) -> dict[str, str] | FormatError:
    try:
        decoded("".join(cells).encode("utf-8", "surrogateescape"))
    except FormatError as error:
        return error
    if len(cells) != len(names):
        hint = "Put values that hold the separator between double quotes." if len(cells) > len(names) else None
        return FormatError(f"the line has {len(cells)} values, but the first one names {len(names)} columns.", hint=hint)
    return dict(zip(names, cells))


def read_parquet(path: str) -> Iterator[list[Row]]:
    """The rows of a Parquet file, in groups.

    Raises:
        MissingExtraError: the package pyarrow is not there.
        FileError, FormatError: it cannot be read, is no Parquet, or holds rows of more than a gigabyte.
    """
    parquet, errors = _pyarrow()
    with open_regular(path) as file:
        number = 0
        try:
            for batch in parquet.ParquetFile(file).iter_batches(FIRST_GROUP):
                if batch.nbytes > MAX_BATCH:
                    raise FormatError(f"{len(batch)} of its rows hold {batch.nbytes} bytes, too many to read.", path=path)
                yield [Row(row, f"{path}:{number + place}") for place, row in enumerate(batch.to_pylist(), 1)]
                number += len(batch)
        except errors as error:
            raise _no_parquet(path, error) from error


def parquet_columns(path: str) -> tuple[list[str], int]:
    """The names of a Parquet file's columns, and the number of its rows; see :func:`read_parquet` for errors."""
    parquet, errors = _pyarrow()
    with open_regular(path) as file:
        try:
            found = parquet.ParquetFile(file)
            return unique(list(found.schema_arrow.names), path), found.metadata.num_rows
        except errors as error:
            raise _no_parquet(path, error) from error


def _pyarrow() -> tuple[Any, tuple[type[Exception], ...]]:
    """The module that reads Parquet, and its errors."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "train", "Reading and writing Parquet files") from error
    return pyarrow.parquet, (pyarrow.ArrowException, OSError, UnicodeError)


def _no_parquet(path: str, error: Exception) -> FormatError:
    return FormatError(f"cannot be read as Parquet ({str(error)[:200]}).", path=path)
