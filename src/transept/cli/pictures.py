"""Pictures of answers: one in a file, or one for each input in a folder."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from transept.batch.answers import Pairs
from transept.batch.inputs import STANDARD, Item
from transept.batch.output_file import OutputFile
from transept.errors import FileError, TranseptError
from transept.storage.files import reason
from transept.tables.text import kind_of

FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
_MOST_BYTES = 100  # of a name
_OTHER = re.compile(r"[^\w.-]+")


def is_folder(path: str) -> bool:
    """Whether a path is one of a folder: it is there, or its name has no ending."""
    return os.path.isdir(path) or not os.path.splitext(os.path.normpath(path))[1] or path.endswith(os.sep)


def fault(path: str, total: int | None) -> str | None:
    """What is wrong with a path for the pictures of so many inputs, ``None`` where that is not known."""
    if is_folder(path):
        return None
    if os.path.splitext(path)[1].lower() not in FORMATS:
        return f"--draw must be a folder, or end in {', '.join(FORMATS)}, but is {path!r}"
    return None if total == 1 else f"--draw must be a folder for several inputs, but is {path!r}"


class Drawings:
    """Writes pictures of answers to ``path``; in a folder, which is made where needed, they have the names of their inputs."""

    def __init__(self, path: str) -> None:
        self.path, self.folder = path, is_folder(path)
        self.taken: set[str] = set()
        parent = os.path.dirname(os.path.abspath(path))
        if not os.path.isdir(parent):
            hint = "Make it first."
            raise FileError(f"cannot be written: the directory {os.path.dirname(path)!r} is not there.", path=path, hint=hint)
        if self.folder:
            try:
                os.makedirs(path, exist_ok=True)
            except (OSError, ValueError) as error:
                raise FileError(f"cannot be made ({reason(error)}).", path=path) from error

    def spare(self, sources: Iterable[str]) -> None:
        """Raise ``FileError`` where a picture could replace an input: a file or a folder of files."""
        for source in sources:
            if source == STANDARD or kind_of(source) is not None or not os.path.exists(source):
                continue
            held = source if os.path.isdir(source) or not self.folder else os.path.dirname(source) or os.curdir
            if os.path.exists(self.path) and os.path.samefile(held, self.path):
                what = "holds inputs, which pictures could replace." if self.folder else "is the input itself."
                raise FileError(what, path=self.path, hint=f"Draw into another {'folder' if self.folder else 'file'}.")

    def target(self, item: Item) -> Path:
        """Where the picture of an input goes; those of all inputs are asked for once, in order."""
        if not self.folder:
            return Path(self.path)
        source = source_of(item)
        stem = _OTHER.sub("_", Path(source).stem).encode()[:_MOST_BYTES].decode(errors="ignore").strip(".") if source else ""
        name, number = stem or "picture", 1
        while name.casefold() in self.taken:
            number += 1
            name = f"{stem or 'picture'}-{number}"
        self.taken.add(name.casefold())
        return Path(self.path, f"{name}.png")

    def skip(self, items: Iterable[Item]) -> None:
        """Pass over inputs whose pictures are there already."""
        for item in items:
            self.target(item)

    def write(self, pairs: Pairs) -> None:
        """Draw answers over their inputs."""
        for item, answer in pairs:
            path = self.target(item)
            if not isinstance(answer, TranseptError):
                self.draw(item, answer, path)

    def draw(self, item: Item, answer: Any, path: Path) -> None:
        """Write the picture of one answer."""
        from transept.pipelines.draw import draw

        source = source_of(item)
        self.spare([source] if source else [])
        data = io.BytesIO()
        draw(item.value, answer).save(data, FORMATS[path.suffix.lower()])
        with OutputFile(str(path)) as file:
            file.write(data.getvalue())


def source_of(item: Item) -> str | None:
    """The path of an input's file, where it has one."""
    value = item.value.get("path", item.value.get("image")) if isinstance(item.value, Mapping) else item.value
    return value if isinstance(value, str) and not value.startswith("data:") else None
