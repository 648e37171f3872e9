"""What people look at: colours, tables, bars and answers on a terminal, and messages of one line on stderr."""

from __future__ import annotations

import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, TextIO

from transept.batch.encode import cleaned, encode, is_image, plain
from transept.errors import TranseptError
from transept.storage.files import reason

MOST_DETAILS, MOST_NUMBERS = 3, 8
COLOURS = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "blue": 34}
KINDS = {"error": "red", "warning": "yellow", "note": "dim"}
BLOCKS = " ▏▎▍▌▋▊▉█"
_COLOUR = re.compile(r"\x1b\[\d+m")
# What moves a terminal's cursor or asks it for more, and what turns the direction of the text around it.
_CONTROL = re.compile("[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f-\\x9f\\u2028-\\u202e\\u2066-\\u2069]")


class Style:
    """Colours for one stream: none where it is no terminal, or ``NO_COLOR`` is set (no-color.org)."""

    def __init__(self, stream: TextIO) -> None:
        self.terminal = stream.isatty()
        self.on = self.terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self.width = shutil.get_terminal_size((100, 24)).columns if self.terminal else 100

    def __call__(self, text: str, colour: str) -> str:
        return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m" if self.on and text else text


def complain(message: str, kind: str = "error") -> None:
    """Write one line on stderr: an ``error``, a ``warning`` or a ``note``."""
    style = Style(sys.stderr)
    cleared = "\r\x1b[K" if style.on else ""  # a progress bar may stand there
    sys.stdout.flush()  # what came before stands before it, where both go to one place
    print(f"{cleared}transept: {style(kind, KINDS[kind])}: {cleaned(message)}", file=sys.stderr, flush=True)


def explained(error: BaseException) -> str:
    """An error as one line that says what was wrong and what to do."""
    if isinstance(error, TranseptError):
        first, *details = str(error).splitlines() or [""]
        if len(details) <= MOST_DETAILS:
            return cleaned(" ".join([first, *details]))
        *rest, last = details[MOST_DETAILS:]  # the last line is the hint
        return cleaned(f"{first} {', '.join(map(cleaned, details[:MOST_DETAILS]))} and {len(rest)} more. {last}")
    if isinstance(error, ModuleNotFoundError):
        return f"the package {error.name!r} is not installed. `transept doctor` tells what is missing."
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "there is not enough memory. Pass a smaller --batch-size, or shorter inputs."
    if isinstance(error, OSError):
        return cleaned(f"{error.filename or 'standard input or output'}: {reason(error)}.")
    return cleaned(f"unexpected {type(error).__name__}: {error}. Run it again with --debug to see where it comes from.")


def harmless(text: str) -> str:
    """A text that others wrote, to be shown on a terminal: lines and tabs stay, and other control characters are spelt out."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text.replace("\r", ""))


def columns(text: str) -> int:
    """Columns that a text takes on a terminal: wide characters take two, combining ones and colours none."""
    shown = [char for char in _COLOUR.sub("", text) if unicodedata.category(char) not in ("Cf", "Mn", "Me")]
    return sum(1 + (unicodedata.east_asian_width(char) in "WF") for char in shown)


def shorten(text: str, width: int) -> str:
    """A text on one line and at most so many columns wide, without control characters."""
    text = plain(text[: 4 * width + 1])
    if columns(text) <= width:
        return text
    kept = ""
    while text and columns(kept + text[0]) < width:
        kept, text = kept + text[0], text[1:]
    return f"{kept}…"


def table(rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Rows of any lengths as lines with aligned columns, those numbered in ``right`` at their right ends."""
    rows = [list(row) for row in rows]
    widths = [max(map(columns, cells)) for cells in zip_longest(*rows, fillvalue="")]
    padded = ([(i in right, cell, " " * (widths[i] - columns(cell))) for i, cell in enumerate(row)] for row in rows)
    return ["  ".join(space + cell if last else cell + space for last, cell, space in row).rstrip() for row in padded]


def bar(share: float, width: int = 20) -> str:
    """A bar as long as the share of the whole, in eighths of a character; none at all is empty, a little is not."""
    full, part = divmod(max(round(max(0.0, min(share, 1.0)) * width * 8), int(share > 0)), 8)
    return ("█" * full + BLOCKS[part]).rstrip()


def answer_lines(answer: Any, style: Style) -> list[str]:
    """One answer as lines: a table for a list of mappings, aligned names for one, else its JSON."""
    if isinstance(answer, list) and answer and all(isinstance(each, Mapping) for each in answer):
        rows = [[style(str(name), "dim") for name in answer[0]]]
        return table([*rows, *([cell(name, value, style) for name, value in each.items()] for each in answer)])
    if not isinstance(answer, Mapping):
        return [f"{answer:.4f}" if isinstance(answer, float) else numbers(answer) or encode(answer)]
    lists = {name: value for name, value in answer.items() if isinstance(value, list)}
    lines = table([style(str(n), "dim"), cell(n, value, style, cut=False)] for n, value in answer.items() if n not in lists)
    if len(lists) > 1 and len(set(map(len, lists.values()))) == 1:  # such as labels and scores, side by side
        names = [str(name).removesuffix("s") for name in lists]
        return [*lines, *answer_lines([dict(zip(names, values)) for values in zip(*lists.values())], style)]
    for name, value in lists.items():
        lines += [style(str(name), "dim"), *(f"  {line}" for line in answer_lines(value, style))]
    return lines


def numbers(answer: Any) -> str | None:
    """The shape of an array or of nested lists of numbers, and its first ones; ``None`` for anything else."""
    import numpy as np

    try:
        array = np.asarray(answer)
    except ValueError:  # rows of unequal lengths
        return None
    if array.dtype.kind != "f" or not array.ndim:
        return None
    some = " ".join(f"{number:.4f}" for number in array.ravel()[:MOST_NUMBERS])
    return f"{' × '.join(map(str, array.shape))}: {some}{' …' if array.size > MOST_NUMBERS else ''}"


def cell(name: object, value: Any, style: Style, *, cut: bool = True) -> str:
    """One value; scores have a bar, and long texts are cut where that is asked for."""
    if isinstance(value, float):
        return f"{value:.4f} {style(bar(value, 16), 'blue')}" if name == "score" else f"{value:.4g}"
    if isinstance(value, tuple | list) and all(isinstance(each, float) for each in value):
        return " - ".join(f"{each:.2f}" for each in value)
    if is_image(value):
        return f"image of {value.width} × {value.height}"
    if hasattr(value, "shape"):
        return numbers(value) or encode(value)
    if isinstance(value, str) and not cut:
        return " ".join(plain(value).split())
    return shorten(as_text(value), max(20, style.width - 30))


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else encode(value)
