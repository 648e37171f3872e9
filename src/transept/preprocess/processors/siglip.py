"""SigLIP's processor (Zhai et al. 2023, arXiv:2303.15343): pictures, and texts to compare them with."""

from __future__ import annotations

from transept.preprocess.processor import Processor


class SiglipProcessor(Processor):
    """An image processor and a tokenizer. Its model was trained on texts padded with ``padding="max_length"``."""

    model_types = ("siglip",)
    parts = {"image_processor": (), "tokenizer": ()}
