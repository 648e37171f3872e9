"""Texts with pictures of different sizes among their tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# Frames, rows and columns of patches: an image in each row.
GRIDS = [(1, 4, 4), (1, 2, 6), (1, 6, 4)]
MERGED = 4


def joined(rows: list[list[int]], pad: str) -> dict[str, Tensor]:
    """Ids and mask of rows of tokens, filled up with zeros on one side."""
    longest = max(map(len, rows))
    ids, mask = torch.zeros(2, len(rows), longest, dtype=torch.long)
    for row, tokens in enumerate(rows):
        place = slice(longest - len(tokens), longest) if pad == "left" else slice(0, len(tokens))
        ids[row, place], mask[row, place] = torch.tensor(tokens), 1
    return {"input_ids": ids, "attention_mask": mask}


def patches(family: Any, grids: list[tuple[int, int, int]], seed: int = 1) -> Tensor:
    """What the image processor would make of pictures of these grids."""
    eye, count = family.tiny["vision_config"], sum(t * h * w for t, h, w in grids)
    numbers = 3 * 2 * eye["patch_size"] ** 2
    return torch.randn(count, numbers, generator=torch.Generator().manual_seed(seed))


def picture_batch(family: Any, *, pad: str, rows: int = 3) -> dict[str, Tensor]:
    """A text with an image in each row; without padding texts are of one length."""
    tiny, generator = family.tiny, torch.Generator().manual_seed(1)
    sized = "depth" not in tiny["vision_config"]  # images of one size
    sizes = [features(family)] * rows if sized else [t * h * w // MERGED for t, h, w in GRIDS[:rows]]
    lengths = [max(sizes) + 10 - size for size in sizes] if pad == "none" else [12, 7, 5][:rows]

    def words(count: int) -> list[int]:
        return torch.randint(5, 85, (count,), generator=generator).tolist()

    image = tiny["image_token_index"] if sized else tiny["image_token_id"]
    texts = [[*words(3), *[image] * size, *words(length - 3)] for size, length in zip(sizes, lengths, strict=True)]
    found = joined(texts, pad)
    if sized:
        side = tiny["vision_config"]["image_size"]
        return found | {"pixel_values": torch.randn(rows, 3, side, side, generator=generator)}
    types = (found["input_ids"] == image).int()
    pixels = {"pixel_values": patches(family, GRIDS[:rows]), "image_grid_thw": torch.tensor(GRIDS[:rows])}
    return found | pixels | {"mm_token_type_ids": types}


def features(family: Any, **more: Any) -> int:
    """How many features an image of one size has."""
    given = family.tiny | more
    eye = given["vision_config"]
    whole = given.get("vision_feature_select_strategy") == "full" and eye["model_type"] == "clip_vision_model"
    return (eye["image_size"] // eye["patch_size"]) ** 2 + whole


def of_row(inputs: dict[str, Any], row: int) -> dict[str, Any]:
    """The inputs of one row, with its image."""
    found = {name: value[row : row + 1] for name, value in inputs.items()}
    if "image_grid_thw" in inputs:
        found["pixel_values"] = inputs["pixel_values"].split(inputs["image_grid_thw"].prod(-1).tolist())[row]
    return found
