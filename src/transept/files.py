"""The doors to the disk: every path, JSON document and directory that the library reads or writes passes here.

Whatever comes out of a file is hostile until it is checked, so names are joined by ``safe_join``, JSON is read by
``load_json`` and whole directories are replaced by ``replace_directory``. Nothing here imports torch.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from transept.errors import FileError, FormatError

MAX_JSON_BYTES = 256 * 2**20
MAX_JSON_DEPTH = 64
MAX_INTEGER_DIGITS = 64


def safe_join(root: str | os.PathLike[str], name: str) -> Path:
    """``root / name`` where ``name`` came out of a file: it must stay below ``root``, through links too.

    Hub caches keep their snapshots as links into a sibling ``blobs`` folder; such a link is followed.

    Raises:
        FormatError: an absolute name, a drive, a backslash, ``..``, a NUL, or a link that leads outside.
    """
    hint = "Names in a model's files must be plain relative paths below its directory."
    if not isinstance(name, str) or not name:
        raise FormatError(f"file name {name!r} is not a non-empty string.", path=root, hint=hint)
    parts = PurePosixPath(name).parts
    if name.startswith("/") or "\\" in name or "\0" in name or ":" in parts[0] or ".." in parts:
        raise FormatError(f"file name {name!r} leads outside the directory.", path=root, hint=hint)
    base = Path(root)
    path = base / name
    resolved, inside = path.resolve(), base.resolve()
    if resolved.is_relative_to(inside) or ((snapshot := _hub_blobs(inside)) and resolved.is_relative_to(snapshot)):
        return path
    raise FormatError(f"file name {name!r} is a link that leads outside the directory.", path=root, hint=hint)


def _hub_blobs(directory: Path) -> Path | None:
    """The ``blobs`` folder that a hub cache's snapshot links into: models--x--y/snapshots/<commit>[/subfolder]."""
    for parent in directory.parents:
        if parent.name == "snapshots" and parent.parent.name.startswith(("models--", "datasets--", "spaces--")):
            return parent.parent / "blobs"
    return None


def read_bytes(path: str | os.PathLike[str], *, max_bytes: int = MAX_JSON_BYTES) -> bytes:
    """The whole of a file no larger than ``max_bytes``.

    Raises:
        FileError: it is not there or cannot be read.
        FormatError: it is larger than ``max_bytes``.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(max_bytes + 1)
    except (OSError, ValueError) as error:
        raise FileError(f"cannot be read ({_reason(error)}).", path=path) from error
    if len(data) > max_bytes:
        raise FormatError(f"is larger than the {max_bytes} bytes allowed for a file of its kind.", path=path)
    return data


def read_text(path: str | os.PathLike[str], *, max_bytes: int = MAX_JSON_BYTES) -> str:
    """Like :func:`read_bytes`, decoded as UTF-8 (``FormatError`` where it is not)."""
    try:
        return read_bytes(path, max_bytes=max_bytes).decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"is not UTF-8 text (byte {error.start}).", path=path) from error


def load_json(path: str | os.PathLike[str], *, max_bytes: int = MAX_JSON_BYTES, finite: bool = True) -> Any:
    """Read a JSON document. See :func:`parse_json` for what is refused."""
    return parse_json(read_text(path, max_bytes=max_bytes), path=path, finite=finite)


def load_object(path: str | os.PathLike[str], *, max_bytes: int = MAX_JSON_BYTES, finite: bool = True) -> dict[str, Any]:
    """Read a JSON document whose top level must be an object."""
    document = load_json(path, max_bytes=max_bytes, finite=finite)
    if not isinstance(document, dict):
        raise FormatError(f"must hold a JSON object, but holds {type(document).__name__}.", path=path)
    return document


def parse_json(text: str, *, path: str | os.PathLike[str] | None = None, finite: bool = True) -> Any:
    """Parse JSON strictly: no duplicate keys, at most 64 levels, no NaN or infinity unless ``finite`` is false.

    Raises:
        FormatError: with the line and the reason.
    """

    def constant(name: str) -> float:
        if finite:
            raise FormatError(f"holds the number {name}, which JSON does not have.", path=path)
        return float(name.replace("Infinity", "inf"))

    def integer(digits: str) -> int:
        if len(digits) > MAX_INTEGER_DIGITS:
            raise FormatError(f"holds an integer of {len(digits)} digits.", path=path)
        return int(digits)

    def real(digits: str) -> float:
        value = float(digits)
        if finite and not math.isfinite(value):
            raise FormatError(f"holds the number {digits[:40]}, which is too large.", path=path)
        return value

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise FormatError(f"holds the key {twice!r} twice in one object.", path=path)
        return found

    too_deep = f"is nested deeper than {MAX_JSON_DEPTH} levels."
    try:
        document = json.loads(text, object_pairs_hook=unique, parse_constant=constant, parse_int=integer, parse_float=real)
    except json.JSONDecodeError as error:
        raise FormatError(f"is not valid JSON: {error.msg} (line {error.lineno}).", path=path) from error
    except RecursionError as error:
        raise FormatError(too_deep, path=path) from error
    if _deeper_than(document, MAX_JSON_DEPTH):
        raise FormatError(too_deep, path=path)
    return document


def _deeper_than(document: Any, levels: int) -> bool:
    level = [document]
    for _ in range(levels + 1):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node if isinstance(node, list) else ())
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


def dump_json(document: Any) -> str:
    """The one way this library writes JSON: sorted keys, two spaces, UTF-8, a newline at the end."""
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a file so that a crash leaves either the old content or the new one, never a part.

    Raises:
        FileError: the directory is missing, full or not writable.
    """
    target = Path(path)
    partial: str | None = None
    try:
        handle, partial = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(partial, 0o666 & ~_umask())
        os.replace(partial, target)
    except OSError as error:
        raise FileError(f"cannot be written ({_reason(error)}).", path=path) from error
    finally:
        if partial is not None and os.path.exists(partial):
            os.unlink(partial)


