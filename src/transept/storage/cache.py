"""The cache of the hub on this machine: which models are in it, how much they take, what comes into it and goes."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from transept.errors import FileError, InputError, TranseptError
from transept.storage.files import reason
from transept.storage.source import GGUF_ENDING, LIBRARY, MAX_LISTED, Source, cause, check_id

_PREFIX = "models--"
# Endings of what stands beside weights, and folders of weights for other libraries.
_TEXTS = (".json", ".txt", ".jinja", ".model", ".spm", ".bpe", ".tiktoken")
_OTHERS = {"onnx", "openvino", "coreml", "original", "runs", "checkpoints"}


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


def listed(source: Source) -> dict[str, int]:
    """The sizes of the files of a repository by their names, as the hub tells them (``FileError`` where it does not)."""
    from huggingface_hub import HfApi, RepoFile

    check_id(source.name)
    api = HfApi(token=source.token, library_name=LIBRARY)
    try:
        tree = islice(api.list_repo_tree(source.name, recursive=True, revision=source.revision), MAX_LISTED)
        return {entry.path: entry.size for entry in tree if isinstance(entry, RepoFile)}
    except Exception as error:  # of HTTP and of the hub's own
        what, hint = cause(error, source.token)
        raise FileError(f"its files cannot be listed: {what}.", path=source.name, hint=hint) from None


def needed(names: Iterable[str]) -> list[str]:
    """The files that a model is loaded from: its weights once, and no copies of them for other libraries.

    Raises:
        InputError: there are several GGUF files, and no other weights.
    """
    own = [name for name in names if not name.startswith(".") and not {*PurePosixPath(name).parts[:-1]} & _OTHERS]
    of_kind = (
        [name for name in own if name.endswith(ending)] for ending in (".safetensors", "_model.bin", ".bin", GGUF_ENDING)
    )
    weights = next(filter(None, of_kind), [])
    if weights and weights[0].endswith(GGUF_ENDING) and len(weights) > 1:
        raise InputError(f"there are several GGUF files: {', '.join(weights[:20])}.", hint="Pass --file with one of them.")
    return [name for name in own if name.endswith(_TEXTS) or name in weights]


def remove(name: str) -> None:
    """Take a repository out of the cache, all its commits (see :func:`folder_of`; ``FileError`` where that is not allowed)."""
    folder = folder_of(name)
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise FileError(f"cannot be removed ({reason(error)}).", path=folder) from error
