"""Inputs of models that read pages: words, their boxes and the picture of the page."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def random_boxes(rows: int, length: int, generator: torch.Generator) -> Tensor:
    """Boxes (B, T, 4) somewhere on a page."""
    corners = torch.randint(0, 1001, (rows, length, 2, 2), generator=generator)
    return corners.sort(dim=2).values.flatten(2)


def document_batch(tiny: dict[str, Any], *, pad: str = "right", rows: int = 3, length: int = 9) -> dict[str, Tensor]:
    """Pages of words, of which all but the first are padded on one side (or none: `pad="none"`)."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, tiny["vocab_size"], (rows, length), generator=generator)
    missing = torch.zeros(rows, 1) if pad == "none" else 2 * torch.arange(rows)[:, None]
    mask = (torch.arange(length) < length - missing).long()
    mask = mask.flip(1) if pad == "left" else mask
    size = tiny["input_size"]
    return {
        "input_ids": torch.where(mask == 1, ids, 1),
        "attention_mask": mask,
        "bbox": random_boxes(rows, length, generator) * mask[..., None],
        "token_type_ids": (torch.arange(length)[None] > 3).long() * mask,
        "pixel_values": torch.randn(rows, 3, size, size, generator=generator),
    }
