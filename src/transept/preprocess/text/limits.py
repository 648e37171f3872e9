"""What a call's ``padding``, ``truncation`` and ``max_length`` mean, and the padding itself."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transept.errors import InputError, TranseptWarning
from transept.preprocess.text.backend import Truncation

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NO_LIMIT = int(1e30)
"""What the ecosystem's files write for a model that takes any length."""
_UNLIMITED = int(1e20)
PADDINGS = {False: None, None: None, "do_not_pad": None, True: "longest", "longest": "longest", "max_length": "max_length"}
TRUNCATIONS = {False: None, None: None, "do_not_truncate": None, True: "longest_first"} | {
    name: name for name in ("longest_first", "only_first", "only_second")
}
SIDES = ("right", "left")


@dataclass(frozen=True)
class Padding:
    """How rows of ids get one length.

    Args:
        length: the least length of a row; ``None`` for that of the longest.
        multiple: lengths are rounded up to a multiple of it.
        side: where the padding goes, ``right`` or ``left``.
    """

    length: int | None = None
    multiple: int | None = None
    side: str = "right"

    def width(self, lengths: Sequence[int]) -> int:
        """The length that rows shorter than it get."""
        width = max(lengths, default=0) if self.length is None else self.length
        return width if not self.multiple else -(-width // self.multiple) * self.multiple


def resolve(
    padding: bool | str | None,
    truncation: bool | str | None,
    max_length: int | None,
    *,
    stride: int = 0,
    pad_to_multiple_of: int | None = None,
    padding_side: str = "right",
    truncation_side: str = "right",
    model_max_length: int = NO_LIMIT,
    verbose: bool = True,
) -> tuple[Padding | None, Truncation | None]:
    """The padding and the truncation that a call's arguments ask for, by the rules of the ecosystem.

    ``max_length`` alone truncates; where it is absent, the model's own limit takes its place, and where that is absent
    too, nothing is done.

    Raises:
        InputError: an unknown name, a number out of range, or two that exclude each other.
    """
    _check_numbers(max_length=max_length, stride=stride, pad_to_multiple_of=pad_to_multiple_of)
    pad = _choice("padding", _plain(padding), PADDINGS)
    cut = _choice("truncation", _plain(truncation), TRUNCATIONS)
    if padding_side not in SIDES:
        raise InputError(f"padding_side is {padding_side!r}.", hint='Pass "right" or "left".')
    if max_length is not None and truncation is None and not padding:
        cut = "longest_first"
    if max_length is not None and pad == "longest" and cut is None and padding is True and verbose:
        warnings.warn(
            "max_length is ignored with padding=True and no truncation; padding='max_length' pads to it.",
            TranseptWarning,
            stacklevel=4,
        )
    if max_length is None and model_max_length <= _UNLIMITED:
        max_length = model_max_length
    if max_length is None:
        pad, cut = (None if pad == "max_length" else pad), None
    if cut and pad and pad_to_multiple_of and max_length is not None and max_length % pad_to_multiple_of:
        raise InputError(f"max_length {max_length} is no multiple of pad_to_multiple_of {pad_to_multiple_of}.")
    rows = Padding(max_length if pad == "max_length" else None, pad_to_multiple_of, padding_side) if pad else None
    if cut is None or max_length is None:
        return rows, None
    return rows, Truncation(max_length, stride, cut, truncation_side)


def _plain(value: Any) -> Any:
    """The reference's enumerations say the same as their values."""
    return getattr(value, "value", value)


def _choice(name: str, value: Any, known: dict[Any, str | None]) -> str | None:
    try:
        return known[value]
    except (KeyError, TypeError):
        names = ", ".join(repr(key) for key in known if key is not None)
        raise InputError(f"{name} is {value!r}.", hint=f"It can be {names}.") from None


def _check_numbers(**numbers: int | None) -> None:
    least = {"max_length": 0, "stride": 0, "pad_to_multiple_of": 1}
    for name, value in numbers.items():
        wrong = not isinstance(value, int) or isinstance(value, bool) or value < least[name]
        if value is not None and (wrong or value > _UNLIMITED):
            raise InputError(f"{name} is {value!r}, but must be an integer from {least[name]} on.")


def pad_rows(rows: Sequence[list[Any]], width: int, value: Any, side: str) -> list[list[Any]]:
    """Rows as lists that are at least ``width`` long."""
    if side == "left":
        return [[value] * (width - len(row)) + row for row in rows]
    return [row + [value] * (width - len(row)) for row in rows]


def pad_array(rows: Sequence[list[int]], width: int, value: int, side: str) -> NDArray[np.int64]:
    """Rows of integers, none longer than ``width``, as an array (N, T) of int64."""
    import numpy as np

    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    places = np.arange(width)
    filled = places < lengths[:, None] if side == "right" else places >= width - lengths[:, None]
    array = np.full((len(rows), width), value, np.int64)
    array[filled] = np.fromiter(itertools.chain.from_iterable(rows), np.int64, int(lengths.sum()))
    return array
