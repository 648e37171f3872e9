"""Where a model's files come from: a directory, or a repository of the hub at one revision.

The cache and its environment variables are huggingface_hub's own (``HF_HOME``, ``HF_HUB_CACHE``, ``HF_HUB_OFFLINE``,
``HF_TOKEN``, ``HF_ENDPOINT``). What is cached costs no network call. Nothing here imports torch.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from transept import hub
from transept.errors import FileError, FormatError, InputError, InputTypeError
from transept.files import plain_name, safe_join


class SourceOptions(TypedDict, total=False):
    """The arguments that every ``from_pretrained`` takes for finding files."""

    revision: str | None
    subfolder: str | None
    token: str | bool | None
    cache_dir: str | os.PathLike[str] | None
    local_files_only: bool
    force_download: bool
    trust_remote_code: bool | None


def take_source_options(options: dict[str, Any]) -> dict[str, Any]:
    """Take the arguments that say where to look out of all those of a call."""
    return {name: options.pop(name) for name in SourceOptions.__annotations__ if name in options}


def model_name(name: Any) -> str:
    """A directory or a repository id as text.

    Raises:
        InputTypeError: it is neither a text nor a path.
    """
    if not isinstance(name, str | os.PathLike):
        raise InputTypeError(
            f"a model is named by a text or a path, not by {type(name).__name__}: {str(name)[:60]!r}.",
            hint="Pass a directory or a repository id.",
        )
    return os.fspath(name)


def model_argument(name: Any, options: dict[str, Any]) -> Any:
    """The model that a ``from_pretrained`` was called for, which its options may also give as ``name_or_path``.

    Raises:
        InputTypeError: there is none.
    """
    name = options.pop("name_or_path", None) if name is None else name
    if name is None:
        raise InputTypeError("from_pretrained() was not told what to load.", hint="Pass a directory or a repository id.")
    return name


@dataclass(frozen=True)
class Source(hub.Repository):
    """One model's files.

    Args:
        name: a directory, or a repository id such as ``google-bert/bert-base-cased``.
        revision: branch, tag or commit of a repository; ``main`` when absent.
        subfolder: a folder below the directory or the repository.
        token: the hub token; ``None`` uses the one of the environment, ``False`` none.
        cache_dir: another cache than huggingface_hub's.
        local_files_only: never use the network.
        force_download: fetch again what is cached.
        trust_remote_code: accepted from callers of the reference and never used: code of a repository is not run.

    Raises:
        InputError: a name, revision, subfolder or token that cannot be one.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", model_name(self.name))
        if not self.name or "\0" in self.name:
            raise InputError(f"{self.name!r} is no name of a model.", hint="Pass a directory or a repository id.")
        for option in ("revision", "subfolder"):
            if (value := getattr(self, option)) is not None and value != "":
                try:
                    plain_name(value)
                except FormatError as error:
                    raise InputError(f"`{option}` cannot be {str(value)[:80]!r}: {error.message}") from None
        if isinstance(self.token, str) and not (self.token.isascii() and self.token.isprintable() and " " not in self.token):
            raise InputError("`token` holds spaces or other characters that no token has.")

    def options(self) -> dict[str, Any]:
        """Where it looks, as the arguments of ``from_pretrained``."""
        return {name: getattr(self, name) for name in SourceOptions.__annotations__}

    @property
    def directory(self) -> Path | None:
        """The local directory, or ``None`` where the name is of a repository."""
        if not os.path.isdir(self.name):
            return None
        return safe_join(self.name, self.subfolder) if self.subfolder else Path(self.name)

    def find(self, filename: str) -> Path | None:
        """The local path of a file, fetched first where needed; ``None`` where the model has no such file.

        Raises:
            FileError: neither a directory nor a repository that can be reached.
            FormatError: a name that leads outside the directory.
        """
        if (directory := self.directory) is not None:
            path = safe_join(directory, filename)
            return path if os.path.isfile(path) else None
        return hub.fetch(self, filename)

    def find_all(self, folder: str, suffix: str) -> list[Path]:
        """The local paths of the files right below a folder whose names end in ``suffix``, fetched first where needed.

        Raises:
            FileError, FormatError: see :meth:`find`.
        """
        if (directory := self.directory) is None:
            return hub.fetch_all(self, folder, suffix)
        inner = safe_join(directory, folder)
        names = sorted(path.name for path in inner.glob(f"*{suffix}"))
        return [path for name in names if (path := self.find(f"{folder}/{name}")) is not None]

    def need(self, filename: str) -> Path:
        """Like :meth:`find`, but a file that is not there is an error.

        Raises:
            FileError: naming the file and where it was looked for.
        """
        if (path := self.find(filename)) is not None:
            return path
        raise self.missing(filename)

    def missing(self, filename: str, *, hint: str | None = None) -> FileError:
        """The error for a file that was looked for and not found."""
        if self.directory is None:
            return hub.missing(self, filename, hint=hint)
        found = "is there, but no regular file" if os.path.lexists(self.directory / filename) else "is not there"
        return FileError(f"{filename!r} {found}.", path=self.directory, hint=hint)
