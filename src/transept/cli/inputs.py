"""What goes in: arguments, lines of texts, lines of JSON, media files, standard input. All of it is read as it comes.

Every input knows where it stands, so that an error can say so; what cannot be read is an error in its place, and the others
are answered.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from transept.cli.terminal import complain
from transept.errors import FileError, FormatError, TranseptError
from transept.files import parse_json, reason

LINES, JSON = "lines", "jsonl"
FORMATS = (LINES, JSON)
STANDARD, STANDARD_NAME = "-", "standard input"
BLOCK = 2**18
MAX_LINE = 16 * 2**20
FIRST_GROUP, GROUP, MEDIA_GROUP = 64, 512, 64  # lines: few at first, so that an answer comes soon
JSON_NAMES = (".jsonl", ".ndjson")


@dataclass(frozen=True)
class Item:
    """One input, or the error that stands in its place; and where that is."""

    value: Any
    where: str


Groups = Iterable[list[Item]]


def check_there(paths: Iterable[str]) -> None:
    """Raise ``FileError`` where a file is not there, before anything slow begins."""
    for path in paths:
        if path != STANDARD and not os.path.exists(path):
            raise FileError("there is no such file.", path=path or "''")


def from_arguments(values: Sequence[str], form: str | None) -> list[Item]:
    """The arguments themselves, as texts, paths or JSON."""
    return [_item(os.fsencode(value), form or LINES, f"argument {number}") for number, value in enumerate(values, 1)]


def from_files(paths: Sequence[str], form: str | None, *, media: bool) -> Iterator[list[Item]]:
    """The inputs of files, in order and as they come.

    Args:
        paths: files or, for media, directories of them; ``-`` is standard input.
        form: how lines are read; by the file's name when absent: ``.jsonl`` and ``.ndjson`` hold JSON.
        media: whether files hold one picture or sound each; then only ``.txt`` and ``.jsonl`` files hold lines, of paths.
    """
    for lined, group in groupby(paths, lambda path: _is_lined(path, media)):
        if lined:
            for path in group:
                yield from read_lines(path, form or (JSON if _suffix(path) in JSON_NAMES else LINES), skip_blank=media)
        else:
            items = (Item(path, path) for path in _media(group))
            while some := list(islice(items, MEDIA_GROUP)):
                yield some


def count_inputs(paths: Sequence[str], *, media: bool) -> int | None:
    """How many inputs files hold, at most; ``None`` where that is not known before they are read, as of pipes."""
    if any(path == STANDARD or not (os.path.isfile(path) or os.path.isdir(path)) for path in paths):
        return None
    return sum(map(len, from_files(paths, LINES, media=media)))


def _is_lined(path: str, media: bool) -> bool:
    return not media or path == STANDARD or _suffix(path) in (".txt", *JSON_NAMES)


def _suffix(path: str) -> str:
    return Path(path).suffix.lower()


def _media(paths: Iterable[str]) -> Iterator[str]:
    """Paths, and for directories those of the files in them."""
    for path in paths:
        if os.path.isdir(path):
            with os.scandir(path) as entries:
                yield from sorted(entry.path for entry in entries if entry.is_file() and not entry.name.startswith("."))
        else:
            yield path


def read_lines(path: str, form: str = LINES, *, skip_blank: bool = False) -> Iterator[list[Item]]:
    """The lines of a file or of standard input, in groups of what is there at a time."""
    name, number, blank = STANDARD_NAME if path == STANDARD else path, 0, not (skip_blank or form == JSON)
    with opened(path) as file:
        for group in _raw_lines(file, name):
            items = [_item(raw, form, f"{name}:{n}") for n, raw in enumerate(group, number + 1) if blank or raw.strip()]
            number += len(group)
            if items:
                yield items


def read_all() -> str:
    """The whole of standard input; ``FormatError`` where it is no text."""
    with opened(STANDARD) as file:
        return _decoded(file.read(), path=STANDARD_NAME)


@contextmanager
def opened(path: str) -> Iterator[Any]:
    """A file, or standard input for ``-``, to read bytes from; ``FileError`` where it cannot be opened."""
    if path == STANDARD:
        if sys.stdin is None:
            raise FileError("standard input is closed.", hint="Pass inputs as arguments or in files.")
        if sys.stdin.isatty():
            complain("reading from the terminal; Ctrl-D ends.", "note")
        yield sys.stdin.buffer
        return
    try:
        file = open(path, "rb")  # noqa: SIM115 (closed below, and errors of its users are not ours)
    except (OSError, ValueError) as error:
        raise FileError(f"cannot be read ({reason(error)}).", path=path) from error
    with file:
        yield file


def _raw_lines(file: Any, name: str) -> Iterator[list[bytes]]:
    """Lines without their ends, in groups: a read waits for something, and takes no more than there is."""
    block = file.read1(BLOCK).removeprefix(b"\xef\xbb\xbf")
    if not block and name != STANDARD_NAME:
        raise FormatError("is empty.", path=name)
    if b"\0" in block:
        hint = "Texts are read as lines of UTF-8, pictures and sounds only by the tasks for them."
        raise FormatError("is no text file, since it holds zero bytes.", path=name, hint=hint)
    rest, size = b"", FIRST_GROUP
    while block:
        *found, rest = (rest + block).split(b"\n")
        if len(rest) > MAX_LINE:
            raise FormatError(f"has a line of more than {MAX_LINE} bytes.", path=name)
        while found:
            yield found[:size]
            found, size = found[size:], min(2 * size, GROUP)
        block = file.read1(BLOCK)
    if rest:
        yield [rest]


def _decoded(raw: bytes, path: str | None = None) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"is not UTF-8 text (byte {error.start}).", path=path) from error


def _item(raw: bytes, form: str, where: str) -> Item:
    """A line or an argument as an input, or as an error; ``{"text": "I love this"}`` is its text."""
    try:
        value: Any = _decoded(raw.removesuffix(b"\r"))
        if form == JSON:
            value = parse_json(value)
            value = value["text"] if isinstance(value, dict) and list(value) == ["text"] else value
        return Item(value, where)
    except TranseptError as error:
        error.message = error.message.removesuffix(" (line 1).").rstrip(".") + "."
        return Item(error, where)
