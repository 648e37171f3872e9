"""Kinds of pictures and where their channels are, by the reference's names."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transept.errors import InputError, InputTypeError
from transept.preprocess.features import as_numpy, needed
from transept.preprocess.image.base import IMAGENET_MEAN, IMAGENET_STD, flat_images
from transept.preprocess.image.clip import CLIP_MEAN, CLIP_STD

IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD = list(IMAGENET_MEAN), list(IMAGENET_STD)
IMAGENET_STANDARD_MEAN, IMAGENET_STANDARD_STD = [0.5] * 3, [0.5] * 3
OPENAI_CLIP_MEAN, OPENAI_CLIP_STD = list(CLIP_MEAN), list(CLIP_STD)
ImageInput = Any


class ChannelDimension(StrEnum):
    FIRST = "channels_first"
    LAST = "channels_last"


class AnnotationFormat(StrEnum):
    COCO_DETECTION = "coco_detection"
    COCO_PANOPTIC = "coco_panoptic"


def __getattr__(name: str) -> Any:
    if name == "PILImageResampling":
        return needed("PIL.Image", "pillow", "vision", "Resizing images").Resampling
    raise AttributeError(f"{__name__} has no name {name!r}.")


def is_pil_image(img: Any) -> bool:
    """Whether it is an image of Pillow's."""
    return isinstance(img, needed("PIL.Image", "pillow", "vision", "Reading images").Image)


def is_valid_image(img: Any) -> bool:
    """Whether it is an image of Pillow's, an array or a tensor."""
    return as_numpy(img) is not None or is_pil_image(img)


def valid_images(imgs: Any) -> bool:
    """Whether it is a picture, or a list of nothing else."""
    return all(map(valid_images, imgs)) if isinstance(imgs, list | tuple) else is_valid_image(imgs)


def is_batched(img: Any) -> bool:
    """Whether it is a list of pictures."""
    return isinstance(img, list | tuple) and bool(img) and is_valid_image(img[0])


def to_numpy_array(img: Any) -> NDArray[Any]:
    """The values of a picture (``InputTypeError``: it is none)."""
    if (array := as_numpy(img)) is not None:
        return array
    if not is_pil_image(img):
        raise InputTypeError(f"{type(img).__name__} is no picture.", hint="Pass an image of Pillow's, an array or a tensor.")
    return np.array(img)


def make_list_of_images(images: Any, expected_ndims: int = 3) -> list[Any]:
    """The pictures of a list, of one array of several, or the picture alone."""
    array = as_numpy(images)
    return list(images) if array is not None and array.ndim == expected_ndims + 1 else list(flat_images(images))


make_flat_list_of_images = make_list_of_images


def infer_channel_dimension_format(image: Any, num_channels: int | tuple[int, ...] | None = None) -> ChannelDimension:
    """Which axis of an array (..., C, H, W) or (..., H, W, C) has a number of channels, by default 1 or 3.

    Where both could, it is the first. ``InputError``: neither can.
    """
    counts = (1, 3) if num_channels is None else (num_channels,) if isinstance(num_channels, int) else num_channels
    shape = np.shape(image)
    if len(shape) not in (3, 4, 5):
        raise InputError(f"an array of shape {shape} has no axis of channels.", hint="Pass (C, H, W) or (H, W, C).")
    if shape[-3] in counts:
        return ChannelDimension.FIRST
    if shape[-1] in counts:
        return ChannelDimension.LAST
    raise InputError(f"an array of shape {shape} has no axis of {counts} channels.", hint="Pass input_data_format.")


def get_channel_dimension_axis(image: NDArray[Any], input_data_format: str | None = None) -> int:
    """The number of the axis of channels."""
    kind = input_data_format or infer_channel_dimension_format(image)
    return image.ndim - (3 if kind == ChannelDimension.FIRST else 1)


def get_image_size(image: Any, channel_dim: str | None = None) -> tuple[int, int]:
    """The height and the width of an array."""
    kind = channel_dim or infer_channel_dimension_format(image)
    shape = np.shape(image)
    height, width = shape[-2:] if kind == ChannelDimension.FIRST else shape[-3:-1]
    return height, width


def is_scaled_image(image: NDArray[Any]) -> bool:
    """Whether the values are fractions of full brightness."""
    return image.dtype != np.uint8 and bool(image.min() >= 0 and image.max() <= 1)
