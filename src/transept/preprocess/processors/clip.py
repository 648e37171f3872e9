"""CLIP's processor (Radford et al. 2021, arXiv:2103.00020): pictures, and texts to compare them with."""

from __future__ import annotations

from transept.preprocess.processor import Processor


class CLIPProcessor(Processor):
    """An image processor and a tokenizer."""

    model_types = ("clip",)
    parts = {"image_processor": (), "tokenizer": ()}
