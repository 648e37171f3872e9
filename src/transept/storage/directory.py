"""Replacing the files of a directory so that a crash leaves the old ones whole.

New files are written beside the directory, the old ones that stay are linked to them, and the two directories change places in
one step. Where that is not allowed (a mounted volume, a parent that cannot be written to, the working directory itself), the
files are put in place one by one, each of them whole.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from transept.errors import FileError, InputError, InputTypeError, TranseptError
from transept.storage.files import STAGES, reason, sync

if sys.platform != "win32":
    import fcntl

Drop = Callable[[str], bool]
_ENDING = ".saving"
_LOCK = f"{_ENDING}.lock"
HELD = -1
LOCK_SECONDS = 60.0  # how long a save waits for another one to the same directory


@contextmanager
def replace_directory(target: str | os.PathLike[str], *, drop: Drop = lambda name: False) -> Iterator[Path]:
    """Give out an empty directory to write into; when the block ends well, its files replace those of ``target``.

    Files of ``target`` that the block did not write stay, except those whose name ``drop`` accepts. An error inside the
    block leaves ``target`` as it was, and no trace. What an earlier process left when it was killed is removed.
    A ``target`` that is itself given out by this function is written to directly: it is committed with all that is in it.

    Raises:
        InputTypeError, InputError: ``target`` is no path, or an empty one.
        FileError: ``target`` is a file, cannot be written to, or is being saved to by another process for a minute.
    """
    if not isinstance(target, str | os.PathLike):
        raise InputTypeError(f"a directory to save into is a text or a path, but {type(target).__name__} was passed.")
    if not os.fspath(target):
        raise InputError("the name of the directory to save into is empty.", hint='Pass "." for the working directory.')
    try:
        final = _writable(target)
        if final in STAGES:
            _remove(entry for entry in final.iterdir() if drop(entry.name))
            yield final
            return
        final.parent.mkdir(parents=True, exist_ok=True)
        with _stage(final) as stage:
            yield stage
            with ThreadPoolExecutor(4) as pool:  # the disk takes several at once in the time of one
                list(pool.map(sync, written := sorted(stage.rglob("*"))))
            sync(stage)
            _commit(stage, final, [str(file.relative_to(stage)) for file in written if not file.is_dir()], drop)
    except TranseptError:
        raise
    except OSError as error:
        raise FileError(f"cannot be written ({reason(error)}).", path=target) from error


def _writable(target: str | os.PathLike[str]) -> Path:
    """Where ``target`` really is, if it is a directory that may be written to, or nothing yet."""
    try:
        final = Path(os.path.realpath(target))
        exists, is_directory = final.exists(), final.is_dir()
    except (OSError, ValueError) as error:  # a name that is too long, or holds a NUL
        raise FileError(f"is no name for a directory ({reason(error)}).", path=target) from error
    if exists and not is_directory:
        raise FileError("is a file, but a directory is needed to save into.", path=target)
    if exists and not os.access(final, os.W_OK | os.X_OK):
        raise FileError("may not be written to.", path=target)
    return final


@contextmanager
def _stage(final: Path) -> Iterator[Path]:
    """An empty directory beside ``final``, or in it where that is the only place; removed at the end."""
    beside = not os.path.ismount(final) and os.access(final.parent, os.W_OK | os.X_OK)
    parent = final.parent if beside or not final.exists() else final
    stage = parent / f".{final.name}.{secrets.token_hex(4)}{_ENDING}"
    with _alone(parent, final.name):
        sweep(parent, re.escape(final.name))
        stage.mkdir()
        handle = lock(stage)
    STAGES.add(stage)
    try:
        yield stage
    finally:
        STAGES.discard(stage)
        shutil.rmtree(stage, ignore_errors=True)
        if handle is not None:
            os.close(handle)


def sweep(parent: Path, pattern: str) -> None:
    """Remove what killed processes left of saves to directories whose names match a regular expression.

    A living process holds a lock on what it is filling.
    """
    names = re.compile(rf"\.{pattern}(\.[0-9a-f]{{8}}{re.escape(_ENDING)}|{re.escape(_LOCK)})")
    with contextlib.suppress(OSError):  # a directory that may not be listed
        for entry in [entry for entry in parent.iterdir() if names.fullmatch(entry.name)]:
            if (handle := lock(entry)) is not None and handle != HELD:
                with contextlib.suppress(OSError):
                    _remove([entry])
                os.close(handle)


def _remove(entries: Iterable[Path]) -> None:
    for entry in entries:
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


@contextmanager
def _alone(parent: Path, name: str) -> Iterator[None]:
    """Keep out others that save to the same place, as all processes of a job do when none looks at its rank.

    The lock is on a file of its own: other programs lock directories for reasons of theirs.
    """
    path, deadline = parent / f".{name}{_LOCK}", time.monotonic() + LOCK_SECONDS
    while (handle := lock(path, os.O_CREAT)) == HELD:
        if time.monotonic() > deadline:
            wrong = f"is being saved to by another process, which has held {str(path)!r} for {LOCK_SECONDS:.0f} seconds."
            remedy = "Wait for it or end it; in a job of several processes save in one of them."
            raise FileError(wrong, path=parent / name, hint=remedy)
        time.sleep(0.02)
    try:
        yield
    finally:
        if handle is not None:
            path.unlink(missing_ok=True)
            os.close(handle)


def lock(path: Path, flags: int = os.O_RDONLY, mode: int = 0o600) -> int | None:
    """A handle that locks a file or directory; ``HELD`` where another process has locked or just removed it, ``None`` where
    the system cannot lock. ``OSError`` where it cannot be opened.
    """
    if sys.platform == "win32":
        return None
    handle = os.open(path, flags | os.O_NOFOLLOW, mode)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(handle), os.lstat(path)):
            return handle
        found: int | None = HELD
    except OSError as error:
        found = HELD if isinstance(error, BlockingIOError | FileNotFoundError) else None
    os.close(handle)
    return found


def _commit(stage: Path, final: Path, written: list[str], drop: Drop) -> None:
    with _alone(stage.parent, final.name):
        if not final.exists():
            os.rename(stage, final)
        elif stage.parent != final.parent or not _swap(stage, final, drop):
            _settle(stage, final, written, drop)
        sync(final)
        sync(final.parent)


def _swap(stage: Path, final: Path, drop: Drop) -> bool:
    """Link into ``stage`` what stays, and let the two change places; ``False`` where that cannot be done."""
    with contextlib.suppress(OSError):  # this process would find itself in a removed directory
        if Path(os.path.realpath(os.getcwd())).is_relative_to(final):
            return False
    try:
        _keep_others(final, stage, drop, partial(os.link, follow_symlinks=False))
    except OSError:  # a file that may not be linked, of another owner or file system
        return False
    sync(stage)
    if not _exchange(stage, final):
        return False
    _keep_others(stage, final, drop, os.rename)  # what came into the old directory in the meantime
    return True


def _keep_others(old: Path, new: Path, drop: Drop, place: Callable[[Any, Any], Any]) -> None:
    """Link or move into ``new`` what ``old`` holds and ``new`` does not, and give ``new`` its rights."""

    def left(folder: str, names: list[str]) -> set[str]:
        inner = Path(folder).relative_to(old)
        files = [entry.name for entry in Path(folder).iterdir() if entry.is_symlink() or not entry.is_dir()]
        both = {name for name in files if os.path.lexists(new / inner / name)}
        return both | {name for name in names if inner == Path() and drop(name)}

    shutil.copytree(old, new, symlinks=True, ignore=left, copy_function=place, dirs_exist_ok=True)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two directories in one step, where the system can (Linux with glibc 2.28 or newer, macOS)."""
    import ctypes

    a, b, exchange = os.fsencode(one), os.fsencode(other), 2
    try:
        library = ctypes.CDLL(None, use_errno=True)
        if hasattr(library, "renameat2"):
            return bool(library.renameat2(-100, a, -100, b, exchange) == 0)  # -100: names below the working directory
        return bool(library.renamex_np(a, b, exchange) == 0)
    except (AttributeError, OSError, TypeError):
        return False


def _settle(stage: Path, final: Path, written: list[str], drop: Drop) -> None:
    """Move the written files in one by one.

    Indices (JSON) go first and come last, so that a crash in between leaves files that cannot be read together rather than
    old and new ones mixed.
    """
    dropped = [entry for entry in final.iterdir() if drop(entry.name)]
    for entry in dropped:
        if entry.suffix == ".json":
            entry.unlink()
    for name in sorted(written, key=lambda name: name.endswith(".json")):
        (final / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(stage / name, final / name)
    for entry in dropped:
        if entry.name not in written:
            entry.unlink(missing_ok=True)
