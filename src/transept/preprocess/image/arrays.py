"""Arrays as pictures: which axis holds the channels, and what the numbers mean.

Shapes: (H, W), (H, W, C) channels last, (C, H, W) channels first, with C of 1 (gray), 3 (RGB) or 4 (RGBA).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from transept.errors import InputError, InputTypeError, MissingExtraError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

CHANNELS = (1, 3, 4)
FIRST, LAST = "channels_first", "channels_last"


def check_format(name: str, value: str | None) -> None:
    """Raise ``InputError`` unless ``value`` names an order of axes or is ``None``."""
    if value is not None and value not in (FIRST, LAST):
        raise InputError(f"{name} is {value!r}.", hint=f'Pass "{FIRST}" or "{LAST}".')


def channels_last(array: NDArray[Any], input_data_format: str | None = None) -> NDArray[Any]:
    """An array of one picture as (H, W, C), without copying.

    Raises:
        InputError: not two or three axes, an empty axis, no axis or two axes that could hold the channels.
    """
    check_format("input_data_format", input_data_format)
    if array.ndim == 2:
        array = array[:, :, None]
    elif array.ndim != 3:
        raise InputError(f"an array of shape {array.shape} is not one picture.", hint="Pass (H, W), (H, W, C) or (C, H, W).")
    elif (input_data_format or _inferred(array.shape)) == FIRST:
        array = array.transpose(1, 2, 0)
    if array.shape[2] not in CHANNELS or 0 in array.shape:
        height, width, count = array.shape
        raise InputError(
            f"a picture of height {height}, width {width} and {count} channels cannot be used.",
            hint="Pictures have 1, 3 or 4 channels; input_data_format tells which axis holds them.",
        )
    return array


def _inferred(shape: tuple[int, ...]) -> str:
    first, last = shape[0] in CHANNELS, shape[2] in CHANNELS
    if first != last:
        return FIRST if first else LAST
    reason = "either end could hold the channels" if first else "neither end can hold 1, 3 or 4 channels"
    raise InputError(
        f"an array of shape {shape} is ambiguous: {reason}.",
        hint=f'Pass input_data_format="{FIRST}" or "{LAST}".',
    )


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
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("pillow", "vision", "Preparing images") from error
    pixels = levels(channels_last(array, input_data_format))
    return Image.fromarray(np.ascontiguousarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels))


def rgb_fractions(pixels: NDArray[np.float32], *, white: bool) -> NDArray[np.float32]:
    """Fractions (H, W, C) as (H, W, 3): gray is repeated, alpha dropped, or the picture laid over white."""
    if pixels.shape[2] == 1:
        return np.repeat(pixels, 3, axis=2)
    color, alpha = pixels[:, :, :3], pixels[:, :, 3:]
    return alpha * color + (1 - alpha) if white and alpha.size else color


def center_crop(pixels: NDArray[np.float32], height: int, width: int) -> NDArray[np.float32]:
    """The middle of (H, W, C), with zeros where the picture is smaller than what is asked for."""
    top, left = (pixels.shape[0] - height) // 2, (pixels.shape[1] - width) // 2
    part = pixels[max(0, top) : max(0, top + height), max(0, left) : max(0, left + width)]
    result = np.zeros((height, width, pixels.shape[2]), pixels.dtype)
    y, x = max(0, -top), max(0, -left)
    result[y : y + part.shape[0], x : x + part.shape[1]] = part
    return result
