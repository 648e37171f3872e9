"""Arrays as pictures: which axis holds the channels, and what the numbers mean.

Shapes: (H, W), (H, W, C) channels last, (C, H, W) channels first, with C of 1 (gray), 3 (RGB) or 4 (RGBA).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from transept.errors import InputError, InputTypeError
from transept.preprocess.features import needed

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

CHANNELS = (1, 3, 4)
FIRST, LAST = "channels_first", "channels_last"


def channels_last(array: NDArray[Any], input_data_format: str | None = None) -> NDArray[Any]:
    """An array of one picture as (H, W, C), without copying.

    Raises:
        InputError: not two or three axes, an empty axis, no axis or two axes that could hold the channels.
    """
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

    Floats that are whole numbers are levels, as in the reference.

    Raises:
        InputTypeError: booleans, complex numbers or objects.
        InputError: values outside the range, NaN or infinity.
    """
    if array.dtype == np.uint8:
        return array
    if array.dtype.kind not in "iuf":
        raise InputTypeError(f"an array of type {array.dtype} is not a picture.", hint="Pass uint8 or floats in [0, 1].")
    top = 1 if is_fraction(array) else 255
    low, high = array.min(), array.max()
    if not (low >= 0 and high <= top):  # NaN fails both
        raise InputError(
            f"an array of {array.dtype} with values from {low} to {high} is not a picture.",
            hint="Pass integers in [0, 255] or floats in [0, 1]; divide 16-bit levels by 257.",
        )
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
