"""ViT's image processor (Dosovitskiy et al. 2021, arXiv:2010.11929): 224 x 224, levels mapped to [-1, 1]."""

from __future__ import annotations

from transept.preprocess.image.base import BaseImageProcessor


class ViTImageProcessor(BaseImageProcessor):
    """The base's defaults, which are ViT's: bilinear to 224 x 224, mean and standard deviation of one half."""


ViTImageProcessorFast = ViTImageProcessor
