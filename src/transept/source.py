"""Where a model's files come from: a directory, or a repository of the hub at one revision.

The cache and its environment variables are huggingface_hub's own (``HF_HOME``, ``HF_HUB_CACHE``, ``HF_HUB_OFFLINE``,
``HF_TOKEN``, ``HF_ENDPOINT``). What is cached costs no network call. Nothing here imports torch.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from transept.errors import FileError, InputError
from transept.files import safe_join


class SourceOptions(TypedDict, total=False):
    """The arguments that every ``from_pretrained`` takes for finding files."""

    revision: str
    subfolder: str
    token: str | bool | None
    cache_dir: str | os.PathLike[str] | None
    local_files_only: bool
    force_download: bool


@dataclass(frozen=True)
class Source:
    """One model's files.

    Args:
        name: a directory, or a repository id such as ``google-bert/bert-base-cased``.
        revision: branch, tag or commit of a repository.
        subfolder: a folder below the directory or the repository.
        token: the hub token; ``None`` uses the one of the environment, ``False`` none.
        cache_dir: another cache than huggingface_hub's.
        local_files_only: never use the network.
        force_download: fetch again what is cached.
    """

    name: str
    revision: str = "main"
    subfolder: str = ""
    token: str | bool | None = None
    cache_dir: str | os.PathLike[str] | None = None
    local_files_only: bool = False
    force_download: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", os.fspath(self.name))
        if not self.name:
            raise InputError("the name of a model is empty.", hint="Pass a directory or a repository id.")

    @property
    def directory(self) -> Path | None:
        """The local directory, or ``None`` where the name is of a repository."""
        if not os.path.isdir(self.name):
            return None
        return safe_join(self.name, self.subfolder) if self.subfolder else Path(self.name)

    def find(self, filename: str) -> Path | None:
        """The local path of a file, fetched first where needed; ``None`` where the model has no such file."""
        if (directory := self.directory) is not None:
            path = safe_join(directory, filename)
            return path if path.is_file() else None
        from transept.hub import fetch

        return fetch(self, filename)

    def need(self, filename: str) -> Path:
        """Like :meth:`find`, but a file that is not there is an error.

        Raises:
            FileError: naming the file and where it was looked for.
        """
        if (path := self.find(filename)) is not None:
            return path
        where = f"the directory {self.directory}" if self.directory is not None else f"the repository {self.name}"
        raise FileError(f"{filename!r} is not in {where}.", path=self.name)
