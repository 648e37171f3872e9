"""What Gemma 4's model of texts adds to the derived suite: embeddings for layers, and numbers that a checkpoint states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from transept.errors import InputError
from transept.models.gemma4_text import Gemma4ForCausalLM, Gemma4TextConfig

from .families.llamas import LLAMAS
from .harness import SINGLE, batch, compare, pair

pytestmark = pytest.mark.reference

FAMILY = {family.model_type: family for family in LLAMAS}["gemma4_text"]


def test_a_larger_vocabulary_has_embeddings_for_layers(tmp_path: Path) -> None:
    ours, theirs = pair(FAMILY, Gemma4ForCausalLM)
    for model in (ours, theirs):
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        model.resize_token_embeddings(103, mean_resizing=False)
    assert ours.config.vocab_size_per_layer_input == 103
    ours.load_state_dict(theirs.state_dict())
    ours.save_pretrained(tmp_path)
    ids = torch.tensor([[5, 102, 7]])
    with torch.no_grad():
        expected = theirs(input_ids=ids)
        for model in (ours, Gemma4ForCausalLM.from_pretrained(tmp_path)):
            compare(model(input_ids=ids), expected, SINGLE)


def test_inputs_for_layers_may_be_given() -> None:
    ours, theirs = pair(FAMILY, Gemma4ForCausalLM)
    states, more = torch.randn(2, 5, 32), torch.randn(2, 5, 4, 4)
    given: dict[str, Any] = {"inputs_embeds": states, "per_layer_inputs": more}
    with torch.no_grad():
        compare(ours(**given), theirs(**given), SINGLE)
    with pytest.raises(InputError, match="of no tokens"):
        ours(inputs_embeds=states)
    with pytest.raises(InputError, match=r"must be \(2, 5, 4, 4\)"):
        ours(inputs_embeds=states, per_layer_inputs=more[:, :, :2])


def test_each_layer_is_multiplied_by_its_number() -> None:
    ours, theirs = pair(FAMILY, Gemma4ForCausalLM)
    for layer, number in zip(theirs.model.layers, (0.5, 2.0, 1.5, 0.7), strict=True):
        layer.layer_scalar.fill_(number)
    ours.load_state_dict(theirs.state_dict())
    inputs = batch(FAMILY, Gemma4ForCausalLM, pad="none")
    with torch.no_grad():
        compare(ours(**inputs), theirs(**inputs), SINGLE)


def test_files_that_speak_of_layers_one_by_one() -> None:
    import transformers

    theirs = transformers.Gemma4TextConfig(num_hidden_layers=6, global_head_dim=32, head_dim=16)
    ours = Gemma4TextConfig.from_dict(theirs.to_dict())
    assert [ours.key_sizes(layer) for layer in (0, 5)] == [(4, 16), (4, 32)]
    again = transformers.Gemma4TextConfig.from_dict(ours.to_dict())
    assert again.to_dict()["per_layer_config"] == theirs.to_dict()["per_layer_config"]
