"""Image processors: convert, resize, crop, rescale, normalise and pad, by settings that a model's files give.

Rescaling and normalising depend only on a level (0 to 255) and its channel. So they are done once, for a table of 256
values a channel, and pictures are read through the table straight into the batch, padded or not.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np

from transept.config.fields import Range
from transept.errors import InputError, TranseptWarning
from transept.preprocess.features import BatchFeature, as_numpy, check_tensor_type
from transept.preprocess.image.arrays import (
    LAST,
    MAX_PIXELS,
    Size,
    center_crop,
    channels_last,
    is_fraction,
    output_size,
    rgb_fractions,
    size_dict,
)
from transept.preprocess.media import load_image, open_image, to_rgb
from transept.preprocess.settings import FACTORS, OFFSETS, Preprocessor
from transept.preprocess.workers import in_order

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

# Of the three channels of ImageNet's pictures.
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_ROWS = 32  # of a picture that are read through the table at a time
NEAREST, LANCZOS, BILINEAR, BICUBIC, BOX, HAMMING = range(6)  # Pillow's numbers of its resampling filters
# Checked for every class, whatever defaults it gives.
_NUMBERS = {"resample": Range(NEAREST, HAMMING), "rescale_factor": FACTORS, "image_mean": OFFSETS, "image_std": FACTORS}


@dataclass(slots=True)
class Prepared:
    """Pictures as a model reads them, and their sizes (height, width) on the way there."""

    values: list[NDArray[Any]] | NDArray[Any]  # (B, C, H, W), or one array a picture where their shapes differ
    opened: list[Size]  # as the pictures came in
    resized: list[Size]  # after resizing and cropping, before padding
    padded: list[Size]


@dataclass(slots=True)
class Pixels:
    """One picture before rescaling: ``values`` (C, H, W), the table that they are read through, and its size when opened."""

    values: NDArray[Any]
    table: NDArray[Any] | None
    opened: Size

    @property
    def size(self) -> Size:
        return self.values.shape[1], self.values.shape[2]


class BaseImageProcessor(Preprocessor):
    """Turns pictures into ``pixel_values`` (B, C, H, W), and ``pixel_mask`` (B, H, W) where its model reads one.

    Where pictures of other sizes make a batch there are ``image_sizes`` (B, 2) beside the mask, with which the model sees each
    as it is alone.

    A family's class gives other defaults, and another :meth:`target`, :meth:`resize` or :meth:`canvas` where it needs one.

    Args:
        do_convert_rgb: ``True`` makes RGB and lays transparent pictures over white; ``None`` makes as many channels as
            ``image_mean`` has (one is gray) and ignores transparency; ``False`` keeps the channels of gray and RGB
            pictures, with alpha or without.
        do_resize, size, resample: whether, to what (see ``size_dict``) and by which filter.
        do_center_crop, crop_size: whether to cut out the middle, and its size; what is missing becomes black.
        do_rescale, rescale_factor: whether to multiply the levels, and by what.
        do_normalize, image_mean, image_std: whether to subtract the mean and divide by the standard deviation; one
            number, or one a channel.
        do_pad, pad_size: whether to add zeros at the right and at the bottom, and up to which size; up to the batch's
            largest where that is ``None``.
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
    resample: int = BILINEAR
    do_center_crop: bool | None = None
    crop_size: Any = None
    do_rescale: bool | None = True
    rescale_factor: float = 1 / 255
    do_normalize: bool | None = True
    image_mean: float | list[float] = field(default_factory=lambda: [0.5, 0.5, 0.5])
    image_std: float | list[float] = field(default_factory=lambda: [0.5, 0.5, 0.5])
    do_pad: bool | None = None
    pad_size: Any = None
    data_format: Literal["channels_first", "channels_last"] | None = None
    input_data_format: Literal["channels_first", "channels_last"] | None = None

    def validate(self) -> None:
        super().validate()
        self.size = size_dict(self.size, "size", square=self.default_to_square)
        if self.crop_size is not None:
            self.crop_size = size_dict(self.crop_size, "crop_size")
        if self.do_center_crop and "height" not in (self.crop_size or {}):
            self.fail("crop_size", "must hold height and width where do_center_crop is true")
        if self.pad_size is not None:
            self.pad_size = size_dict(self.pad_size, "pad_size")
            if "height" not in self.pad_size:
                self.fail("pad_size", "must hold height and width")
        self.resample = int(self.resample)
        for name in ("image_mean", "image_std"):
            value = getattr(self, name)
            if isinstance(value, list) and not 1 <= len(value) <= 4:
                self.fail(name, "must be one number, or one a channel")
            setattr(self, name, [float(number) for number in value] if isinstance(value, list) else float(value))
        for name, allowed in _NUMBERS.items():
            allowed.check(self, name)

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
        settings = self.for_call(return_tensors, overrides)
        return BatchFeature(settings.inputs(settings.prepare(images), return_tensors), return_tensors)

    def preprocess(self, images: Any, *args: Any, **options: Any) -> BatchFeature:
        """What a call does."""
        return self(images, *args, **options)

    def fetch_images(self, image_url_or_urls: Any) -> Any:
        """A picture opened from its file, or a list of them, nested as deep as you like; web addresses are not fetched."""
        if isinstance(image_url_or_urls, list | tuple):
            return [self.fetch_images(image) for image in image_url_or_urls]
        return load_image(image_url_or_urls) if isinstance(image_url_or_urls, str | os.PathLike) else image_url_or_urls

    def for_call(self, return_tensors: str | None, overrides: dict[str, Any]) -> Self:
        """The settings of one call; ``disable_grouping`` and ``device="cpu"`` are taken for the reference's sake."""
        check_tensor_type(return_tensors)
        device = overrides.pop("device", None)
        if device is not None and not str(device).startswith("cpu"):
            raise InputError(f"pictures are prepared on the CPU, not on {device!r}.", hint="Call .to(device) of the result.")
        overrides.pop("disable_grouping", None)
        return self.with_settings(**overrides)

    def prepare(self, images: Any) -> Prepared:
        """All pictures of a nest of lists and arrays."""
        flat = list(flat_images(images))
        if not flat:
            raise InputError("the batch holds no image.")
        distinct = len(set(map(id, flat))) == len(flat)  # no two threads may decode one object
        size = self.fixed_size()
        floats = self.do_rescale or self.do_normalize
        if size is None or self.do_pad or self.do_convert_rgb is False or not floats:
            return self._placed(in_order(self.read_pixels, flat, "image", parallel=distinct))
        batch = np.empty((len(flat), *self._ordered((self._channels(), *size))), np.float32)

        def one(pair: tuple[Any, NDArray[Any]]) -> Size:
            pixels = self.read_pixels(pair[0])
            self._write(pixels, pair[1])
            return pixels.opened

        opened = in_order(one, list(zip(flat, batch, strict=True)), "image", parallel=distinct)
        return Prepared(batch, opened, [size] * len(flat), [size] * len(flat))

    def inputs(self, prepared: Prepared, return_tensors: str | None) -> dict[str, Any]:
        """What a model reads, by name."""
        values = prepared.values
        found: dict[str, Any] = {"pixel_values": [*values] if return_tensors is None else values}
        if self.do_pad and "pixel_mask" in self.model_input_names:
            mask = np.zeros((len(prepared.padded), *prepared.padded[0]), np.int64)
            for rows, (height, width) in zip(mask, prepared.resized, strict=True):
                rows[:height, :width] = 1
            found["pixel_mask"] = [*mask] if return_tensors is None else mask
            if self.pad_size is None and len({*prepared.resized}) > 1:  # alone, none would have this padding
                found["image_sizes"] = prepared.resized if return_tensors is None else np.array(prepared.resized, np.int64)
        return found

    def target(self, height: int, width: int) -> Size:
        """The size that a picture of this height and width is resized to."""
        return output_size(height, width, self.size)

    def resize(self, image: Image, resample: int | None = None) -> Image:
        """One picture resized to its :meth:`target`, by ``resample`` or by the setting of that name."""
        height, width = self.target(image.height, image.width)
        return image.resize((width, height), self.resample if resample is None else resample)

    def fixed_size(self) -> Size | None:
        """The size of every picture after resizing and cropping, where the settings alone tell it."""
        size = self.crop_size if self.do_center_crop else self.size if self.do_resize else {}
        return (size["height"], size["width"]) if "height" in size else None

    def canvas(self, size: Size, largest: Size) -> tuple[Size, Size]:
        """The padded size of a picture, and the top and left of its place there; ``largest`` are the batch's largest sides."""
        wanted = (self.pad_size["height"], self.pad_size["width"]) if self.pad_size else largest
        if size[0] > wanted[0] or size[1] > wanted[1]:
            wrong = f"an image of {size[1]} x {size[0]} pixels does not fit into `pad_size`, {wanted[1]} x {wanted[0]}."
            raise InputError(wrong, hint="Pass a larger pad_size, or none.")
        return wanted, (0, 0)

    def canvases(self, sizes: list[Size]) -> list[tuple[Size, Size]]:
        """:meth:`canvas` of each picture of a batch, or the pictures' own sizes where nothing is padded."""
        if not self.do_pad:
            return [(size, (0, 0)) for size in sizes]
        largest = max(height for height, _ in sizes), max(width for _, width in sizes)
        found = [self.canvas(size, largest) for size in sizes]
        for (height, width), _ in found:
            if height * width > MAX_PIXELS:
                wrong = f"padding makes images of {width} x {height} pixels, more than the {MAX_PIXELS} allowed."
                raise InputError(wrong, hint="Scale tall and wide images down, or put them into different batches.")
        return found

    def _placed(self, pictures: list[Pixels]) -> Prepared:
        """Read pictures through their tables into one batch where their shapes agree, else into an array each."""
        sizes = [picture.size for picture in pictures]
        places = self.canvases(sizes)
        kinds = [np.dtype(np.float32) if picture.table is None else picture.table.dtype for picture in pictures]
        shapes = [self._ordered((len(picture.values), *size)) for picture, (size, _) in zip(pictures, places, strict=True)]
        make = np.zeros if self.do_pad else np.empty
        batch: list[NDArray[Any]] | NDArray[Any]
        if len({*zip(shapes, kinds, strict=True)}) == 1:
            batch = make((len(shapes), *shapes[0]), kinds[0])
        else:
            batch = [make(shape, kind) for shape, kind in zip(shapes, kinds, strict=True)]

        def one(index: int) -> None:
            (height, width), (top, left) = sizes[index], places[index][1]
            rows, columns = slice(top, top + height), slice(left, left + width)
            out = batch[index]
            self._write(pictures[index], out[rows, columns] if self.data_format == LAST else out[:, rows, columns])

        in_order(one, range(len(sizes)), "image")
        return Prepared(batch, [picture.opened for picture in pictures], sizes, [size for size, _ in places])

    def read_pixels(self, source: Any) -> Pixels:
        """One picture, resized and cropped."""
        array = as_numpy(source)
        fractions = array is not None and is_fraction(array)
        if array is not None and fractions and not self.do_resize:
            pixels = channels_last(array, self.input_data_format)
            found = Pixels(self._fractions(pixels), None, pixels.shape[:2])
        else:
            image = open_image(source, input_data_format=self.input_data_format)
            values = np.atleast_3d(np.asarray(self._image(image))).transpose(2, 0, 1)
            table = _table(len(values), fractions, *self._arithmetic(len(values)))
            found = Pixels(values, table, (image.height, image.width))
        if fractions and self.do_rescale:
            message = "These images hold fractions of full brightness already, and are rescaled once more."
            warnings.warn(f"{message} Pass do_rescale=False.", TranseptWarning, stacklevel=2)
        return found

    def _write(self, pixels: Pixels, out: NDArray[Any]) -> None:
        """Read one picture through its table into its place in the batch."""
        planes = out.transpose(2, 0, 1) if self.data_format == LAST else out
        if pixels.table is None:
            planes[...] = pixels.values
            return
        for plane, levels, row in zip(planes, pixels.values, pixels.table, strict=True):
            if plane.flags.c_contiguous:
                np.take(row, levels, out=plane, mode="clip")
                continue
            for start in range(0, len(plane), _ROWS):  # in pieces that stay in the processor's cache
                plane[start : start + _ROWS] = np.take(row, levels[start : start + _ROWS], mode="clip")

    def _image(self, image: Image) -> Image:
        """A picture in the mode that is wanted, resized and cropped."""
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
        """Floats (H, W, C) that need no resizing keep their precision."""
        pixels = array.astype(np.float32)
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


def flat_images(images: Any) -> Iterator[Any]:
    """The pictures in a nest of lists and of arrays with a batch axis."""
    if isinstance(images, list | tuple) or getattr(images, "ndim", 0) > 3:
        for image in images:
            yield from flat_images(image)
    else:
        yield images
