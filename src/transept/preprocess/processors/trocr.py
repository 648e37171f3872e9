"""TrOCR's processor (Li et al. 2021, arXiv:2109.10282): pictures of lines, and the texts that are written in them."""

from __future__ import annotations

from transept.preprocess.processor import LabelProcessor


class TrOCRProcessor(LabelProcessor):
    """An image processor and a tokenizer; texts beside pictures are ``labels``."""

    model_types = ("trocr",)
    parts = {"image_processor": (), "tokenizer": ()}
