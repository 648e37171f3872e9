"""Arrays as pictures: which axis holds the channels, what the numbers mean, and the sizes that pictures get.

Shapes: (H, W), (H, W, C) channels last, (C, H, W) channels first, with C of 1 (gray), 3 (RGB) or 4 (RGBA).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from transept.errors import ConfigError, InputError, InputTypeError
from transept.preprocess.features import needed

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

Size = tuple[int, int]  # height and width
CHANNELS = (1, 3, 4)
FIRST, LAST = "channels_first", "channels_last"
# Largest picture decoded by default: four bytes a pixel keep it within 256 MB, and today's cameras fit in.
MAX_PIXELS = 64_000_000
KEYS = ({"height", "width"}, {"shortest_edge"}, {"shortest_edge", "longest_edge"}, {"max_height", "max_width"})


def channels_last(array: NDArray[Any], input_data_format: str | None = None) -> NDArray[Any]:
    """An array of one picture as (H, W, C), without copying (``InputError``: it is none, or ambiguous)."""
    if input_data_format not in (None, FIRST, LAST):
        raise InputError(f"input_data_format is {input_data_format!r}.", hint=f'Pass "{FIRST}" or "{LAST}".')
    shape = array.shape
    if array.ndim == 2:
        array = array[:, :, None]
    elif array.ndim != 3:
        raise InputError(f"an array of shape {shape} is not one picture.", hint="Pass (H, W), (H, W, C) or (C, H, W).")
    else:
        first, last = shape[0] in CHANNELS, shape[2] in CHANNELS
        if input_data_format is None and first == last:
            reason = "either end could hold the channels" if first else "neither end can hold 1, 3 or 4 channels"
            hint = f'Pass input_data_format="{FIRST}" or "{LAST}".'
            raise InputError(f"an array of shape {shape} is ambiguous: {reason}.", hint=hint)
        if input_data_format == FIRST or (input_data_format is None and first):
            array = array.transpose(1, 2, 0)
    if array.shape[2] not in CHANNELS or 0 in shape:
        height, width, count = array.shape
        hint = "Pictures have 1, 3 or 4 channels; input_data_format tells which axis holds them."
        raise InputError(f"a picture of height {height}, width {width} and {count} channels cannot be used.", hint=hint)
    return array


def is_fraction(array: NDArray[Any]) -> bool:
    """Whether an array holds fractions of full brightness, and not levels from 0 to 255."""
    return array.dtype.kind == "f" and bool((array != np.rint(array)).any())


def levels(array: NDArray[Any]) -> NDArray[np.uint8]:
    """8-bit levels of an array of integers in [0, 255] or of floats in [0, 1]; fractions are rounded to the nearest.

    Floats that are whole numbers are levels, as in the reference. Other types and values are an ``InputError``.
    """
    if array.dtype == np.uint8:
        return array
    if array.dtype.kind not in "iuf":
        raise InputTypeError(f"an array of type {array.dtype} is not a picture.", hint="Pass uint8 or floats in [0, 1].")
    top = 1 if is_fraction(array) else 255
    low, high = array.min(), array.max()
    if not (low >= 0 and high <= top):  # NaN fails both
        hint = "Pass integers in [0, 255] or floats in [0, 1]; divide 16-bit levels by 257."
        raise InputError(f"an array of {array.dtype} with values from {low} to {high} is not a picture.", hint=hint)
    return (array if top == 255 else np.rint(array.astype(np.float32) * 255)).astype(np.uint8)


def image_from_array(array: NDArray[Any], input_data_format: str | None = None) -> Image:
    """A PIL image of mode ``L``, ``RGB`` or ``RGBA`` from an array; see :func:`channels_last` and :func:`levels`."""
    pixels = levels(channels_last(array, input_data_format))
    made = needed("PIL.Image", "pillow", "vision", "Preparing images").fromarray
    return made(np.ascontiguousarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels))  # type: ignore[no-any-return]


def rgb_fractions(pixels: NDArray[np.float32], *, white: bool) -> NDArray[np.float32]:
    """Fractions (H, W, C) as (H, W, 3): gray is repeated, alpha dropped, or the picture laid over white."""
    if pixels.shape[2] == 1:
        return np.repeat(pixels, 3, axis=2)
    color, alpha = pixels[:, :, :3], pixels[:, :, 3:]
    return alpha * color + (1 - alpha) if white and alpha.size else color


def center_crop(pixels: NDArray[np.float32], height: int, width: int) -> NDArray[np.float32]:
    """The middle of (H, W, C), with zeros where the picture is smaller than what is asked for."""
    missing = height - pixels.shape[0], width - pixels.shape[1]
    before = [max(0, -(-lack // 2)) for lack in missing]
    padded = np.pad(pixels, [(b, max(0, lack - b)) for b, lack in zip(before, missing, strict=True)] + [(0, 0)])
    top, left = (max(0, -lack) // 2 for lack in missing)
    return padded[top : top + height, left : left + width]


class SizeDict(dict[str, Any]):
    """A size in pixels, whose keys are attributes too; those of :data:`KEYS` that it has not are ``None``."""

    def __getattr__(self, name: str) -> Any:
        if not any(name in keys for keys in KEYS):
            raise AttributeError(f"a size has no {name!r}")
        return self.get(name)


def size_dict(value: Any, name: str, *, square: bool = True) -> SizeDict:
    """A size in pixels, of any spelling (an integer, (height, width), a mapping), as one with one of the sets of ``KEYS``.

    An integer means both sides where ``square`` is true, else the shorter one. ``ConfigError`` names the setting.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        value = {"height": value, "width": value} if square else {"shortest_edge": value}
    elif isinstance(value, list | tuple) and len(value) == 2:
        value = {"height": value[0], "width": value[1]}
    try:
        found = SizeDict({key: number for key, number in dict(value).items() if number is not None})
    except (TypeError, ValueError):
        raise ConfigError(f"`{name}` must be a size, but is {value!r:.80}.") from None
    if set(found) not in KEYS:
        spellings = "; ".join(", ".join(sorted(keys)) for keys in KEYS)
        raise ConfigError(f"`{name}` has the keys {sorted(found)}.", hint=f"Use one of these sets: {spellings}.")
    for key, number in found.items():
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MAX_PIXELS:
            raise ConfigError(f"`{name}` holds {key} = {number!r:.80}, which is no number of pixels.")
    if found.get("height", 0) * found.get("width", 0) > MAX_PIXELS:
        raise ConfigError(f"`{name}` is {found['height']} x {found['width']} pixels, more than {MAX_PIXELS}.")
    return found


def output_size(height: int, width: int, size: dict[str, int]) -> Size:
    """The (height, width) that a picture is resized to, fractions cut off; see :func:`checked_target`."""
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
    return checked_target((height, width), target)


def checked_target(size: Size, target: Size, least: int = 1) -> Size:
    """A size to resize to, with sides of at least ``least`` (``InputError``: above ``MAX_PIXELS``)."""
    (height, width), target = size, (max(least, target[0]), max(least, target[1]))
    if target[0] * target[1] > MAX_PIXELS:
        wrong = f"a picture of {width} x {height} pixels would be resized to {target[1]} x {target[0]}."
        raise InputError(wrong, hint="Crop it first, or set size to a fixed height and width.")
    return target
