"""The image processors of ViT (Dosovitskiy et al. 2021, arXiv:2010.11929) and DeiT (Touvron et al. 2021, arXiv:2012.12877)."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from transept.preprocess.image.base import BICUBIC, BaseImageProcessor


class ViTImageProcessor(BaseImageProcessor):
    """The base's defaults, which are ViT's: bilinear to 224 x 224, mean and standard deviation of one half."""

    model_types = ("swin", "trocr", "vit")


ViTImageProcessorFast = ViTImageProcessor


class DeiTImageProcessor(BaseImageProcessor):
    """Bicubic to 256 x 256, cropped to 224 x 224; mean and standard deviation of one half."""

    model_types = ("deit",)

    size: Any = field(default_factory=lambda: {"height": 256, "width": 256})
    resample: int = BICUBIC
    do_center_crop: bool | None = True
    crop_size: Any = field(default_factory=lambda: {"height": 224, "width": 224})


DeiTImageProcessorFast = DeiTImageProcessor
