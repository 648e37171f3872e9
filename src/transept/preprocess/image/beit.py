"""BEiT's image processor (Bao et al. 2022, arXiv:2106.08254): 224 x 224, with label maps."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from transept.preprocess.image.base import BICUBIC
from transept.preprocess.image.label_maps import SegmentationImageProcessor


class BeitImageProcessor(SegmentationImageProcessor):
    """Bicubic to 224 x 224, not cropped; mean and standard deviation of one half."""

    model_types = ("beit",)

    resample: int = BICUBIC
    do_center_crop: bool | None = False
    crop_size: Any = field(default_factory=lambda: {"height": 224, "width": 224})


BeitImageProcessorFast = BeitImageProcessor
