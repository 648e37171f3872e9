"""What people look at: colours where a terminal shows them, aligned tables, bars, trees, sizes in words."""

from __future__ import annotations

import os
import shutil
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TextIO

BLOCKS = " ▏▎▍▌▋▊▉█"


class Style:
    """Colours for one stream: none where it is no terminal, or ``NO_COLOR`` is set (no-color.org).

    Args:
        stream: where the text goes.
    """

    def __init__(self, stream: TextIO) -> None:
        self.terminal = stream.isatty()
        self.on = self.terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self.width = shutil.get_terminal_size((100, 24)).columns if self.terminal else 100

    def _wrap(self, text: str, code: int) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.on and text else text

    def bold(self, text: str) -> str:
        """Headings."""
        return self._wrap(text, 1)

    def dim(self, text: str) -> str:
        """What matters less."""
        return self._wrap(text, 2)

    def red(self, text: str) -> str:
        """Errors."""
        return self._wrap(text, 31)

    def green(self, text: str) -> str:
        """What is well."""
        return self._wrap(text, 32)

    def yellow(self, text: str) -> str:
        """Warnings."""
        return self._wrap(text, 33)

    def blue(self, text: str) -> str:
        """Bars."""
        return self._wrap(text, 34)


def columns(text: str) -> int:
    """Columns that a text takes on a terminal: wide characters take two, combining ones and colours none."""
    plain, inside = [], False
    for char in text:
        if char == "\x1b":
            inside = True
        elif inside:
            inside = char != "m"
        else:
            plain.append(char)
    return sum(_columns(char) for char in plain)


def _columns(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Cf", "Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def plain(text: str) -> str:
    """A text without characters that would move a terminal's cursor or change its colours."""
    return "".join(char if char.isprintable() else " " for char in text)


def shorten(text: str, width: int) -> str:
    """A text on one line and at most so many columns wide, without control characters."""
    text = plain(text[: 4 * width + 1])
    if columns(text) <= width:
        return text
    taken, kept = 0, []
    for char in text:
        taken += _columns(char)
        if taken > width - 1:
            break
        kept.append(char)
    return "".join(kept) + "…"


def table(rows: Iterable[Sequence[str]], right: Iterable[int] = (), gap: int = 2) -> list[str]:
    """Rows as lines with aligned columns.

    Args:
        rows: cells, which may be coloured; rows may be of different lengths.
        right: numbers of the columns that are aligned at their right ends.
        gap: spaces between columns.
    """
    rows, flush = [list(row) for row in rows], set(right)
    widths = [max((columns(row[i]) for row in rows if i < len(row)), default=0) for i in range(max(map(len, rows), default=0))]
    lines = []
    for row in rows:
        cells = []
        for i, cell in enumerate(row):
            filling = " " * (widths[i] - columns(cell))
            cells.append(filling + cell if i in flush else cell + filling)
        lines.append((" " * gap).join(cells).rstrip())
    return lines


def bar(share: float, width: int = 20) -> str:
    """A bar as long as the share of the whole, in eighths of a character; none at all is empty, a little is not."""
    eighths = round(max(0.0, min(share, 1.0)) * width * 8)
    if share > 0:
        eighths = max(eighths, 1)
    full, part = divmod(eighths, 8)
    return "█" * full + (BLOCKS[part] if part else "")


def count(number: int) -> str:
    """A number in thousands, millions, billions."""
    for size, unit in ((10**12, " T"), (10**9, " B"), (10**6, " M"), (10**3, " k")):
        if number >= size:
            return f"{number / size:.4g}{unit}" if number < 1000 * size else f"{number // size}{unit}"
    return str(number)


def size(number: float) -> str:
    """Bytes in kB, MB, GB (powers of ten)."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}" if unit != "B" else f"{number:.0f} B"
        number /= 1000
    return f"{number:.3g} TB"
