"""How many positions backbones over text say that they have."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import transept
from transept.errors import InputError

SIZES: dict[str, Any] = {"vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
TINY = {**SIZES, "intermediate_size": 8, "max_position_embeddings": 12}
GPT2 = {"vocab_size": 30, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 12}


@pytest.mark.parametrize(
    ("family", "settings", "most"),
    [
        ("Bert", TINY, 12),
        ("Roberta", TINY, 10),
        ("Roberta", TINY | {"pad_token_id": 4}, 7),
        ("XLMRoberta", TINY, 10),
        ("MPNet", TINY, 10),
        ("GPT2", GPT2, 12),
    ],
)
def test_as_many_positions_as_a_backbone_says_can_be_used(family: str, settings: dict[str, Any], most: int) -> None:
    model = getattr(transept, f"{family}Model")(getattr(transept, f"{family}Config")(**settings)).eval()
    assert model.max_positions == most
    ids = torch.full((1, most + 1), 7)
    assert model(ids[:, :most]).last_hidden_state.shape == (1, most, 8)
    with pytest.raises(InputError, match=f"{most + 1}.*{most}"):
        model(ids)


def test_a_backbone_without_positions_has_no_end() -> None:
    model = transept.BloomModel(transept.BloomConfig(vocab_size=30, hidden_size=8, n_layer=1, n_head=2)).eval()
    assert model.max_positions is None
    assert model(torch.full((1, 50), 7)).last_hidden_state.shape == (1, 50, 8)
