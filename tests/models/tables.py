"""Questions with tables: what token types say of them, and answers."""

from __future__ import annotations

import torch
from torch import Tensor


def table_types(mask: Tensor) -> Tensor:
    """Token types (B, T, 7) for the mask of real tokens (B, T): a question of two tokens, and a table of two columns."""
    rows, length = mask.shape
    place = torch.arange(length)
    row, column = (place - 2).clamp(min=0) // 4, torch.where(place < 2, 0, 1 + place % 3 % 2)
    others = torch.randint(0, 2, (length, 4), generator=torch.Generator().manual_seed(5))
    types = torch.cat([(column > 0).long()[:, None], column[:, None], row[:, None], others], dim=1)
    return types.expand(rows, -1, -1) * mask[..., None]


def table_labels(types: Tensor) -> dict[str, Tensor]:
    """Answers: a cell, a number that no cell is, and a number that a cell is."""
    rows, length = types.shape[:2]
    values = torch.randn(rows, length, generator=torch.Generator().manual_seed(6))
    cells = (types[..., 1] == 1) & (types[..., 2] == 1) & (torch.arange(rows) != 1)[:, None]
    return {
        "labels": cells.long(),
        "aggregation_labels": torch.arange(rows) % 4,
        "float_answer": torch.tensor([float("nan"), 3.0, 0.5])[:rows],
        "numeric_values": torch.where(types[..., 2] > 0, values, float("nan")),
        "numeric_values_scale": torch.full((rows, length), 2.0),
    }
