"""Watching what loading a model does: which files it opens, what it runs and whom it calls."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import transept
from tests.pace import within
from transept.checkpoint import store
from transept.errors import TranseptError

# Where Python's own modules lie, which may be imported at any time.
_CODE = tuple(
    os.path.realpath(path)
    for path in {*sysconfig.get_paths().values(), sys.prefix, sys.base_prefix, Path(transept.__file__).parent.parent}
)
_SYSTEM = ("/dev/null", "/dev/urandom", "/proc/", "/sys/", "/etc/localtime", "/usr/share/zoneinfo")
_RUNS = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect", "socket.getaddrinfo")
_CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.chmod", "os.truncate")

_watched: list[Path] = []
_seen: list[str] = []


def _below(path: str, roots: tuple[str, ...]) -> bool:
    return any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots)


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watched:
        return
    if event in _RUNS:
        _seen.append(f"{event} {arguments[:2]!r}")
    elif event == "open" or event in _CHANGES:
        for path in arguments[:2] if event in _CHANGES else arguments[:1]:
            if isinstance(path, str | bytes | os.PathLike):
                _note(event, os.path.realpath(os.fsdecode(path)))


def _note(event: str, path: str) -> None:
    if not _below(path, (*map(str, _watched), *_CODE)) and not path.startswith(_SYSTEM):
        _seen.append(f"{event} {path}")


sys.addaudithook(_hook)


@contextmanager
def watched(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Give the list of everything that leaves ``root`` while the block runs: reads, writes, processes, sockets.

    safetensors opens files where Python does not see it, so its door is watched too.
    """
    real = store.safe_open

    def safe_open(path: Any, *arguments: Any, **options: Any) -> Any:
        _note("safe_open", os.path.realpath(path))
        return real(path, *arguments, **options)

    monkeypatch.setattr(store, "safe_open", safe_open)
    _seen.clear()
    _watched.append(Path(os.path.realpath(root)))
    try:
        yield _seen
    finally:
        _watched.clear()
        monkeypatch.setattr(store, "safe_open", real)


def refused(action: Any, root: Path, monkeypatch: pytest.MonkeyPatch, *, seconds: float = 2.0) -> TranseptError:
    """The typed error that an action ends in, soon and without leaving ``root``."""
    with within(seconds), watched(root, monkeypatch) as seen, pytest.raises(TranseptError) as caught:
        action()
    assert seen == []
    str(caught.value).encode()  # can be printed
    assert len(str(caught.value)) < 20_000
    return caught.value
