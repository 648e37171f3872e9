"""What an output is made of, in a note beside it: it is gone on with only by the same inputs, model and options."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from transept.batch.encode import encode
from transept.batch.inputs import STANDARD, Inputs
from transept.errors import InputError, TranseptError
from transept.fields import without_secrets
from transept.files import dump_json, load_object, open_regular, parse_json, write_text
from transept.tables.text import STANDARD_NAME

END = 2**16  # bytes at each end of a file that tell it from others
# Of a model's directory, what tells it from others.
_MODEL_ENDINGS = (".json", ".safetensors", ".bin", ".gguf", ".txt", ".model", ".jinja")
_ANEW = "Use the command that it was begun with, or leave out --resume to begin anew."


class Note:
    """The note beside ``output``: what it is made of, and once it is whole how many answers it holds.

    Args:
        about: ``inputs``, ``model`` and ``options``; secrets among them are not written.
    """

    def __init__(self, output: str, about: Mapping[str, Any]) -> None:
        self.output, self.path = output, Path(f"{output}.note.json")
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
            raise InputError(what, path=self.output, hint="Leave out --resume to begin anew.")
        if differences := _differences(known, self.about):
            raise InputError(f"was begun with something else: {'; '.join(differences)}.", path=self.output, hint=_ANEW)

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


def of_inputs(inputs: Inputs) -> list[dict[str, Any]]:
    """What inputs are: files of rows one by one, media files together, by their names, sizes and times."""
    found: list[dict[str, Any]] = []
    if inputs.arguments:
        text = repr(list(inputs.arguments)).encode("utf-8", "backslashreplace")
        found.append({"name": "arguments", "sha256": hashlib.sha256(text).hexdigest()})
    media = []
    for path in inputs.paths:
        if path == STANDARD or not os.path.isfile(path):
            found.append({"name": STANDARD_NAME if path == STANDARD else os.path.basename(path)})
        elif inputs.is_of_rows(path):
            found.append({"name": os.path.basename(path), **fingerprint(path)})
        else:
            media.append(path)
    return found + (
        [{"name": f"{len(media)} files", "sha256": of_files((os.path.basename(path), path) for path in media)}] if media else []
    )


def of_model(directory: str | os.PathLike[str]) -> str:
    """A digest of the names, sizes and times of a model's files, those of its parts in folders among them."""
    place = Path(directory)
    files = sorted(file for pattern in ("*", "[0-9]*/*") for file in place.glob(pattern) if file.suffix in _MODEL_ENDINGS)
    return of_files((str(file.relative_to(place)), str(file)) for file in files if file.is_file())


def of_files(files: Iterable[tuple[str, str]]) -> str:
    """A digest of names, and of the sizes and times of the files at these paths."""
    digest = hashlib.sha256()
    for name, path in files:
        found = os.stat(path)
        digest.update(repr((name, found.st_size, found.st_mtime_ns)).encode("utf-8", "backslashreplace"))
    return digest.hexdigest()


def _differences(known: Mapping[str, Any], about: Mapping[str, Any]) -> list[str]:
    """What a note says otherwise, each in some words."""
    found = []
    before, now = (_rows(each.get("inputs")) for each in (known, about))
    names, others = ([str(row.get("name")) for row in rows] for rows in (now, before))
    if names != others:
        found.append(f"the inputs were {', '.join(others) or 'none'} and are {', '.join(names) or 'none'}")
    else:
        found += [f"what {name!r} holds has changed" for name, old, new in zip(names, before, now) if old != new]
    for part in ("model", "options"):
        old, new = (value if isinstance(value := each.get(part), Mapping) else {} for each in (known, about))
        differing = [name for name in {**old, **new} if old.get(name) != new.get(name)]
        found += [_told(name, old.get(name), new.get(name)) for name in differing]
    return found


def _rows(inputs: Any) -> list[Mapping[str, Any]]:
    return [row for row in inputs if isinstance(row, Mapping)] if isinstance(inputs, list) else []


def _told(name: str, old: Any, new: Any) -> str:
    if name == "files":
        return "the model's files have changed"
    old, new = ("not given" if value is None else repr(str(value)[:80]) for value in (old, new))
    return f"`{name}` was {old} and is {new}"
