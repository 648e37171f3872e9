"""One run in a directory at a time."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transept.directory import HELD, lock
from transept.errors import FileError, TranseptError
from transept.files import dump_json, make_directory, reason
from transept.schema import read_typed

LOCK_NAME = ".training.lock"
_HOLDER: Any = {"process": int, "machine": str}
_HELD: dict[int, tuple[str, int]] = {}  # handles, each with its path and the thread that has it


@contextmanager
def only_run(directory: str | os.PathLike[str]) -> Iterator[None]:
    """Keep others from training in a directory while the block runs.

    The system gives the lock back when the process ends, however it does. A thread that has it can ask for it again.

    Raises:
        FileError: another process trains in it, which is named; or the directory cannot be written to.
    """
    path = make_directory(directory) / LOCK_NAME
    holder = os.path.realpath(path), threading.get_ident()
    if holder in _HELD.values():
        yield
        return
    try:
        handle = lock(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise FileError(f"cannot be written ({reason(error)}).", path=path) from error
    if handle == HELD:
        hint = "Wait for it, end it, or train in another directory (`output_dir`)."
        raise FileError(f"is in use: {_holder(path)} trains in it.", path=directory, hint=hint)
    if handle is None:  # a system that cannot lock
        yield
        return
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, dump_json({"process": os.getpid(), "machine": socket.gethostname()}).encode(), 0)
    except OSError as error:
        os.close(handle)
        raise FileError(f"cannot be written ({reason(error)}).", path=path) from error
    _HELD[handle] = holder
    try:
        yield
    finally:
        _HELD.pop(handle, None)
        path.unlink(missing_ok=True)
        os.close(handle)


def _holder(path: Path) -> str:
    try:
        holder: Any = read_typed(path, _HOLDER)
        return f"process {holder['process']} on {holder['machine'][:80]}"
    except TranseptError:  # it has just begun or ended
        return "another process"


def _let_go() -> None:
    """Close the locks in a forked process: a worker that outlives a killed run would hold them."""
    while _HELD:
        os.close(_HELD.popitem()[0])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
