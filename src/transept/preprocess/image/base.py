"""Image processors: convert, resize, crop, rescale and normalise, by settings that a model's files give.

Everything after the crop depends only on a level (0 to 255) and its channel. So it is done once, for a table of 256
values a channel, and pictures are read through the table straight into the batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import field
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np

from transept.errors import InputError, TranseptWarning
from transept.fields import Positive, Range
from transept.preprocess.features import BatchFeature, as_numpy, check_tensor_type
from transept.preprocess.image.arrays import (
    LAST,
    center_crop,
    channels_last,
    is_fraction,
    output_size,
    rgb_fractions,
    size_dict,
)
from transept.preprocess.media import open_image, to_rgb
from transept.preprocess.settings import Preprocessor
from transept.preprocess.workers import in_order

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

NEAREST, LANCZOS, BILINEAR, BICUBIC, BOX, HAMMING = range(6)  # Pillow's numbers of its resampling filters


class BaseImageProcessor(Preprocessor):
    """Turns pictures into ``pixel_values`` (B, C, H, W).

    A family's class gives other defaults, and another :meth:`resize` where it needs one.

    Args:
        do_convert_rgb: ``True`` makes RGB and lays transparent pictures over white; ``None`` makes as many channels as
            ``image_mean`` has (one is gray) and ignores transparency; ``False`` keeps the channels of gray and RGB
            pictures, with alpha or without.
        do_resize, size, resample: whether, to what (see ``size_dict``) and by which filter.
        do_center_crop, crop_size: whether to cut out the middle, and its size; what is missing becomes black.
        do_rescale, rescale_factor: whether to multiply the levels, and by what.
        do_normalize, image_mean, image_std: whether to subtract the mean and divide by the standard deviation; one
            number, or one a channel.
        data_format: order of the result's axes, ``"channels_first"`` (when ``None``) or ``"channels_last"``.
        input_data_format: the same for arrays that come in; inferred when ``None`` and it is clear.
    """

    section: ClassVar[str] = "image_processor"
    noun = section
    model_input_names: ClassVar[list[str]] = ["pixel_values"]
    default_to_square: ClassVar[bool] = True  # whether a ``size`` of one integer means both sides, or else the shorter one

    do_convert_rgb: bool | None = None
    do_resize: bool | None = True
    size: Any = field(default_factory=lambda: {"height": 224, "width": 224})
    resample: Annotated[int, Range(NEAREST, HAMMING)] = BILINEAR
    do_center_crop: bool | None = None
    crop_size: Any = None
    do_rescale: bool | None = True
    rescale_factor: Positive = 1 / 255
    do_normalize: bool | None = True
    image_mean: float | list[float] = field(default_factory=lambda: [0.5, 0.5, 0.5])
    image_std: float | list[float] = field(default_factory=lambda: [0.5, 0.5, 0.5])
    data_format: Literal["channels_first", "channels_last"] | None = None
    input_data_format: Literal["channels_first", "channels_last"] | None = None

    def validate(self) -> None:
        super().validate()
        self.size = size_dict(self.size, "size", square=self.default_to_square)
        if self.crop_size is not None:
            self.crop_size = size_dict(self.crop_size, "crop_size")
        if self.do_center_crop and "height" not in (self.crop_size or {}):
            self.fail("crop_size", "must hold height and width where do_center_crop is true")
        self.resample = int(self.resample)
        for name in ("image_mean", "image_std"):
            value = getattr(self, name)
            if isinstance(value, list) and not 1 <= len(value) <= 4:
                self.fail(name, "must be one number, or one a channel")
            setattr(self, name, [float(number) for number in value] if isinstance(value, list) else float(value))
        if 0 in np.atleast_1d(self.image_std):
            self.fail("image_std", "must not hold zero")

    def __call__(self, images: Any, *, return_tensors: str | None = None, **overrides: Any) -> BatchFeature:
        """Prepare one picture or many.

        Args:
            images: one picture (see :func:`transept.preprocess.media.load_image`), an array of shape (B, H, W, C) or
                (B, C, H, W), or a list of these, nested as deep as you like.
            return_tensors: ``"pt"``, ``"np"``, or ``None`` for a list of arrays; of float32, or of uint8 levels where
                nothing rescales or normalises.
            overrides: settings for this call alone.

        Raises:
            InputError, FileError, FormatError: a picture that cannot be used, with its place in the batch.
        """
        check_tensor_type(return_tensors)
        settings = self.with_settings(**overrides)
        flat = list(_flat(images))
        if not flat:
            raise InputError("the batch holds no image.")
        values = settings._batch(flat)
        return BatchFeature({"pixel_values": [*values] if return_tensors is None else values}, return_tensors)

    preprocess = __call__

    def resize(self, image: Image) -> Image:
        """One picture resized by ``size`` and ``resample``."""
        height, width = output_size(image.height, image.width, self.size)
        return image.resize((width, height), self.resample)

    def _batch(self, images: list[Any]) -> list[NDArray[Any]] | NDArray[np.float32]:
        """``pixel_values`` of each picture; one array where the settings alone tell every picture's shape."""
        size = self.crop_size if self.do_center_crop else self.size if self.do_resize else {}
        distinct = len(set(map(id, images))) == len(images)  # no two threads may decode one object
        floats = self.do_rescale or self.do_normalize
        if "height" not in size or self.do_convert_rgb is False or not floats:
            return in_order(self._one, images, "image", parallel=distinct)
        batch = np.empty((len(images), *self._ordered((self._channels(), size["height"], size["width"]))), np.float32)
        pairs = list(zip(images, batch, strict=True))
        in_order(lambda pair: self._one(*pair), pairs, "image", parallel=distinct)
        return batch

    def _one(self, source: Any, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """``pixel_values`` of one picture, written into ``out`` where that is given."""
        array = as_numpy(source)
        fractions = array is not None and is_fraction(array)
        if fractions and self.do_rescale:
            message = "These images hold fractions of full brightness already, and are rescaled once more."
            warnings.warn(f"{message} Pass do_rescale=False.", TranseptWarning, stacklevel=2)
        if array is not None and fractions and not self.do_resize:
            values = self._fractions(array)
            table = None
        else:
            values = np.atleast_3d(np.asarray(self._image(source))).transpose(2, 0, 1)
            table = _table(len(values), fractions, *self._arithmetic(len(values)))
        if out is None:
            out = np.empty(self._ordered(values.shape), np.float32 if table is None else table.dtype)
        planes = out.transpose(2, 0, 1) if self.data_format == LAST else out
        if table is None:
            planes[...] = values
        else:
            for plane, levels, row in zip(planes, values, table, strict=True):
                np.take(row, levels, out=plane, mode="clip")
        return out

    def _image(self, source: Any) -> Image:
        """A picture in the mode that is wanted, resized and cropped."""
        image = open_image(source, input_data_format=self.input_data_format)
        if self.do_convert_rgb is not False or image.mode not in ("L", "LA", "RGB", "RGBA"):
            image = to_rgb(image, "white" if self.do_convert_rgb else "drop")
            image = image if self._channels() == 3 else image.convert("L")
        image = self.resize(image) if self.do_resize else image
        if not self.do_center_crop:
            return image
        height, width = self.crop_size["height"], self.crop_size["width"]
        left, top = (image.width - width) // 2, (image.height - height) // 2
        return image.crop((left, top, left + width, top + height))

    def _fractions(self, array: NDArray[Any]) -> NDArray[np.float32]:
        """Floats that need no resizing keep their precision."""
        pixels = channels_last(array, self.input_data_format).astype(np.float32)
        if not np.isfinite(pixels).all():
            raise InputError("the image holds NaN or infinity.")
        if self.do_convert_rgb is not False and pixels.shape[2] != self._channels():
            pixels = rgb_fractions(pixels, white=bool(self.do_convert_rgb))
        if self.do_center_crop:
            pixels = center_crop(pixels, self.crop_size["height"], self.crop_size["width"])
        return _values(pixels.transpose(2, 0, 1), *self._arithmetic(pixels.shape[2]))

    def _channels(self) -> int:
        gray = isinstance(self.image_mean, list) and len(self.image_mean) == 1 and not self.do_convert_rgb
        return 1 if gray else 3

    def _ordered(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The axes (C, H, W) in the order of the result."""
        return (*shape[1:], shape[0]) if self.data_format == LAST else shape

    def _arithmetic(self, channels: int) -> tuple[float | None, Numbers, Numbers]:
        """Factor, means and standard deviations, ``None`` for what is not done."""
        factor = self.rescale_factor if self.do_rescale else None
        if not self.do_normalize:
            return factor, None, None
        found = []
        for name in ("image_mean", "image_std"):
            value = getattr(self, name)
            numbers = tuple(value) if isinstance(value, list) else (value,) * channels
            if len(numbers) != channels:
                raise InputError(f"`{name}` has {len(numbers)} numbers, but the image has {channels} channels.")
            found.append(numbers)
        return factor, found[0], found[1]


Numbers = tuple[float, ...] | None


@lru_cache(maxsize=64)
def _table(channels: int, fractions: bool, factor: float | None, mean: Numbers, std: Numbers) -> NDArray[Any]:
    """What becomes of each of the 256 levels, (C, 256): float32, or the levels themselves where nothing is done."""
    levels = np.broadcast_to(np.arange(256, dtype=np.uint8), (channels, 256))
    table = _values((levels / 255).astype(np.float32) if fractions else levels, factor, mean, std)
    table.setflags(write=False)  # it is shared by all callers
    return table


def _values(x: NDArray[Any], factor: float | None, mean: Numbers, std: Numbers) -> NDArray[Any]:
    """``(x * factor - mean) / std`` for (C, ...), in the precision of each step of the reference."""
    if factor is not None:
        x = (x.astype(np.float64) * factor).astype(np.float32)
    if mean is not None and std is not None:
        shape = (-1, *[1] * (x.ndim - 1))
        center, scale = np.array(mean, np.float32).reshape(shape), np.array(std, np.float32).reshape(shape)
        x = (x.astype(np.float32) - center) / scale
    return np.array(x)


def _flat(images: Any) -> Iterator[Any]:
    """The pictures in a nest of lists and of arrays with a batch axis."""
    if isinstance(images, list | tuple) or getattr(images, "ndim", 0) > 3:
        for image in images:
            yield from _flat(image)
    else:
        yield images
