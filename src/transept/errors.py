"""Every error that transept raises on purpose.

One base class carries what a person or a program needs next: ``code`` (stable, for programs), ``path`` (the file it is
about) and ``hint`` (what to do). Each kind also derives from the built-in that people already catch.
"""

from __future__ import annotations

import copyreg
import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from os import PathLike
from typing import Any, ClassVar

Names = Iterable[str]


class TranseptError(Exception):
    """Base of all errors of this library: what was wrong, the file it was found in, and what to do about it."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str, *, path: str | PathLike[str] | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.path = None if path is None else str(path)
        self.hint = hint

    def __str__(self) -> str:
        text = self.message if self.path is None else f"{self.path}: {self.message}"
        return text if self.hint is None else f"{text} {self.hint}"

    def __reduce__(self) -> tuple[object, ...]:
        # Without the kinds' own constructors, which take other arguments.
        return copyreg.__newobj__, (type(self), self.message), self.__dict__  # type: ignore[attr-defined]


class InputError(TranseptError, ValueError):
    """A value that was passed in cannot be used."""

    code = "input"


class InputTypeError(InputError, TypeError):
    """A value of the wrong type was passed in."""

    code = "input_type"


class MissingNameError(InputError, AttributeError):
    """A name that a model or a part of it does not have."""

    code = "missing_name"


class ConfigError(TranseptError, ValueError):
    """A configuration holds a value that no model can be built from."""

    code = "config"


class UnsupportedError(TranseptError, ValueError):
    """A task, a model type or a feature that this library does not have."""

    code = "unsupported"


class FileError(TranseptError, OSError):
    """A file or a repository cannot be reached, read or written."""

    code = "file"


class FormatError(TranseptError, ValueError):
    """A file's content is corrupt, hostile or not of the format that its name says."""

    code = "format"


class CheckpointError(FormatError, RuntimeError):
    """Weights that do not fit the model; ``missing``, ``unexpected`` and ``mismatched`` list all of them."""

    code = "checkpoint"

    def __init__(
        self, message: str, *, missing: Names = (), unexpected: Names = (), mismatched: Names = (), **where: Any
    ) -> None:
        super().__init__(message, **where)
        self.missing, self.unexpected, self.mismatched = tuple(missing), tuple(unexpected), tuple(mismatched)


class MissingExtraError(TranseptError, ImportError):
    """An optional package is needed and not installed."""

    code = "missing_extra"

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package {package!r}.", hint=f'Install it: pip install "transept[{extra}]".')


class VersionError(TranseptError, ImportError):
    """A package is missing, or its version is none that was asked for."""

    code = "version"


class GenerationError(TranseptError, RuntimeError):
    """Writing text cannot go on: scores that are no numbers, or a stream that dried up."""

    code = "generation"


class TrainingError(TranseptError, RuntimeError):
    """Training cannot go on: gradients that are no numbers, or too little memory."""

    code = "training"


class TranseptWarning(UserWarning):
    """Something that works but probably is not what was meant."""


def refuse(wrong: object, what: str, hint: str | None = None, kind: type[TranseptError] = InputError, **where: Any) -> None:
    """Raise an error that says what is wrong, and what to do, if anything is."""
    if wrong:
        raise kind(what, hint=hint, **where)


@contextmanager
def naming(path: str | PathLike[str] | None) -> Iterator[None]:
    """Let the errors of the block that name no file name this one, if there is one."""
    try:
        yield
    except TranseptError as error:
        error.path = error.path or (None if path is None else str(path))
        raise


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence that names the known names most like ``name``, or all of them when none is near."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"Did you mean {' or '.join(map(repr, near))}?" if near else f"Known: {', '.join(known)}."
