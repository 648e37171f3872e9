"""Numbers as people read them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial


def _scaled(number: float, units: Sequence[str], digits: int) -> str:
    unit = 0
    while float(f"{number:.{digits}g}") >= 1000 and unit < len(units) - 1:
        number, unit = number / 1000, unit + 1
    return f"{number:.{digits}g}{units[unit]}"


# A number in thousands, millions, billions; and bytes in kB, MB, GB (powers of ten).
count = partial(_scaled, units=("", " k", " M", " B", " T"), digits=4)
size = partial(_scaled, units=(" B", " kB", " MB", " GB", " TB"), digits=3)
