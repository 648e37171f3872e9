"""Entities beside texts: as many as there are tokens, so that what is cut of one is cut of the other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def entity_inputs(tiny: dict[str, Any], mask: Tensor, *, places: bool) -> dict[str, Tensor]:
    """Entities (B, T) for the mask of real tokens (B, T); with ``places``, where the words that they are begin and end."""
    generator = torch.Generator().manual_seed(4)
    rows, length = mask.shape
    positions = torch.randint(-1, tiny["max_position_embeddings"], (rows, length, 3), generator=generator)
    inputs = {
        "entity_ids": torch.randint(0, tiny["entity_vocab_size"], (rows, length), generator=generator),
        "entity_attention_mask": mask,
        "entity_token_type_ids": torch.randint(0, 2, (rows, length), generator=generator),
        "entity_position_ids": positions,
    }
    names = ("entity_start_positions", "entity_end_positions") if places else ()
    return inputs | {name: torch.randint(0, length, (rows, length), generator=generator) for name in names}
