"""Inputs of long work: arguments, lines, rows of tables, media files and folders.

Every input knows where it stands; what cannot be read is an error in its place, and the others are answered.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any, BinaryIO

from transept.batch.encode import plain
from transept.errors import FileError, FormatError, InputError, TranseptError, nearest
from transept.storage.files import reason, safe_join
from transept.tables.parquet import parquet_columns, read_parquet
from transept.tables.text import LINES, MEDIA, PARQUET, SEPARATED, STANDARD_NAME, PlacedRow, kind_of, read_rows, read_value

STANDARD = "-"
MEDIA_GROUP = 64


@dataclass(frozen=True)
class Item:
    """One input, or the error in its place; where that is; and ``about``, the columns that its answer belongs to."""

    value: Any
    where: str
    about: Mapping[str, Any]


@dataclass(frozen=True)
class Span:
    """What of a file a part is: the bytes from ``start`` to ``stop`` behind a table's ``head``, or a row group."""

    start: int = 0
    stop: int = 0
    head: bytes = b""
    group: int | None = None
    before: int = 0  # rows before the row group


class _Bytes:
    """The bytes of a span of an open file, behind its head."""

    def __init__(self, file: BinaryIO, span: Span) -> None:
        self.file, self.head, self.left = file, span.head, span.stop - span.start
        file.seek(span.start)

    def read(self, size: int) -> bytes:
        head, self.head = self.head[:size], self.head[size:]
        data = head + self.file.read(min(size - len(head), self.left))
        self.left -= len(data) - len(head)
        return data


Groups = Iterable[list[Item]]


@dataclass(frozen=True)
class Reading:
    """How inputs are read.

    Args:
        form: of lines and arguments, where the files' names do not tell.
        columns: what is read of a row, the first of these that is there: names of columns; those with ``?`` may lack.
        column: the column that is read in place of these.
        id: the column that tells rows apart; ``id`` where there is such a one.
        keep: the columns that go with the answers; all where it is ``None``.
        glob: which files of a folder are read.
        media: the endings of files that are one input each; of a task for texts ``None``.
    """

    form: str | None = None
    columns: tuple[str, ...] = ("text",)
    column: str | None = None
    id: str | None = None
    glob: str | None = None
    media: tuple[str, ...] | None = None
    keep: tuple[str, ...] | None = None

    def pick(self, row: Mapping[str, Any]) -> Any:
        """What is read of a row: one value, or a mapping of several (``InputError``: the row lacks the columns)."""
        if self.column is not None:
            if self.column in row:
                return row[self.column]
            raise InputError(f"there is no column {self.column!r}.", hint=nearest(self.column, row))
        names = {name.lower(): name for name in row}
        for wanted in self.columns:
            if all(name in names for name in wanted.split() if not name.endswith("?")):
                columns = [name for name in wanted.replace("?", "").split() if name in names]
                values = {name: row[names[name]] for name in columns}
                return values[columns[0]] if len(columns) == 1 else values
        what = f"it cannot be told which column is the input; there are: {', '.join(map(repr, row)) or 'none'}."
        raise InputError(what, hint="Pass --column NAME.")

    def check(self, names: Sequence[str], path: str, kind: str) -> None:
        """Raise ``InputError`` where a table with these columns holds no input."""
        try:
            self.pick(dict.fromkeys(names))
            for name in (*([] if self.id is None else [self.id]), *(self.keep or ())):
                if name not in names:
                    raise InputError(f"there is no column {name!r}.", hint=nearest(name, names))
        except InputError as error:
            error.path = path
            if kind in SEPARATED:
                error.hint = f"{error.hint} The first line of the file holds the names."
            raise


