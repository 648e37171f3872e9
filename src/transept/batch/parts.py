"""Long work over files in parts that anyone may do, twice if need be, into a directory that several processes may share.

A part is a row group of a Parquet file, some bytes of a file of lines that end with a line, or some media files. Its answers
are a file of their own, in the order of its inputs. Who works on a part holds a claim, a file beside it.
"""

from __future__ import annotations

import csv
import os
import re
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

from transept.batch.inputs import Inputs, Span
from transept.batch.output_file import Note
from transept.errors import FileError, FormatError, InputError, TranseptError
from transept.storage.directory import HELD, lock
from transept.storage.files import dump_json, open_regular, parse_json, read_bytes, read_text, reason
from transept.tables.parquet import parquet_batches, parquet_groups
from transept.tables.text import CSV, MAX_LINE, PARQUET, SEPARATED

PART_BYTES = 64 * 2**20
MEDIA_PART = 1024  # files
BEAT, STALE = 5.0, 60.0  # seconds between signs of life, and without any until a claim is another's
WAIT = 1.0  # seconds between looks at what others work on
_PART = re.compile(r"part-\d{5}-\d{5}")


@dataclass(frozen=True)
class Part:
    """Some inputs of one file, or some media files; ``name`` sorts parts in the order of the inputs."""

    name: str
    path: str
    span: Span | None = None
    media: tuple[str, ...] = ()


def plan(inputs: Inputs, size: int = PART_BYTES) -> tuple[list[Part], list[TranseptError]]:
    """The parts of all files, and the errors of files that cannot be read.

    Args:
        size: the bytes of a part of a file of lines, but for the rest of its last line.
    """
    parts, errors, media = list[Part](), list[TranseptError](), list[str]()
    number = 0
    for path in inputs.paths:
        if not inputs.is_of_rows(path):
            media.append(path)
            continue
        try:
            for place, span in enumerate(_spans(path, inputs.kind(path), size)):
                parts.append(Part(f"part-{number:05}-{place:05}", path, span))
        except (FileError, FormatError) as error:
            errors.append(error)
        number += 1
    for start in range(0, len(media), MEDIA_PART):
        group = tuple(media[start : start + MEDIA_PART])
        parts.append(Part(f"part-{number:05}-{start // MEDIA_PART:05}", group[0], media=group))
    return parts, errors


def _spans(path: str, kind: str, size: int) -> Iterator[Span]:
    if kind == PARQUET:
        before = 0
        for group, rows in enumerate(parquet_groups(path)):
            yield Span(group=group, before=before)
            before += rows
        return
    try:
        with open_regular(path) as file:
            length = os.fstat(file.fileno()).st_size
            if length <= size:
                yield Span(0, length)
            elif kind == CSV:
                yield from _records(file, path, size, length)
            else:
                head = file.readline() if kind in SEPARATED else b""
                start = 0
                while start < length:
                    file.seek(max(start + size, len(head)) - 1)
                    while (piece := file.readline(2**20)) and not piece.endswith(b"\n"):
                        pass
                    stop = file.tell()
                    yield Span(start, stop, head if start else b"")
                    start = stop
    except OSError as error:
        raise FileError(f"cannot be read ({reason(error)}).", path=path) from error


def _records(file: BinaryIO, path: str, size: int, length: int) -> Iterator[Span]:
    """Those of a CSV file, whose quotes may hold ends of lines."""
    csv.field_size_limit(MAX_LINE)
    at = start = 0
    head = b""

    def lines() -> Iterator[str]:
        nonlocal at
        for line in file:
            at += len(line)
            yield line.decode("latin-1")  # separators and quotes are of ASCII

    first = file.readline().decode("latin-1")
    file.seek(0)
    try:
        for _ in csv.reader(lines(), delimiter=";" if "," not in first and ";" in first else ",", strict=True):
            if not head:
                head = _beginning(path, at)
            if at - start >= size and at < length:
                yield Span(start, at, head if start else b"")
                start = at
    except csv.Error as error:
        raise FormatError(f"is not CSV: {error}.", path=path) from error
    yield Span(start, length, head if start else b"")


def _beginning(path: str, size: int) -> bytes:
    with open_regular(path) as file:
        return file.read(size)


def _machine() -> str:
    """What tells this machine, since it was started, from others."""
    with suppress(FileError):
        return read_text("/proc/sys/kernel/random/boot_id").strip()
    return socket.gethostname()


