"""Sizes of pictures as the files of image processors write them, and what they come to for one picture.

All sizes are in pixels; pairs are (height, width).
"""

from __future__ import annotations

from typing import Any

from transept.errors import ConfigError, InputError
from transept.preprocess.media import MAX_PIXELS

KEYS = ({"height", "width"}, {"shortest_edge"}, {"shortest_edge", "longest_edge"}, {"max_height", "max_width"})


def size_dict(value: Any, name: str, *, square: bool = True) -> dict[str, int]:
    """A size in any of its spellings as a dictionary with one of the sets of ``KEYS``.

    Args:
        value: an integer, (height, width), or a mapping.
        name: the setting's name, for messages.
        square: what an integer means: both sides, or else the shorter one.

    Raises:
        ConfigError: other keys, or a number that is not positive.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        value = {"height": value, "width": value} if square else {"shortest_edge": value}
    elif isinstance(value, list | tuple) and len(value) == 2:
        value = {"height": value[0], "width": value[1]}
    try:
        found = {key: number for key, number in dict(value).items() if number is not None}
    except (TypeError, ValueError):
        raise ConfigError(f"`{name}` must be a size, but is {value!r:.80}.") from None
    if set(found) not in KEYS:
        spellings = "; ".join(", ".join(sorted(keys)) for keys in KEYS)
        raise ConfigError(f"`{name}` has the keys {sorted(found)}.", hint=f"Use one of these sets: {spellings}.")
    for key, number in found.items():
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MAX_PIXELS:
            raise ConfigError(f"`{name}` holds {key} = {number!r:.80}, which is no number of pixels.")
    return found


def output_size(height: int, width: int, size: dict[str, int]) -> tuple[int, int]:
    """The (height, width) that a picture of ``height`` by ``width`` is resized to; fractions are cut off.

    Raises:
        InputError: the picture is so narrow that it would become larger than ``MAX_PIXELS``.
    """
    if "height" in size:
        target = size["height"], size["width"]
    elif "max_height" in size:
        scale = min(size["max_height"] / height, size["max_width"] / width)
        target = int(height * scale), int(width * scale)
    else:
        low, high, longest = min(height, width), max(height, width), size.get("longest_edge")
        edge: float = size["shortest_edge"]
        short = size["shortest_edge"]
        if longest is not None and high / low * short > longest:  # shorter still
            edge = longest * low / high
            short = round(edge)
        long = high if low == short else int(edge * high / low)
        target = (short, long) if height <= width else (long, short)
    target = max(1, target[0]), max(1, target[1])
    if target[0] * target[1] > MAX_PIXELS:
        wrong = f"a picture of {width} x {height} pixels would be resized to {target[1]} x {target[0]}."
        raise InputError(wrong, hint="Crop it first, or set size to a fixed height and width.")
    return target