@contextmanager
def replace_directory(target: str | os.PathLike[str], *, drop: Callable[[str], bool] = lambda name: False) -> Iterator[Path]:
    """Give out an empty directory to write into; when the block ends well, its files replace those of ``target``.

    Files of ``target`` that the block did not write stay, except those whose name ``drop`` accepts. Until the block has
    ended and everything is on the disk, ``target`` is untouched; then one rename puts the new directory in its place, so
    that a crash leaves the old or the new one whole. An error inside the block leaves no trace.

    Raises:
        FileError: ``target`` is a file, or its parent cannot be written to.
    """
    final = Path(target).resolve()
    if final.exists() and not final.is_dir():
        raise FileError("is a file, but a directory is needed to save into.", path=target)
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        stage = Path(tempfile.mkdtemp(prefix=f".{final.name}.", dir=final.parent))
    except OSError as error:
        raise FileError(f"cannot be written ({_reason(error)}).", path=target) from error
    try:
        yield stage
        os.chmod(stage, 0o777 & ~_umask())
        if final.exists():
            _keep_others(final, stage, drop)
        for file in stage.rglob("*"):
            _sync(file)
        _sync(stage)
        _swap(stage, final)
    except OSError as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"cannot be written ({_reason(error)}).", path=target) from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _keep_others(old: Path, new: Path, drop: Callable[[str], bool]) -> None:
    """Link (or copy) into ``new`` what ``old`` holds and ``new`` does not."""
    for entry in old.iterdir():
        twin = new / entry.name
        if drop(entry.name):
            continue
        if entry.is_dir() and not entry.is_symlink():
            twin.mkdir(exist_ok=True)
            _keep_others(entry, twin, lambda name: False)
        elif not twin.exists():
            try:
                os.link(entry, twin, follow_symlinks=False)
            except OSError:
                shutil.copy2(entry, twin, follow_symlinks=False)


def _swap(new: Path, old: Path) -> None:
    """Put ``new`` where ``old`` is; what was there is then at ``new``."""
    if not old.exists():
        os.rename(new, old)
    elif not _exchange(new, old):
        aside = old.with_name(f"{new.name}.old")
        os.rename(old, aside)
        os.rename(new, old)
        os.rename(aside, new)
    _sync(old.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two directories in one step, where the system can (Linux, glibc 2.28 and newer)."""
    import ctypes

    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    at_fdcwd, exchange = -100, 2
    return rename(at_fdcwd, os.fsencode(one), at_fdcwd, os.fsencode(other), exchange) == 0


def _sync(path: Path) -> None:
    if path.is_symlink() or (os.name == "nt" and path.is_dir()):
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).lower()
