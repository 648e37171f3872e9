"""Patterns that come out of files or from callers: they could take for ever, which the standard library cannot stop, so they
are looked for by the package ``regex``, with a limit of time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transept.errors import FormatError, MissingExtraError

SECONDS = 5.0
MAX_LENGTH = 1000


def compile_pattern(place: str, pattern: Any, purpose: str) -> Any:
    """A pattern of the package ``regex``, in which a dot stands for a line's end too.

    Args:
        place: where it stands, for messages.
        pattern: its text.
        purpose: what the package is needed for.

    Raises:
        FormatError: it is no pattern, or too long.
        MissingExtraError: the package is not installed.
    """
    try:
        import regex  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingExtraError("regex", "serve", purpose) from error
    if not isinstance(pattern, str) or len(pattern) > MAX_LENGTH:
        raise FormatError(f"{place} has the pattern {pattern!r:.80}, but needs a text of up to {MAX_LENGTH} characters.")
    try:
        return regex.compile(pattern, regex.DOTALL)
    except regex.error as error:
        raise FormatError(f"{place} has the pattern {pattern!r:.80}, which is none: {error}.") from error


def timed(search: Callable[..., Any], *args: Any, over: str) -> Any:
    """What a method of a compiled pattern finds; a ``FormatError`` where it takes too long over a text."""
    try:
        return search(*args, timeout=SECONDS)
    except TimeoutError as error:
        raise FormatError(f"a pattern takes longer than {SECONDS:g} seconds over {over}.") from error
