"""A file of answers that grows and takes the place of an older one when it is whole, and the note beside it.

Only the same inputs, model and options, which the note tells, go on with it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Self

from transept.batch.encode import encode
from transept.batch.inputs import STANDARD, Inputs
from transept.config.fields import without_secrets
from transept.errors import FileError, InputError, TranseptError
from transept.storage.directory import HELD, lock
from transept.storage.files import dump_json, load_object, open_regular, parse_json, reason, sync, write_text
from transept.tables.text import STANDARD_NAME

END = 2**16  # bytes at each end of a file that tell it from others
# Of a model's directory, what tells it from others.
_MODEL_ENDINGS = (".json", ".safetensors", ".bin", ".gguf", ".txt", ".model", ".jinja")


class Note:
    """The note beside ``output``: what it is made of, and once it is whole how many answers it holds.

    Args:
        about: ``inputs``, ``model`` and ``options``; secrets among them are not written.
        path: where it is, for a directory of answers in it.
    """

    def __init__(self, output: str, about: Mapping[str, Any], path: Path | None = None) -> None:
        self.output, self.path = output, path or Path(f"{output}.note.json")
        self.anew = "leave out --resume to begin anew" if path is None else "pass another directory"
        self.about: dict[str, Any] = parse_json(encode(without_secrets(about)))  # as it is when it is read

    def known(self) -> dict[str, Any] | None:
        """What is written there; ``None`` where nothing is, or nothing that can be read."""
        try:
            return load_object(self.path)
        except TranseptError:
            return None

    def check(self) -> None:
        """Raise ``InputError`` where there is no note, or one of something else, which is named."""
        if (known := self.known()) is None:
            what = f"has no note ({self.path.name}) of the inputs, the model and the options that it was begun with."
            raise InputError(what, path=self.output, hint=f"{self.anew[0].upper()}{self.anew[1:]}.")
        if differences := _differences(known, self.about):
            what = f"was begun with something else: {'; '.join(differences)}."
            raise InputError(what, path=self.output, hint=f"Use the command that it was begun with, or {self.anew}.")

    def whole(self) -> tuple[int, int] | None:
        """How many inputs and failures a whole output of the same holds; ``None`` where there is none."""
        known = self.known() or {}
        whole = known.get("whole")
        if not isinstance(whole, dict) or _differences(known, self.about) or not os.path.isfile(self.output):
            return None
        return (whole["inputs"], whole["failed"]) if whole.get("file") == fingerprint(self.output) else None

    def is_whole(self) -> bool:
        """Whether the note says that the output is whole, which somebody may have changed since."""
        return "whole" in (self.known() or {}) and os.path.isfile(self.output)

    def begin(self) -> None:
        write_text(self.path, dump_json(self.about))

    def end(self, inputs: int, failed: int, file: Path) -> None:
        """Note that a file, which is about to take the output's place, is whole."""
        whole = {"inputs": inputs, "failed": failed, "file": fingerprint(file)}
        write_text(self.path, dump_json({**self.about, "whole": whole}))

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def fingerprint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The size of a file, and a digest of its beginning and its end."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.sha256(file.read(END))
        file.seek(max(size - END, 0))
        digest.update(file.read(END))
    return {"size": size, "sha256": digest.hexdigest()}


def of_inputs(inputs: Inputs, *, times: bool = False) -> list[dict[str, Any]]:
    """What inputs are: files of rows one by one, media files together, by their names, sizes and times.

    Args:
        times: whether a file of rows is another one when it was written later, since nothing compares its rows.
    """
    notes: list[dict[str, Any]] = []
    media: list[tuple[str, str]] = []
    if inputs.arguments:
        text = repr(list(inputs.arguments)).encode("utf-8", "backslashreplace")
        notes.append({"name": "arguments", "sha256": hashlib.sha256(text).hexdigest()})
    for path in inputs.paths:
        name = STANDARD_NAME if path == STANDARD else os.path.basename(path)
        if path == STANDARD or not os.path.isfile(path):
            notes.append({"name": name})
        elif inputs.is_of_rows(path):
            notes.append({"name": name, **fingerprint(path)} | ({"mtime": os.stat(path).st_mtime_ns} if times else {}))
        else:
            media.append((name, path))
    return [*notes, {"name": f"{len(media)} files", "sha256": of_files(media)}] if media else notes


def of_model(directory: str | os.PathLike[str]) -> str:
    """A digest of the names, sizes and times of a model's files, those of its parts in folders among them."""
    place = Path(directory)
    files = sorted((*place.glob("*"), *place.glob("[0-9]*/*")))
    files = [file for file in files if file.suffix in _MODEL_ENDINGS and file.is_file()]
    return of_files((str(file.relative_to(place)), str(file)) for file in files)


def of_files(files: Iterable[tuple[str, str]]) -> str:
    """A digest of names, and of the sizes and times of the files at these paths."""
    digest = hashlib.sha256()
    for name, path in files:
        about = os.stat(path)
        digest.update(repr((name, about.st_size, about.st_mtime_ns)).encode("utf-8", "backslashreplace"))
    return digest.hexdigest()


def _differences(known: Mapping[str, Any], about: Mapping[str, Any]) -> list[str]:
    """What a note says otherwise, each in some words."""
    differences = []
    before, now = (_mappings(note.get("inputs")) for note in (known, about))
    names, new_names = ([str(row.get("name")) for row in rows] for rows in (before, now))
    if names != new_names:
        differences.append(f"the inputs were {', '.join(names) or 'none'} and are {', '.join(new_names) or 'none'}")
    else:
        changed = [name for name, old, new in zip(names, before, now) if old != new]
        differences += [f"what {name!r} holds has changed" for name in changed]
    for part in ("model", "options"):
        old, new = (next(iter(_mappings([note.get(part)])), {}) for note in (known, about))
        changed = [name for name in {**old, **new} if old.get(name) != new.get(name)]
        differences += [_difference(name, old.get(name), new.get(name)) for name in changed]
    return differences


def _difference(name: str, *values: Any) -> str:
    if name == "files":
        return "the model's files have changed"
    old, new = ("not given" if value is None else repr(str(value)[:80]) for value in values)
    return f"`{name}` was {old} and is {new}"


def _mappings(values: Any) -> list[Mapping[str, Any]]:
    return [value for value in values if isinstance(value, Mapping)] if isinstance(values, list) else []


class OutputFile:
    """A file that takes the place of ``path`` when it is whole; until then it is ``<path>.partial``.

    After an interruption or an error that file stays, also where the process was killed, and ``resume`` goes on from
    it where its ``note`` says that it is of the same. ``told`` is called with a sentence that says so.
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
            raise FileError("there is nothing to go on from.", path=self.partial, hint="Leave out --resume.")
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

    @property
    def size(self) -> int:
        return os.fstat(self.file.fileno()).st_size

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
        sync(os.path.dirname(self.path) or ".")
