"""What comes out: JSON lines, drawn answers, arrays, rankings; and files that are put in their place when they are whole."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from transept.cli.inputs import Item
from transept.cli.terminal import Style, bar, cleaned, complain, plain, shorten, table
from transept.directory import HELD, lock
from transept.errors import FileError, FormatError, TranseptError
from transept.files import reason

MOST_NUMBERS = 8
Pairs = Sequence[tuple[Item, Any]]


class OutputFile:
    """A file that takes the place of ``path`` when it is whole; until then it is ``<path>.partial``.

    After an interruption or an error that file stays, also where the process was killed, and ``resume`` goes on from it.
    """

    def __init__(self, path: str, *, resume: bool = False) -> None:
        self.path, self.resume, self.rows = path, resume, 0
        self.partial = Path(f"{path}.partial")

    def __enter__(self) -> Self:
        folder = os.path.dirname(self.path) or "."
        if os.path.isdir(self.path) or not os.path.isdir(folder):
            what = "is a directory." if os.path.isdir(self.path) else f"the directory {folder!r} is not there."
            raise FileError(what, path=self.path, hint="Pass the path of a file in a directory that is there.")
        is_link = os.path.islink(self.partial)
        if self.resume and (is_link or not os.path.isfile(self.partial)):
            raise FileError("there is nothing to go on from.", path=self.partial, hint="Leave out --resume.")
        with self._named():
            if is_link:
                self.partial.unlink()
            handle = lock(self.partial, os.O_RDWR | os.O_CREAT, 0o666)
        if handle == HELD:
            raise FileError("another process writes to it.", path=self.partial)
        with self._named():  # where the system cannot lock, the name is opened
            self.file = open(self.partial if handle is None else handle, "r+b" if self.resume else "wb")
        if not self.resume:
            self.keep(0, 0)
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
            self.file.write(data)
        self.rows += rows

    def rewrite(self, data: bytes) -> None:
        """Replace the beginning."""
        self.file.seek(0)
        self.write(data)
        self.file.seek(0, os.SEEK_END)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            with self._named() if kind is None else suppress(OSError):
                self.file.close()
                if kind is None:
                    os.replace(self.partial, self.path)
        finally:
            if not self.rows and not self.resume:
                self.partial.unlink(missing_ok=True)
            elif self.rows and self.partial.exists():
                again = "the same command with --resume goes on from there."
                complain(f"{self.rows} answers are kept in {self.partial}; {again}", "note")


def encode(answer: Any) -> str:
    """An answer as JSON on one line; an error as ``{"error": {"code": ..., "message": ...}}``."""
    if isinstance(answer, TranseptError):
        answer = {"error": {"code": answer.code, "message": cleaned(str(answer))}}
    return json.dumps(answer, ensure_ascii=False, default=lambda array: array.tolist())


def json_line(item: Item, answer: Any) -> str:
    return f"{encode(answer)}\n"


class Lines:
    """Where answers go: as lines of ``text``, in a file or on standard output.

    Others inherit from it. ``begin`` gives how many inputs are answered already, from which ``--resume`` goes on, and ``end``
    does what can be done only when all answers are there.
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
        try:
            old: Any = np.load(self.file.partial, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise FormatError("is no array that could be gone on from.", path=self.file.partial) from error
        if old.dtype != np.dtype("<f4") or old.ndim != 2 or old.shape[1] != self.size:
            found = f"holds {' × '.join(map(str, old.shape))} numbers of {old.dtype}, not float32 vectors of {self.size}."
            raise FormatError(found, path=self.file.partial, hint="Use the model that it was begun with.")
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


def draw(style: Style, named: bool, item: Item, answer: Any) -> str:
    """An answer as a person likes to see it, below its input where that is ``named``; errors stand on stderr."""
    if isinstance(answer, TranseptError):
        return ""
    lines = drawn(answer, style)
    if named:
        lines = [style(shorten(_text(item.value), style.width), "bold"), *(f"  {line}" for line in lines)]
    return "".join(f"{line}\n" for line in lines)


def drawn(answer: Any, style: Style) -> list[str]:
    """One answer as lines: a table for a list of mappings, aligned names for one, else its JSON."""
    if isinstance(answer, list) and answer and all(isinstance(each, Mapping) for each in answer):
        rows = [[style(str(name), "dim") for name in answer[0]]]
        return table([*rows, *([cell(name, value, style) for name, value in each.items()] for each in answer)])
    if not isinstance(answer, Mapping):
        return [f"{answer:.4f}" if isinstance(answer, float) else numbers(answer) or encode(answer)]
    lists = {name: value for name, value in answer.items() if isinstance(value, list)}
    lines = table([style(str(n), "dim"), cell(n, value, style, cut=False)] for n, value in answer.items() if n not in lists)
    if len(lists) > 1 and len(set(map(len, lists.values()))) == 1:  # such as labels and scores, side by side
        names = [str(name).removesuffix("s") for name in lists]
        return [*lines, *drawn([dict(zip(names, values)) for values in zip(*lists.values())], style)]
    for name, value in lists.items():
        lines += [style(str(name), "dim"), *(f"  {line}" for line in drawn(value, style))]
    return lines


def numbers(answer: Any) -> str | None:
    """The shape of an array or of nested lists of numbers, and its first ones; ``None`` for anything else."""
    import numpy as np

    try:
        array = np.asarray(answer)
    except ValueError:  # rows of unequal lengths
        return None
    if array.dtype.kind != "f" or not array.ndim:
        return None
    some = " ".join(f"{number:.4f}" for number in array.ravel()[:MOST_NUMBERS])
    return f"{' × '.join(map(str, array.shape))}: {some}{' …' if array.size > MOST_NUMBERS else ''}"


def cell(name: object, value: Any, style: Style, *, cut: bool = True) -> str:
    """One value; scores have a bar, and long texts are cut where that is asked for."""
    if isinstance(value, float):
        return f"{value:.4f} {style(bar(value, 16), 'blue')}" if name == "score" else f"{value:.4g}"
    if isinstance(value, tuple | list) and all(isinstance(each, float) for each in value):
        return " - ".join(f"{each:.2f}" for each in value)
    if isinstance(value, str) and not cut:
        return " ".join(plain(value).split())
    return shorten(_text(value), max(20, style.width - 30))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else encode(value)
