"""What Phi-3 adds to the derived suite: texts that grow past the length from which on they turn by other factors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import transept
from transept.models.phi3 import Phi3Config, Phi3ForCausalLM

from .families.llamas import LLAMAS, LONG
from .harness import batch, pair

pytestmark = pytest.mark.reference

FAMILY = {family.model_type: family for family in LLAMAS}["phi3"]


@pytest.mark.parametrize("pad", ["left", "none"])
@pytest.mark.parametrize("more", [{}, {"num_beams": 3}, {"num_beams": 2, "early_stopping": True}])
def test_long_factors_begin_where_those_of_the_reference_do(more: dict[str, Any], pad: str) -> None:
    ours, theirs = pair(FAMILY, Phi3ForCausalLM, **LONG, original_max_position_embeddings=14)
    given = batch(FAMILY, Phi3ForCausalLM, pad=pad)
    settings = more | {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    expected = theirs.generate(**given, **settings)
    assert torch.equal(ours.generate(**given, **settings), expected)
    assert torch.equal(ours.generate(**given, **settings, use_cache=False), expected)
    if pad == "left" and not more:
        static = {"cache_implementation": "static", "prefill_chunk_size": 4}
        assert torch.equal(ours.generate(**given, **settings, **static), expected)
        assert not torch.equal(pair(FAMILY, Phi3ForCausalLM)[0].generate(**given, **settings), expected)


def test_a_padded_batch_switches_by_its_longest_row() -> None:
    """Where every row is padded, a row still equals itself without padding."""
    ours, _ = pair(FAMILY, Phi3ForCausalLM, **LONG, original_max_position_embeddings=14)
    ids = batch(FAMILY, Phi3ForCausalLM, pad="none")["input_ids"][:1]
    settings: Any = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    alone = ours.generate(input_ids=ids, **settings)
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), ids], dim=1)
    mask = (torch.arange(12) >= 3).long()[None]
    assert torch.equal(ours.generate(input_ids=padded, attention_mask=mask, **settings)[:, 3:], alone)


@pytest.mark.parametrize("old", ["su", "yarn"])
def test_older_files_name_the_factors_otherwise(old: str) -> None:
    scaling = {"type": old, "short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
    config = Phi3Config.from_dict({"model_type": "phi3", "rope_scaling": scaling, "max_position_embeddings": 131072})
    assert config.rope()["rope_type"] == "longrope"
    assert config.rope()["original_max_position_embeddings"] == 4096
    with torch.device("meta"):
        assert transept.AutoModelForCausalLM.from_config(config).model.switches_at == 4096
