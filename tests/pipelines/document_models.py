"""A tiny random model that answers questions about pages, and what it reads."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw, ImageFont
from tokenizers.pre_tokenizers import ByteLevel

from transept.models.layoutlmv3 import LayoutLMv3Config, LayoutLMv3ForQuestionAnswering
from transept.preprocess.image.layoutlmv3 import LayoutLMv3ImageProcessor
from transept.preprocess.processors.layoutlmv3 import LayoutLMv3Processor
from transept.preprocess.text.classes import LayoutLMv3Tokenizer

LETTERS = {
    token: index for index, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", "<mask>", *sorted(ByteLevel.alphabet())])
}
SIZES: dict[str, Any] = {
    "vocab_size": len(LETTERS),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 37,
    "max_position_embeddings": 202,
    "coordinate_size": 4,
    "shape_size": 8,
    "input_size": 32,
    "patch_size": 8,
    "initializer_range": 0.3,
}
_LINES = "Invoice no. 4711 of May 3 for Ada Lovelace", "Two lamps 25.00 Shipping 4.50 Total 29.50 EUR due on June 1"
INVOICE = [word for line in _LINES for word in line.split()]


def tiny_reader() -> LayoutLMv3ForQuestionAnswering:
    torch.manual_seed(0)
    return LayoutLMv3ForQuestionAnswering(LayoutLMv3Config(**SIZES)).eval()


def tiny_processor(**settings: Any) -> LayoutLMv3Processor:
    size = {"height": 32, "width": 32}
    tokenizer = LayoutLMv3Tokenizer(vocab=LETTERS, merges=[], model_max_length=200)
    return LayoutLMv3Processor(LayoutLMv3ImageProcessor(size=size, **settings), tokenizer)


def save(directory: Path, **settings: Any) -> None:
    """A checkpoint of both."""
    tiny_reader().save_pretrained(directory)
    tiny_processor(**settings).save_pretrained(directory)


def page(words: list[str], seed: int = 0) -> tuple[Image.Image, list[tuple[str, list[int]]]]:
    """A picture with words on it, and their boxes."""
    picture, some = Image.new("RGB", (420, 300), "white"), random.Random(seed)
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default(size=16)
    x, y, found = 20.0, 20, []
    for word in words:
        wide = pen.textlength(word, font=font)
        if x + wide > 400:
            x, y = 20.0, y + some.choice((24, 30, 36))
        pen.text((x, y), word, fill="black", font=font)
        sides = (x / 420, y / 300, (x + wide) / 420, min((y + 20) / 300, 1))
        found.append((word, [int(1000 * side) for side in sides]))
        x += wide + 8
    return picture, found
