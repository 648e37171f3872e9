"""CLIP's image processor (Radford et al. 2021, arXiv:2103.00020)."""

from __future__ import annotations

from transept.preprocess.image.bit import BitImageProcessor


class CLIPImageProcessor(BitImageProcessor):
    """RGB, the shorter edge bicubic to 224, cropped to 224 x 224; the means and standard deviations of CLIP's pictures."""


CLIPImageProcessorFast = CLIPImageProcessor
