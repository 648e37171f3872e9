"""BLIP's processor (Li et al. 2022, arXiv:2201.12086): pictures, and beginnings of descriptions of them or questions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from transept.preprocess.processor import Processor


class BlipProcessor(Processor):
    """An image processor and a tokenizer, which makes no token types unless it is asked for them."""

    model_types = ("blip",)
    parts = {"image_processor": (), "tokenizer": ()}
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {"text": {"return_token_type_ids": False}}
