"""Where a model's files come from: a directory, or a repository of the hub at one revision.

The cache and its environment variables are huggingface_hub's own (``HF_HOME``, ``HF_HUB_CACHE``, ``HF_HUB_OFFLINE``,
``HF_TOKEN``, ``HF_ENDPOINT``). What is cached costs no network call. Nothing here imports torch.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from transept import hub
from transept.errors import FileError, FormatError, InputError, InputTypeError
from transept.files import plain_name, safe_join

OPTIONS = tuple(field.name for field in fields(hub.Repository))[1:]  # the arguments of every from_pretrained for finding files


def take_source_options(options: dict[str, Any]) -> dict[str, Any]:
    """Take the arguments that say where to look out of all those of a call."""
    return {name: options.pop(name) for name in OPTIONS if name in options}


def model_name(name: Any) -> str:
    """A directory or a repository id as text (``InputTypeError`` where it is neither a text nor a path)."""
    if not isinstance(name, str | os.PathLike):
        what = f"a model is named by a text or a path, not by {type(name).__name__}: {str(name)[:60]!r}."
        raise InputTypeError(what, hint="Pass a directory or a repository id.")
    return os.fspath(name)


def model_argument(name: Any, options: dict[str, Any]) -> Any:
    """The model of a ``from_pretrained``, which ``options`` may give as ``name_or_path`` (``InputTypeError``: none does)."""
    name = options.pop("name_or_path", None) if name is None else name
    if name is None:
        raise InputTypeError("from_pretrained() was not told what to load.", hint="Pass a directory or a repository id.")
    return name


@dataclass(frozen=True)
class Source(hub.Repository):
    """One model's files, in a directory or in a repository: see :class:`transept.hub.Repository` for the arguments.

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
        return {name: getattr(self, name) for name in OPTIONS}

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
        """The local paths of the files right below a folder whose names end in ``suffix``; see :meth:`find` for errors."""
        if (directory := self.directory) is None:
            return hub.fetch_all(self, folder, suffix)
        inner = safe_join(directory, folder)
        names = sorted(path.name for path in inner.glob(f"*{suffix}"))
        return [path for name in names if (path := self.find(f"{folder}/{name}")) is not None]

    def need(self, filename: str) -> Path:
        """Like :meth:`find`, but a file that is not there is a ``FileError`` that names the place."""
        if (path := self.find(filename)) is not None:
            return path
        raise self.missing(filename)

    def missing(self, filename: str, *, hint: str | None = None) -> FileError:
        """The error for a file that was looked for and not found."""
        if self.directory is None:
            return hub.missing(self, filename, hint=hint)
        found = "is there, but no regular file" if os.path.lexists(self.directory / filename) else "is not there"
        return FileError(f"{filename!r} {found}.", path=self.directory, hint=hint)
