"""SigLIP's image processor (Zhai et al. 2023, arXiv:2303.15343)."""

from __future__ import annotations

from typing import ClassVar

from transept.preprocess.image.base import BICUBIC, BaseImageProcessor


class SiglipImageProcessor(BaseImageProcessor):
    """RGB, bicubic to 224 x 224, mean and standard deviation of one half."""

    model_types = ("siglip", "siglip_vision_model")
    default_to_square: ClassVar[bool] = False

    do_convert_rgb: bool | None = True
    resample: int = BICUBIC


SiglipImageProcessorFast = SiglipImageProcessor