class Claim:
    """The right to work on a part, held by a file that says whose it is, with a thread that shows life.

    One without a sign of life for a minute is taken over, and at once where its process ended on this machine.
    """

    def __init__(self, path: str) -> None:
        self.path, self.handle = Path(path), -1
        self.owner = f"{_machine()} {uuid.uuid4().hex}".encode()
        self._over = threading.Event()

    def take(self) -> bool:
        """Whether it is this process's now (``FileError``: the directory cannot be written to)."""
        try:
            try:
                handle = self._open(os.O_CREAT | os.O_EXCL)
            except FileExistsError:
                handle = self._open() if self._is_of_this_machine() or self._is_silent() else HELD
            if handle == HELD:
                return False
            os.write(handle, self.owner)  # in the place of another owner, who finds that it is not his any more
            os.ftruncate(handle, len(self.owner))
        except FileNotFoundError:  # it has just gone
            return False
        except OSError as error:
            raise FileError(f"cannot be written ({reason(error)}).", path=self.path) from error
        self.handle = handle
        threading.Thread(target=self._beat, daemon=True).start()
        return True

    def _open(self, flags: int = 0) -> int:
        """The file, locked where the system can do that; ``HELD`` where another process holds it."""
        handle = lock(self.path, os.O_RDWR | flags, 0o666)
        if handle is None:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666) if flags or self._is_silent() else HELD
        return handle

    def _beat(self) -> None:
        while not self._over.wait(BEAT):
            with suppress(OSError):
                os.utime(self.handle if os.utime in os.supports_fd else self.path)

    def _is_of_this_machine(self) -> bool:
        """Whether its process ran here, so that a lock tells whether it still does, or was killed before it said where."""
        with suppress(FileError):
            return read_bytes(self.path).partition(b" ")[0] in (b"", _machine().encode())
        return False

    def _is_silent(self) -> bool:
        """Whether there was no sign of life for long, by the time of the file system, which another machine may set."""
        with tempfile.TemporaryFile(dir=self.path.parent) as probe:
            return os.fstat(probe.fileno()).st_mtime - os.lstat(self.path).st_mtime >= STALE

    def check(self) -> None:
        """Raise ``FileError`` where another process has taken it over."""
        with suppress(TranseptError):
            if read_bytes(self.path) == self.owner:
                return
        raise FileError("another process has taken this part over, since this one showed no life.", path=self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self.handle >= 0:
            with suppress(FileError, OSError):
                self.check()
                self.path.unlink()
            os.close(self.handle)


class Job:
    """Parts and the directory of their answers, whose ``_job.json`` says of what they are.

    Args:
        folder: the directory, which is there.
        about: what answers are made of, as for a ``Note``.
        ending: of the files of answers.
    """

    def __init__(self, folder: Path, about: dict[str, Any], parts: Sequence[Part], ending: str) -> None:
        self.folder, self.parts, self.ending = folder, parts, ending
        self.note = Note(str(folder), about, folder / "_job.json")

    def path(self, part: Part) -> str:
        return str(self.folder / f"{part.name}{self.ending}")

    def begin(self) -> None:
        """Write what the work is, or raise ``InputError`` where the directory is of something else, which is named."""
        path = self.note.path
        while self.note.known() is None and not any(_PART.match(each.name) for each in self.folder.iterdir()):
            try:
                handle = lock(path, os.O_RDWR | os.O_CREAT, 0o666)
                if handle is None:  # where the system cannot lock
                    self.note.begin()
                elif handle == HELD:  # of several processes the first one says it
                    time.sleep(0.01)
                else:  # in place, as a kill would leave a file of another name
                    with open(handle, "r+b") as file:
                        if self.note.known() is None:
                            file.truncate()
                            file.write(dump_json(self.note.about).encode())
                            file.flush()
                            os.fsync(handle)
            except OSError as error:
                raise FileError(f"cannot be written ({reason(error)}).", path=path) from error
        self.note.check()

    def run(self, parts: Sequence[Part], do: Callable[[Part, str, Claim], None]) -> list[TranseptError]:
        """Do the parts that are not there, and wait for those that others work on; gives the errors of parts that failed."""
        errors, waiting = list[TranseptError](), list(parts)
        while waiting:
            later = []
            for part in waiting:
                path = self.path(part)
                with Claim(f"{path}.claim") as claim:
                    if os.path.exists(path) and not os.path.lexists(claim.path):
                        continue
                    if not claim.take():
                        later.append(part)
                    elif os.path.exists(path):  # somebody has done it, who may have been killed before all else was removed
                        self._remove_rest(part, claim)
                    else:
                        try:
                            do(part, path, claim)
                        except TranseptError as error:
                            errors.append(error)
            if (waiting := later) and parts:
                time.sleep(WAIT)
        return errors

    def _remove_rest(self, part: Part, claim: Claim) -> None:
        for path in self.folder.glob(f"{part.name}.*"):
            if str(path) not in (self.path(part), str(claim.path)):
                path.unlink(missing_ok=True)

    def tally(self, part: Part) -> tuple[int, int]:
        """How many rows a part's file holds, and how many of them are errors (``TranseptError``: it cannot be read)."""
        path, rows, failed = self.path(part), 0, 0
        if self.ending == ".parquet":
            for batch in parquet_batches(path):
                rows += len(batch)
                failed += len(batch) - batch.column("error").null_count
            return rows, failed
        try:
            with open_regular(path) as file:
                for rows, line in enumerate(file, 1):  # noqa: B007
                    failed += parse_json(line.decode(), path=path).get("error") is not None
        except (OSError, UnicodeError) as error:
            raise FileError(f"cannot be read ({reason(error)}).", path=path) from error
        return rows, failed

    def check(self, parts: Sequence[Part], inputs: Inputs) -> list[TranseptError]:
        """What is wrong with the files of parts: they lack, cannot be read, or have another number of rows than the inputs."""
        errors = list[TranseptError]()
        for part in parts:
            try:
                if not os.path.exists(self.path(part)):
                    raise FileError("is not there.", path=self.path(part), hint="The same command without --check makes it.")
                rows, expected = self.tally(part)[0], sum(map(len, inputs.part(part.path, part.span, part.media)))
                if rows != expected:
                    what = f"holds {rows} rows, but its inputs are {expected}."
                    raise InputError(what, path=self.path(part), hint="Remove it, and run the same command without --check.")
            except TranseptError as error:
                errors.append(error)
        return errors
