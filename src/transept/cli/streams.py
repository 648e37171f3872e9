"""What goes in, read as it comes: arguments, lines of texts or JSON, media files; and what comes out: lines, arrays, rankings.

Every input knows where it stands; what cannot be read is an error in its place, and the others are answered.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

from transept.cli.terminal import Style, as_text, complain, drawn, encode, shorten
from transept.errors import FileError, FormatError, TranseptError
from transept.files import parse_json, reason
from transept.output_file import OutputFile

LINES, JSON = "lines", "jsonl"
FORMATS = (LINES, JSON)
STANDARD, STANDARD_NAME = "-", "standard input"
BLOCK = 2**18
MAX_LINE = 16 * 2**20
FIRST_GROUP, GROUP, MEDIA_GROUP = 64, 512, 64  # lines: few at first, so that an answer comes soon
JSON_NAMES = (".jsonl", ".ndjson")
LINED_NAMES = (".txt", *JSON_NAMES)  # of files of paths, among media files


@dataclass(frozen=True)
class Item:
    """One input, or the error that stands in its place; and where that is."""

    value: Any
    where: str


Groups = Iterable[list[Item]]
Pairs = Sequence[tuple[Item, Any]]


def from_arguments(values: Sequence[str], form: str | None) -> list[Item]:
    """The arguments themselves, as texts, paths or JSON."""
    return [_item(os.fsencode(value), form or LINES, f"argument {number}") for number, value in enumerate(values, 1)]


def from_files(paths: Sequence[str], form: str | None, *, media: bool) -> Iterator[list[Item]]:
    """The inputs of files (``-`` is standard input), in order and as they come; ``form`` is how lines are read.

    Where files are ``media``, of one picture or sound each, a path may be a directory, and files by name of lines hold paths.
    """
    for lined, group in groupby(paths, lambda path: not media or path == STANDARD or path.lower().endswith(LINED_NAMES)):
        if lined:
            for path in group:
                kind = JSON if path.lower().endswith(JSON_NAMES) else LINES
                yield from read_lines(path, form or kind, skip_blank=media)
        else:
            items = (Item(path, path) for path in _media(group))
            while some := list(islice(items, MEDIA_GROUP)):
                yield some


def count_inputs(paths: Sequence[str], *, media: bool) -> int | None:
    """How many inputs files hold, at most; ``None`` where that is not known before they are read, as of pipes."""
    if any(path == STANDARD or not (os.path.isfile(path) or os.path.isdir(path)) for path in paths):
        return None
    return sum(map(len, from_files(paths, LINES, media=media)))


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


def opened(path: str) -> AbstractContextManager[Any]:
    """A file, or standard input for ``-``, to read bytes from; ``FileError`` where it cannot be opened."""
    if path == STANDARD:
        if sys.stdin is None:
            raise FileError("standard input is closed.", hint="Pass inputs as arguments or in files.")
        if sys.stdin.isatty():
            complain("reading from the terminal; Ctrl-D ends.", "note")
        return nullcontext(sys.stdin.buffer)
    try:
        return open(path, "rb")
    except (OSError, ValueError) as error:
        raise FileError(f"cannot be read ({reason(error)}).", path=path) from error


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


def json_line(item: Item, answer: Any) -> str:
    return f"{encode(answer)}\n"


def draw(style: Style, named: bool, item: Item, answer: Any) -> str:
    """An answer as a person likes to see it, below its input where that is ``named``; errors stand on stderr."""
    if isinstance(answer, TranseptError):
        return ""
    lines = drawn(answer, style)
    if named:
        lines = [style(shorten(as_text(item.value), style.width), "bold"), *(f"  {line}" for line in lines)]
    return "".join(f"{line}\n" for line in lines)


class Lines:
    """Where answers go: as lines of ``text``, in a file or on standard output.

    ``begin`` gives how many inputs are answered already, and ``end`` does what needs all answers.
    """

    def __init__(self, file: OutputFile | None = None, text: Callable[[Item, Any], str] = json_line) -> None:
        self.file, self.text = file, text

    def begin(self) -> int:
        if self.file is None or not self.file.resume:
            return 0
        whole = [len(line) for line in self.file.file if line.endswith(b"\n")]
        self.file.keep(len(whole), sum(whole))
        return len(whole)

    def end(self) -> None:
        pass

    def write(self, pairs: Pairs) -> None:
        text = "".join(self.text(item, answer) for item, answer in pairs)
        if self.file is not None:
            self.file.write(text.encode("utf-8", "backslashreplace"), len(pairs))
        else:
            print(text, end="", flush=True)


class Vectors(Lines):
    """A ``.npy`` file (N, ``size``) of float32 that grows, with NaN in the rows of inputs that failed."""

    file: OutputFile

    def __init__(self, file: OutputFile, size: int) -> None:
        super().__init__(file)
        self.size = size

    def begin(self) -> int:
        import numpy as np

        if not self.file.resume:
            self.file.write(self._header())
            return 0
        old: Any = None
        with suppress(OSError, ValueError, EOFError):
            old = np.load(self.file.partial, mmap_mode="r", allow_pickle=False)
        if old is None or old.dtype != np.dtype("<f4") or old.ndim != 2 or old.shape[1] != self.size:
            wrong = f"holds no float32 vectors of {self.size} numbers, as this model makes them."
            raise FormatError(wrong, path=self.file.partial, hint="Use the model that it was begun with.")
        self.file.keep(len(old), old.offset + old.nbytes)
        return len(old)

    def _header(self) -> bytes:
        """Of one length, since numpy leaves room in it for the first axis to grow."""
        import numpy as np

        header, shape = io.BytesIO(), (self.file.rows, self.size)
        np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
        return header.getvalue()

    def write(self, pairs: Pairs) -> None:
        import numpy as np

        rows = np.full((len(pairs), self.size), np.nan, "<f4")
        for row, (_, found) in zip(rows, pairs, strict=True):
            if not isinstance(found, TranseptError):
                row[:] = found
        self.file.write(rows.tobytes(), len(rows))
        self.file.rewrite(self._header())  # so that an interrupted file is whole too


class Ranking(Lines):
    """Passages by their scores, the best first, shown when all are scored: as lines, or in a table for a ``style``."""

    def __init__(self, file: OutputFile | None, top_k: int | None, style: Style | None) -> None:
        super().__init__(file)
        self.top_k, self.style = top_k, style
        self.found: list[tuple[Item, Any]] = []

    def write(self, pairs: Pairs) -> None:
        self.found += pairs

    def end(self) -> None:
        scored = [(score, index, item) for index, (item, score) in enumerate(self.found) if isinstance(score, float)]
        best = enumerate(sorted(scored, key=lambda passage: -passage[0])[: self.top_k], 1)
        pairs = [(item, {"rank": n, "score": score, "index": index, "text": item.value}) for n, (score, index, item) in best]
        if self.style is None:
            super().write(pairs)
        else:
            print("\n".join(drawn([passage for _, passage in pairs], self.style)))
