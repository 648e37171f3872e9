"""Steps that prepare arrays of pictures, by the reference's functions: pictures are (C, H, W) or (H, W, C)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from transept.errors import InputError, InputTypeError
from transept.preprocess.features import as_numpy, needed
from transept.preprocess.image.arrays import center_crop as _cropped
from transept.preprocess.image.formats import (
    ChannelDimension,
    get_channel_dimension_axis,
    infer_channel_dimension_format,
    is_pil_image,
)

if TYPE_CHECKING:
    from PIL.Image import Image

Array = NDArray[Any]
_PADDING = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "symmetric": "symmetric"}


def _array(image: Any) -> Array:
    if not isinstance(image, np.ndarray):
        raise InputTypeError(f"the picture is a {type(image).__name__}, not an array.", hint="Use to_numpy_array first.")
    return image


def to_channel_dimension_format(image: Array, channel_dim: str, input_channel_dim: str | None = None) -> Array:
    """The array with its channels first or last."""
    source = input_channel_dim or infer_channel_dimension_format(_array(image))
    if ChannelDimension(channel_dim) == source:
        return image
    return np.moveaxis(image, -1, -3) if channel_dim == ChannelDimension.FIRST else np.moveaxis(image, -3, -1)


def _placed(image: Array, data_format: str | None, input_data_format: str | None) -> Array:
    return image if data_format is None else to_channel_dimension_format(image, data_format, input_data_format)


def rescale(
    image: Array,
    scale: float,
    data_format: str | None = None,
    dtype: Any = np.float32,
    input_data_format: str | None = None,
) -> Array:
    """The values times ``scale``."""
    return _placed(_array(image).astype(np.float64) * scale, data_format, input_data_format).astype(dtype)


def normalize(
    image: Array,
    mean: float | Sequence[float],
    std: float | Sequence[float],
    data_format: str | None = None,
    input_data_format: str | None = None,
) -> Array:
    """The values less ``mean``, divided by ``std``, of which there is one, or one a channel."""
    axis = get_channel_dimension_axis(_array(image), input_data_format)
    image = image if np.issubdtype(image.dtype, np.floating) else image.astype(np.float32)
    shape = [-1 if place == axis else 1 for place in range(image.ndim)]
    scales = []
    for name, value in (("mean", mean), ("std", std)):
        values = np.array(value, dtype=image.dtype)
        if values.ndim and len(values) != image.shape[axis]:
            raise InputError(f"{name} has {len(values)} values for {image.shape[axis]} channels.")
        scales.append(values.reshape(shape) if values.ndim else values)
    return _placed((image - scales[0]) / scales[1], data_format, input_data_format)


def to_pil_image(
    image: Any, do_rescale: bool | None = None, image_mode: str | None = None, input_data_format: str | None = None
) -> Image:
    """An image of Pillow's; fractions are multiplied by 255 (``do_rescale`` says otherwise), and cut to whole numbers."""
    if is_pil_image(image):
        return image  # type: ignore[no-any-return]
    array = as_numpy(image)
    if array is None:
        raise InputTypeError(f"{type(image).__name__} is no picture.", hint="Pass an array or a tensor.")
    array = to_channel_dimension_format(array, ChannelDimension.LAST, input_data_format)
    array = rescale(array, 255) if (_are_fractions(array) if do_rescale is None else do_rescale) else array
    array = np.ascontiguousarray(array[..., 0] if array.shape[-1] == 1 else array, dtype=np.uint8)
    made = needed("PIL.Image", "pillow", "vision", "Preparing images").fromarray(array)
    return made if image_mode in (None, made.mode) else made.convert(image_mode)  # type: ignore[no-any-return]


def _are_fractions(array: Array) -> bool:
    if array.dtype == np.uint8 or np.array_equal(array, array.astype(int)):
        if array.min() < 0 or array.max() > 255:
            raise InputError(f"levels from {array.min()} to {array.max()} are none of a picture.", hint="Pass 0 to 255.")
        return False
    if array.min() < 0 or array.max() > 1:
        raise InputError(f"fractions from {array.min()} to {array.max()} are none of a picture.", hint="Pass 0 to 1.")
    return True


