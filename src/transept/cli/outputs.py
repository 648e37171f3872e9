"""What comes out: JSON lines, drawn answers, arrays. Files are written beside their place and put there when they are whole."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from transept.cli.draw import Style, bar, plain, shorten, table
from transept.cli.inputs import Item
from transept.errors import FileError, TranseptError
from transept.files import reason

_OF_WRITING = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG}


MOST_NUMBERS = 8


class Sink(Protocol):
    """Where answers go."""

    def write(self, pairs: Sequence[tuple[Item, Any]]) -> None:
        """Take inputs and their answers, in order."""


@contextmanager
def replacing(path: str) -> Iterator[BinaryIO]:
    """A file to write, put in the place of ``path`` at the end; what an interruption leaves stays as ``<path>.partial``.

    Raises:
        FileError: its directory is missing, or it cannot be written.
    """
    target, partial = Path(path), Path(f"{path}.partial")
    try:
        _check_place(target)
        with open(partial, "wb") as file:
            yield file
        os.replace(partial, target)
    except OSError as error:
        ours = error.filename in (None, path, str(partial)) and error.errno in _OF_WRITING
        if isinstance(error, TranseptError) or not ours:
            raise
        raise FileError(f"cannot be written ({reason(error)}).", path=path) from error
    finally:
        if os.path.isfile(partial) and not os.path.getsize(partial):
            os.unlink(partial)


def _check_place(target: Path) -> None:
    if target.is_dir() or not target.parent.is_dir():
        what = "is a directory." if target.is_dir() else f"the directory {str(target.parent)!r} is not there."
        raise FileError(what, path=target, hint="Pass the path of a file in a directory that is there.")


def encode(answer: Any) -> str:
    """An answer as JSON on one line; an error as ``{"error": {"code": ..., "message": ...}}``."""
    if isinstance(answer, TranseptError):
        answer = {"error": {"code": answer.code, "message": " ".join(str(answer).split())}}
    return json.dumps(answer, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    """Arrays and tensors as lists."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no JSON form")


class JsonLines:
    """One JSON value a line, written out group by group.

    Args:
        stream: for bytes; standard output when absent.
    """

    def __init__(self, stream: BinaryIO | None = None) -> None:
        self.stream = stream

    def write(self, pairs: Sequence[tuple[Item, Any]]) -> None:
        """One line an answer."""
        self.lines(encode(answer) for _, answer in pairs)

    def lines(self, values: Iterator[str]) -> None:
        """Lines that are JSON already."""
        text = "".join(f"{value}\n" for value in values)
        if self.stream is None:
            sys.stdout.write(text)
            sys.stdout.flush()
        else:
            self.stream.write(text.encode("utf-8", "backslashreplace"))


class Drawn:
    """Answers as a person likes to see them, on standard output.

    Args:
        named: show each input before its answer.
    """

    def __init__(self, named: bool) -> None:
        self.named, self.style = named, Style(sys.stdout)

    def write(self, pairs: Sequence[tuple[Item, Any]]) -> None:
        """Each answer as lines."""
        for item, answer in pairs:
            if isinstance(answer, TranseptError):
                continue  # it stands on stderr
            if self.named:
                shown = item.value if isinstance(item.value, str) else encode(item.value)
                print(self.style.bold(shorten(shown, self.style.width)))
            for line in drawn(answer, self.style):
                print(f"  {line}" if self.named else line)
        sys.stdout.flush()


def drawn(answer: Any, style: Style) -> list[str]:
    """One answer as lines: a table for a list of mappings, aligned names for one, else its JSON."""
    if isinstance(answer, list) and answer and all(isinstance(each, Mapping) for each in answer):
        rows = [[style.dim(str(name)) for name in answer[0]]]
        rows += [[cell(name, value, style) for name, value in each.items()] for each in answer]
        return table(rows)
    if isinstance(answer, Mapping):
        plain = {name: value for name, value in answer.items() if not isinstance(value, list)}
        lines = table([style.dim(str(name)), whole(name, value, style)] for name, value in plain.items())
        lists = {name: value for name, value in answer.items() if isinstance(value, list)}
        if len(lists) > 1 and len(set(map(len, lists.values()))) == 1:  # such as labels and scores, side by side
            together = [dict(zip(map(_singular, lists), values, strict=True)) for values in zip(*lists.values(), strict=True)]
            return [*lines, *drawn(together, style)]
        for name, value in lists.items():
            lines += [style.dim(str(name)), *(f"  {line}" for line in drawn(value, style))]
        return lines
    return [f"{answer:.4f}" if isinstance(answer, float) else numbers(answer) or encode(answer)]


def _singular(name: str) -> str:
    return name.removesuffix("s")


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


def whole(name: object, value: Any, style: Style) -> str:
    """One value of an answer; a text is not cut."""
    return " ".join(plain(value).split()) if isinstance(value, str) else cell(name, value, style)


def cell(name: object, value: Any, style: Style) -> str:
    """One value in a table; scores have a bar."""
    if name == "score" and isinstance(value, float):
        return f"{value:.4f} {style.blue(bar(value, 16))}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, tuple | list) and all(isinstance(each, float) for each in value):
        return " - ".join(f"{each:.2f}" for each in value)
    return shorten(value if isinstance(value, str) else encode(value), max(20, style.width - 30))
