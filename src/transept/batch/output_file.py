"""A file of answers that grows, and takes the place of an older one when it is whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Self

from transept.batch.note import Note
from transept.directory import HELD, lock
from transept.errors import FileError
from transept.files import reason, sync

NOTHING = "there is nothing to go on from."


class OutputFile:
    """A file that takes the place of ``path`` when it is whole; until then it is ``<path>.partial``.

    After an interruption or an error that file stays, also where the process was killed, and ``resume`` goes on from it where
    its ``note`` says that it is of the same. ``told`` is called with a sentence that says so.
    """

    def __init__(
        self,
        path: str,
        *,
        note: Note | None = None,
        resume: bool = False,
        told: Callable[[str], object] = str,
        noun: str = "answers",
    ) -> None:
        self.path, self.note, self.resume, self.told, self.noun = path, note, resume, told, noun
        self.rows = self.failed = 0
        self.kept = True  # whether it takes the place of ``path`` at the end, and does not go
        self.partial, self.whole = Path(f"{path}.partial"), Path(f"{path}.partial")

    def __enter__(self) -> Self:
        folder = os.path.dirname(self.path) or "."
        if os.path.isdir(self.path) or not os.path.isdir(folder):
            what = "is a directory." if os.path.isdir(self.path) else f"the directory {folder!r} is not there."
            raise FileError(what, path=self.path, hint="Pass the path of a file in a directory that is there.")
        is_link = os.path.islink(self.partial)
        missing = is_link or not os.path.isfile(self.partial)
        if self.resume and self.note is not None and (not missing or self.note.path.exists()):
            self.note.check()
        if self.resume and missing:
            raise FileError(NOTHING, path=self.partial, hint="Leave out --resume.")
        with self._named():
            if is_link:
                self.partial.unlink()
            handle = lock(self.partial, os.O_RDWR | os.O_CREAT, 0o666)
        if handle == HELD:
            raise FileError("another process writes to it.", path=self.partial)
        with self._named():  # where the system cannot lock, the name is opened
            self.file = open(self.partial if handle is None else handle, "r+b" if self.resume else "w+b")
        if not self.resume:
            self.keep(0, 0)
            if self.note is not None:
                self.note.begin()
        return self

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            raise FileError(f"cannot be written ({reason(error)}).", path=self.path) from error

    def keep(self, rows: int, size: int) -> None:
        """Go on behind the first ``size`` bytes, which hold so many answers."""
        with self._named():
            self.file.truncate(size)
            self.file.seek(size)
        self.rows = rows

    def write(self, data: bytes, rows: int = 0) -> None:
        """Write on; ``rows`` counts the answers in it."""
        with self._named():
            self.file.seek(0, os.SEEK_END)
            self.file.write(data)
            self.file.flush()  # an answer may take minutes, and the process may be killed
        self.rows += rows

    def rewrite(self, data: bytes) -> None:
        """Replace the beginning."""
        with self._named():
            self.file.seek(0)
            self.file.write(data)
            self.file.seek(0, os.SEEK_END)

    @contextmanager
    def rewritten(self) -> Iterator[BinaryIO]:
        """Another file, made of this one when all answers are there, that takes the place of ``path`` instead."""
        whole = Path(f"{self.path}.whole")
        with self._named():
            self.file.flush()
            whole.unlink(missing_ok=True)
            with open(whole, "xb") as file:
                yield file
        self.whole = whole

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            with self._named() if kind is None else suppress(OSError):
                self.file.close()
                if kind is None:
                    self._replace()
        finally:
            if not self.rows and not self.resume:
                self.partial.unlink(missing_ok=True)
                if kind is not None and self.note is not None:
                    self.note.remove()
            elif self.rows and self.partial.exists():
                again = "the same command with --resume goes on from there."
                self.told(f"{self.rows} {self.noun} are kept in {self.partial}; {again}")

    def _replace(self) -> None:
        if not self.kept:
            self.partial.unlink()
            if self.note is not None:
                self.note.remove()
            return
        sync(self.whole)
        if self.note is not None:
            self.note.end(self.rows, self.failed, self.whole)
        os.replace(self.whole, self.path)
        self.partial.unlink(missing_ok=True)