def resize(
    image: Any,
    size: tuple[int, int],
    resample: Any = None,
    reducing_gap: float | None = None,
    data_format: str | None = None,
    return_numpy: bool = True,
    input_data_format: str | None = None,
) -> Any:
    """A picture of another (height, width), by Pillow (bilinear, unless ``resample`` says otherwise)."""
    resampling = needed("PIL.Image", "pillow", "vision", "Resizing images").Resampling
    pillow = is_pil_image(image)
    source = input_data_format or (ChannelDimension.LAST if pillow else infer_channel_dimension_format(image))
    scaled = not pillow and _are_fractions(np.asarray(image))
    height, width = size
    resample = resampling.BILINEAR if resample is None else resample
    resized = to_pil_image(image, scaled, None, source).resize((width, height), resample, reducing_gap=reducing_gap)
    if not return_numpy:
        return resized
    array = np.array(resized)
    array = array[..., None] if array.ndim == 2 else array
    array = to_channel_dimension_format(array, data_format or source, ChannelDimension.LAST)
    return rescale(array, 1 / 255) if scaled else array


def center_crop(
    image: Array, size: tuple[int, int], data_format: str | None = None, input_data_format: str | None = None
) -> Array:
    """The middle (height, width) of a picture, with zeros where it is smaller."""
    source = input_data_format or infer_channel_dimension_format(_array(image))
    cropped = _cropped(to_channel_dimension_format(image, ChannelDimension.LAST, source), int(size[0]), int(size[1]))
    return to_channel_dimension_format(cropped, data_format or source, ChannelDimension.LAST)


def pad(
    image: Array,
    padding: int | tuple[int, int] | Sequence[tuple[int, int]],
    mode: str = "constant",
    constant_values: Any = 0.0,
    data_format: str | None = None,
    input_data_format: str | None = None,
) -> Array:
    """More rows above and below, and columns left and right: one number, (before, after), or a pair for each side."""
    if str(getattr(mode, "value", mode)) not in _PADDING:
        raise InputError(f"mode is {mode!r}.", hint=f"It can be {', '.join(_PADDING)}.")
    sides: Any = ((padding, padding),) * 2 if isinstance(padding, int) else padding
    sides = (sides,) * 2 if isinstance(sides[0], int) else tuple(sides) * (2 if len(sides) == 1 else 1)
    source = input_data_format or infer_channel_dimension_format(_array(image))
    first = [(0, 0)] * (image.ndim - 3)
    widths = [*first, (0, 0), *sides] if source == ChannelDimension.FIRST else [*first, *sides, (0, 0)]
    kind: Any = _PADDING[str(getattr(mode, "value", mode))]
    more = {"constant_values": constant_values} if kind == "constant" else {}
    return _placed(np.pad(image, widths, kind, **more), data_format, source)


def convert_to_rgb(image: Any) -> Any:
    """An image of Pillow's in RGB; what is none stays as it is."""
    return image.convert("RGB") if is_pil_image(image) and image.mode != "RGB" else image


def flip_channel_order(image: Array, data_format: str | None = None, input_data_format: str | None = None) -> Array:
    """The channels the other way round: RGB becomes BGR."""
    return _placed(np.flip(image, get_channel_dimension_axis(image, input_data_format)), data_format, input_data_format)


def _stacked(columns: list[Any]) -> Any:
    if isinstance(columns[0], np.ndarray):
        return np.stack(columns, axis=-1)
    return sys.modules["torch"].stack(columns, dim=-1)


def center_to_corners_format(bboxes_center: Any) -> Any:
    """Boxes (..., 4) as left, top, right and bottom, of those as the middle's x and y, width and height."""
    x, y, width, height = (bboxes_center[..., place] for place in range(4))
    return _stacked([x - 0.5 * width, y - 0.5 * height, x + 0.5 * width, y + 0.5 * height])


def corners_to_center_format(bboxes_corners: Any) -> Any:
    """Boxes (..., 4) as the middle's x and y, width and height, of those as left, top, right and bottom."""
    left, top, right, bottom = (bboxes_corners[..., place] for place in range(4))
    return _stacked([(left + right) / 2, (top + bottom) / 2, right - left, bottom - top])


def rgb_to_id(color: Any) -> Any:
    """The numbers of segments that panoptic annotations store as colours (..., 3), least byte first; of one, an int."""
    weighted = np.asarray(color).astype(np.int64) @ np.array([1, 256, 256**2])
    return weighted.astype(np.int32) if weighted.ndim else int(weighted)


def id_to_rgb(id_map: Any) -> Any:
    """The colours (..., 3) that stand for numbers of segments; of one, a list of three numbers."""
    ids = np.asarray(id_map)
    colors = np.stack([ids // 256**place % 256 for place in range(3)], axis=-1)
    return colors.astype(np.uint8) if ids.ndim else colors.tolist()
