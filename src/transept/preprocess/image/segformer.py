"""SegFormer's image processor (Xie et al. 2021, arXiv:2105.15203): 512 x 512, with label maps."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from transept.preprocess.image.base import IMAGENET_MEAN, IMAGENET_STD
from transept.preprocess.image.label_maps import SegmentationImageProcessor


class SegformerImageProcessor(SegmentationImageProcessor):
    """Bilinear to 512 x 512; ImageNet's means and standard deviations."""

    model_types = ("segformer",)

    size: Any = field(default_factory=lambda: {"height": 512, "width": 512})
    image_mean: float | list[float] = field(default_factory=lambda: list(IMAGENET_MEAN))
    image_std: float | list[float] = field(default_factory=lambda: list(IMAGENET_STD))


SegformerImageProcessorFast = SegformerImageProcessor
