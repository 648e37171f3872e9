"""The cache of the hub on this machine: which models are in it, how much they take, and when they were used."""

from __future__ import annotations

import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from transept.errors import FileError, TranseptError
from transept.storage.files import reason
from transept.storage.source import Source, check_id

_PREFIX = "models--"


class Usage(NamedTuple):
    """Bytes that a repository takes, and when one of its files was read last, in seconds since 1970."""

    bytes: int
    last_used: float


def cache_folder() -> Path:
    """Where the cache is."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser()


def repositories() -> list[tuple[str, Path]]:
    """The repositories of models in the cache, each with the folder of the commit that its ``main`` is."""
    found = []
    for folder in sorted(cache_folder().glob(f"{_PREFIX}*")):
        name = folder.name.removeprefix(_PREFIX).replace("--", "/")
        with suppress(TranseptError):
            found += [(name, folder / "snapshots" / commit)] if (commit := Source(name).commit) is not None else []
    return [(name, path) for name, path in found if path.is_dir()]


def usage(name: str) -> Usage:
    """What a repository takes, files that another one shares with it once."""
    size, last = 0, 0.0
    for path in folder_of(name).rglob("*"):
        with suppress(OSError):  # it went in the meantime
            if not stat.S_ISDIR((about := path.lstat()).st_mode):
                size, last = size + about.st_size, max(last, about.st_atime)
    return Usage(size, last)


def folder_of(name: str) -> Path:
    """The folder of a repository in the cache (``FileError``: the name is no repository's, or the cache has none of it)."""
    check_id(name)
    folder = cache_folder() / f"{_PREFIX}{name.replace('/', '--')}"
    if not folder.is_dir() or folder.is_symlink():
        raise FileError(f"the cache has no repository {name!r}.", hint="`transept list` shows what it has.")
    return folder


def remove(name: str) -> None:
    """Take a repository out of the cache, all its commits (see :func:`folder_of`; ``FileError`` where that is not allowed)."""
    folder = folder_of(name)
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise FileError(f"cannot be removed ({reason(error)}).", path=folder) from error
