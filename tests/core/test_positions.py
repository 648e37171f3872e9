"""How many positions backbones over text say that they have."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import transept
from transept.errors import InputError, TranseptWarning

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


@pytest.mark.parametrize("family", ["Llama", "GPTNeoX", "Qwen2", "ModernBert"])
def test_rotary_positions_have_no_end_but_a_length_that_they_were_trained_for(family: str) -> None:
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    heads = {"num_key_value_heads": 2} if family == "Qwen2" else {}
    settings = TINY | heads | (special if family == "ModernBert" else {})
    model = getattr(transept, f"{family}Model")(getattr(transept, f"{family}Config")(**settings)).eval()
    assert (model.max_positions, model.trained_positions) == (None, 12)
    assert model(torch.full((1, 20), 7)).last_hidden_state.shape == (1, 20, 8)


def test_models_write_beyond_what_they_were_trained_for_where_no_table_ends() -> None:
    torch.manual_seed(0)
    rotary = transept.LlamaForCausalLM(transept.LlamaConfig(**TINY, eos_token_id=None)).eval()
    prompt = torch.randint(3, 30, (2, 9))
    with pytest.warns(TranseptWarning, match="13 tokens, more than the 12 positions") as said:
        written = rotary.generate(prompt, max_new_tokens=8)
    assert len(said) == 1
    for step in range(9, 17):
        assert torch.equal(rotary(written[:, :step]).logits[:, -1].argmax(-1), written[:, step])
    assert rotary.generate(prompt, max_new_tokens=4).shape == (2, 13)  # the last token is not read
    table = transept.GPT2LMHeadModel(transept.GPT2Config(**GPT2, bos_token_id=0, eos_token_id=None)).eval()
    assert table.generate(prompt, max_new_tokens=4).shape == (2, 13)
    with pytest.raises(InputError, match="9 positions and 5 new ones are more than the model's 12"):
        table.generate(prompt, max_new_tokens=5)


def test_a_backbone_without_positions_has_no_end() -> None:
    model = transept.BloomModel(transept.BloomConfig(vocab_size=30, hidden_size=8, n_layer=1, n_head=2)).eval()
    assert model.max_positions is None
    assert model(torch.full((1, 50), 7)).last_hidden_state.shape == (1, 50, 8)
