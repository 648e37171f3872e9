"""DeiT's image processor (Touvron et al. 2021, arXiv:2012.12877): 256 x 256, of which the middle 224 x 224 are read."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from transept.preprocess.image.base import BICUBIC, BaseImageProcessor


class DeiTImageProcessor(BaseImageProcessor):
    """Bicubic to 256 x 256, cropped to 224 x 224; mean and standard deviation of one half."""

    size: Any = field(default_factory=lambda: {"height": 256, "width": 256})
    resample: int = BICUBIC
    do_center_crop: bool | None = True
    crop_size: Any = field(default_factory=lambda: {"height": 224, "width": 224})


DeiTImageProcessorFast = DeiTImageProcessor