class Inputs:
    """The inputs of arguments, or of files, folders and standard input (``-``), in order and as they come.

    A folder's inputs are told by their endings; what ``glob`` names is one unless its ending is that of another kind.
    ``skipped`` are the files of folders that are no inputs. What is wrong with a file is raised, and where they are ``lenient``
    not before it is read.
    """

    def __init__(self, files: Sequence[str], reading: Reading, arguments: Sequence[str] = (), *, lenient: bool = False) -> None:
        self.reading, self.arguments = reading, arguments
        self.paths: list[str] = []
        self.skipped: list[str] = []
        for path in files:
            if path != STANDARD and os.path.isdir(path):
                self._add_folder(path)
            elif path == STANDARD or os.path.exists(path):
                self.paths.append(path)
            else:
                raise FileError("there is no such file.", path=path or "''")
        self.several = len(self.paths) > 1
        self._counted: dict[str, tuple[int, int]] = {}
        for path in filter(os.path.isfile, self.paths):
            with suppress(*((FormatError, FileError) if lenient else ())):
                self._check(path)

    def _add_folder(self, folder: str) -> None:
        """Note what is an input of a folder, and what is not."""
        pattern = "*" if self.reading.glob is None else self.reading.glob
        try:
            files = sorted(path for path in Path(folder).glob(pattern) if path.is_file())
        except (ValueError, NotImplementedError) as error:
            what = f"{pattern!r} is no pattern of names in a folder ({error})."
            raise InputError(what, hint="Such as '*.png'.") from error
        media = self.reading.media
        for path in files:
            name, is_hidden = path.name.lower(), any(part.startswith(".") for part in path.relative_to(folder).parts)
            is_of_rows = kind_of(name) is not None
            is_other = is_of_rows or name.endswith(MEDIA) or self.reading.glob is None
            is_input = (is_of_rows if media is None else name.endswith(media)) or not is_other
            if not is_hidden:
                (self.paths if is_input else self.skipped).append(str(path))

    def _check(self, path: str) -> None:
        if not self.is_of_rows(path):
            return
        if (kind := self.kind(path)) == PARQUET:
            self.reading.check(parquet_columns(path)[0], path, kind)
        elif first := next(self._rows(path), None):
            row = first[0].value
            if isinstance(row, Mapping):
                self.reading.check(list(row), path, kind)

    def is_of_rows(self, path: str) -> bool:
        """Whether a file holds rows or lines, and is not an input itself."""
        media = self.reading.media
        if media is None or path == STANDARD or kind_of(path) is not None:
            return True
        return self.reading.form is not None and not path.lower().endswith(media)

    def kind(self, path: str) -> str:
        """How a file of rows is read."""
        if self.reading.form is None and path.lower().endswith(".json"):
            hint = "Name it .jsonl if it holds a JSON value a line, or pass --format."
            raise InputError("a .json file is one document, and not one input a line.", path=path, hint=hint)
        return self.reading.form or kind_of(path) or LINES

    def groups(self) -> Iterator[list[Item]]:
        """The inputs, in groups of what is there at a time."""
        form = self.reading.form or LINES
        rows = [read_value(value, form, f"argument {place}") for place, value in enumerate(self.arguments, 1)]
        if rows:
            yield [self._item(row, place, None) for place, row in enumerate(rows, 1)]
        number = 0
        for of_rows, paths in groupby(self.paths, self.is_of_rows):
            if of_rows:
                for path in paths:
                    for rows in self._rows(path):
                        yield [self._item(row, place, path) for place, row in enumerate(rows, number + 1)]
                        number += len(rows)
            else:
                for group in _media(paths):
                    yield group
                    number += len(group)

    def part(self, path: str, span: Span | None, media: Iterable[str] = ()) -> Iterator[list[Item]]:
        """The inputs of a part of a file, whose numbers are those of its lines or rows, or some media files."""
        if span is None:
            yield from _media(media)
            return
        for rows in self._rows(path, span):
            yield [self._item(row, int(row.where.rpartition(":")[2]), path) for row in rows]

    def _lines_before(self, path: str, span: Span) -> int:
        """How many lines stand before a part; parts are mostly read in order, so that bytes are read once."""
        at, lines = self._counted.get(path, (0, 0))
        if at > span.start:
            at = lines = 0
        with opened(path) as file:
            file.seek(at)
            while at < span.start and (block := file.read(min(span.start - at, 2**20))):
                at, lines = at + len(block), lines + block.count(b"\n")
        self._counted[path] = at, lines
        return lines - span.head.count(b"\n")

    def _rows(self, path: str, span: Span | None = None) -> Iterator[list[PlacedRow]]:
        kind = self.kind(path)
        if kind == PARQUET:
            if path == STANDARD:
                raise InputError("Parquet cannot be read from standard input.", hint="Pass its file.")
            yield from read_parquet(path) if span is None else read_parquet(path, span.group, span.before)
            return
        before = 0 if span is None else self._lines_before(path, span)
        with opened(path) as file:
            source = file if span is None else _Bytes(file, span)
            for rows in read_rows(source, STANDARD_NAME if path == STANDARD else path, kind, before):
                kept = [row for row in rows if self.reading.media is None or str(row.value).strip()]
                if kept:
                    yield kept

    def _item(self, row: PlacedRow, number: int, path: str | None) -> Item:
        """The input of a row, a line or an argument."""
        several = {"file": plain(path)} if self.several and path is not None and path != STANDARD else {}
        value, about = row.value, several | {"number": number}
        if isinstance(value, Mapping):
            about = self._about(value, about)
            try:
                value = self.reading.pick(value)
            except InputError as error:
                value = error
        elif not isinstance(value, TranseptError):
            is_text = isinstance(value, str)
            is_file = is_text and self.reading.media is not None
            about = {"file": plain(value)} if is_file else about | {"text" if is_text else "input": value}
        return Item(self._located(value, path), row.where, about)

    def _about(self, row: Mapping[str, Any], place: Mapping[str, Any]) -> dict[str, Any]:
        """The columns of a row without bytes; its number where it has no id, and its file where there are several."""
        if self.reading.keep is not None:
            return {name: _without_bytes(row.get(name)) for name in self.reading.keep}
        column = self.reading.id or "id"
        known = {column: row[column]} if row.get(column) is not None else {}
        place = {name: value for name, value in place.items() if name not in row and not (known and name == "number")}
        kept = {name: _without_bytes(value) for name, value in row.items() if not isinstance(value, bytes)}
        return {**place, **known, **kept}

    def _located(self, value: Any, path: str | None) -> Any:
        """A path of a picture or sound, which may be one from the file that names it."""
        is_path = self.reading.media is not None and isinstance(value, str)
        if not is_path or path is None or path == STANDARD or os.path.exists(value):
            return value
        with suppress(FormatError):  # it leads out of the folder
            beside = safe_join(Path(path).parent, value)
            return str(beside) if beside.exists() else value
        return value

    def count(self) -> int | None:
        """How many they are; ``None`` where that is not known before they are read, as of pipes."""
        if any(path == STANDARD or not os.path.isfile(path) for path in self.paths):
            return None
        parquet = [path for path in self.paths if self.is_of_rows(path) and self.kind(path) == PARQUET]
        if parquet and len(parquet) == len(self.paths):
            return sum(parquet_columns(path)[1] for path in parquet)
        return sum(map(len, self.groups()))


def _media(paths: Iterable[str]) -> Iterator[list[Item]]:
    items = (Item(path, path, {"file": plain(path)}) for path in paths)
    while group := list(islice(items, MEDIA_GROUP)):
        yield group


def _without_bytes(value: Any) -> Any:
    """A picture or a sound of a data set without its content."""
    if isinstance(value, Mapping):
        return {name: item for name, item in value.items() if not isinstance(item, bytes)}
    return value


def read_all() -> str:
    """The whole of standard input; ``FormatError`` where it is no text."""
    with opened(STANDARD) as file:
        data = file.read()
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"is not UTF-8 text (byte {error.start}).", path=STANDARD_NAME) from error


def opened(path: str) -> AbstractContextManager[Any]:
    """A file, or standard input for ``-``, to read bytes from; ``FileError`` where it cannot be opened."""
    if path == STANDARD:
        if sys.stdin is None:
            raise FileError("standard input is closed.", hint="Pass inputs as arguments or in files.")
        return nullcontext(sys.stdin.buffer)
    try:
        return open(path, "rb")
    except (OSError, ValueError) as error:
        raise FileError(f"cannot be read ({reason(error)}).", path=path) from error
