"""BLIP's image processor (Li et al. 2022, arXiv:2201.12086)."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from transept.preprocess.image.base import BICUBIC, BaseImageProcessor
from transept.preprocess.image.clip import CLIP_MEAN, CLIP_STD


class BlipImageProcessor(BaseImageProcessor):
    """RGB, bicubic to 384 x 384; the means and standard deviations of CLIP's pictures."""

    model_types = ("blip",)

    do_convert_rgb: bool | None = True
    size: Any = field(default_factory=lambda: {"height": 384, "width": 384})
    resample: int = BICUBIC
    image_mean: float | list[float] = field(default_factory=lambda: list(CLIP_MEAN))
    image_std: float | list[float] = field(default_factory=lambda: list(CLIP_STD))


BlipImageProcessorFast = BlipImageProcessor
