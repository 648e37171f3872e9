"""The image processors of Big Transfer, which DINOv2 uses too, and of CLIP.

Kolesnikov et al. 2020 (arXiv:1912.11370), Radford et al. 2021 (arXiv:2103.00020).
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, ClassVar

from transept.preprocess.image.base import BICUBIC, BaseImageProcessor

# Of the pictures that CLIP was trained on (Radford et al. 2021, arXiv:2103.00020).
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


class BitImageProcessor(BaseImageProcessor):
    """RGB, the shorter edge bicubic to 224, cropped to 224 x 224; CLIP's means and standard deviations."""

    model_types: ClassVar[tuple[str, ...]] = ("dinov2", "dinov2_with_registers")
    default_to_square: ClassVar[bool] = False

    do_convert_rgb: bool | None = True
    size: Any = field(default_factory=lambda: {"shortest_edge": 224})
    resample: int = BICUBIC
    do_center_crop: bool | None = True
    crop_size: Any = field(default_factory=lambda: {"height": 224, "width": 224})
    image_mean: float | list[float] = field(default_factory=lambda: list(CLIP_MEAN))
    image_std: float | list[float] = field(default_factory=lambda: list(CLIP_STD))


BitImageProcessorFast = BitImageProcessor


class CLIPImageProcessor(BitImageProcessor):
    """RGB, the shorter edge bicubic to 224, cropped to 224 x 224; the means and standard deviations of CLIP's pictures."""

    model_types: ClassVar[tuple[str, ...]] = ("clip", "clip_vision_model")


CLIPImageProcessorFast = CLIPImageProcessor
