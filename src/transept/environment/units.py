"""Numbers as people read and write them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import partial

from transept.errors import InputError

_DURATION = re.compile(r"(-?\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d|)", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1, "": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(given: str | float) -> float:
    """Seconds of such as ``5m``, ``1.5h``, ``0`` or 90; infinite for what is below 0 (``InputError`` for anything else)."""
    found = _DURATION.fullmatch(given.strip()) if isinstance(given, str) else None
    if found is None and isinstance(given, str | bool):
        raise InputError(f"{given!r:.40} is no time.", hint="Write seconds, or such as 30s, 5m or 2h; -1 is for ever.")
    number = float(found[1]) * _SECONDS[found[2]] if found is not None else float(given)
    return math.inf if number < 0 else number


def _scaled(number: float, units: Sequence[str], digits: int) -> str:
    unit = 0
    while float(f"{number:.{digits}g}") >= 1000 and unit < len(units) - 1:
        number, unit = number / 1000, unit + 1
    return f"{number:.{digits}g}{units[unit]}"


# A number in thousands, millions, billions; and bytes in kB, MB, GB (powers of ten).
count = partial(_scaled, units=("", " k", " M", " B", " T"), digits=4)
size = partial(_scaled, units=(" B", " kB", " MB", " GB", " TB"), digits=3)
