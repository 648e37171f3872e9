"""Where models are, by the names that clients ask for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from transept.storage.cache import repositories
from transept.storage.source import GGUF_ENDING

_SHARD = re.compile(r".*-(?!00001)\d{5}-of-\d{5}")  # of a GGUF file, behind the first


def named(given: str) -> tuple[str, str]:
    """The name and the source of ``NAME=MODEL``; of a model alone, the last part of its name."""
    name, separator, source = given.partition("=")
    if separator and not Path(given).exists():
        return name, source
    return Path(given).name.removesuffix(GGUF_ENDING), given


def in_directory(path: Path) -> Iterator[tuple[str, str]]:
    """The models right below a directory: folders with a config, and GGUF files, each by its name without ending."""
    for entry in sorted(path.iterdir()):
        if (entry / "config.json").is_file():
            yield entry.name, str(entry)
        elif entry.suffix == GGUF_ENDING and entry.is_file() and not _SHARD.fullmatch(entry.stem):
            yield entry.stem, str(entry)


def in_cache() -> Iterator[tuple[str, str]]:
    """The repositories in the cache of the hub, by their ids, each with the folder that it is in there."""
    return ((name, str(folder)) for name, folder in repositories() if (folder / "config.json").is_file())
