"""What goes to stderr: errors and warnings, one line each."""

from __future__ import annotations

import sys

from transept.cli.draw import Style, plain
from transept.errors import TranseptError
from transept.files import reason

MOST_DETAILS = 3


def complain(message: str, kind: str = "error") -> None:
    """One line on stderr."""
    style = Style(sys.stderr)
    cleared = "\r\x1b[K" if style.on else ""  # a progress bar may stand there
    label = style.red(kind) if kind == "error" else style.yellow(kind)
    sys.stdout.flush()  # what came before stands before it, where both go to one place
    print(f"{cleared}transept: {label}: {' '.join(plain(message).split())}", file=sys.stderr, flush=True)


def explained(error: BaseException) -> str:
    """An error as one line that says what was wrong and what to do."""
    if isinstance(error, TranseptError):
        first, *details = str(error).splitlines() or [""]
        if len(details) <= MOST_DETAILS:
            return " ".join([first, *(line.strip() for line in details)])
        shown = ", ".join(" ".join(line.split()) for line in details[:MOST_DETAILS])
        *rest, last = details[MOST_DETAILS:]  # the last line is the hint
        return f"{first} {shown} and {len(rest)} more. {last.strip()}"
    if isinstance(error, ModuleNotFoundError):
        return f"the package {error.name!r} is not installed. `transept doctor` tells what is missing."
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "there is not enough memory. Pass a smaller --batch-size, or shorter inputs."
    if isinstance(error, OSError):
        return f"{error.filename or 'standard input or output'}: {reason(error)}."
    return f"unexpected {type(error).__name__}: {error}. Run it again with --debug to see where it comes from."
