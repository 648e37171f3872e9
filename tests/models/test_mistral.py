"""What Mistral adds to the derived suite: files of the older layout, and windows beyond what short sequences show."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from transept.errors import ConfigError, TranseptWarning
from transept.models.mistral import MistralConfig, MistralForCausalLM, MistralModel

from .families import FAMILIES
from .harness import SINGLE, check_config_file, compare, error, pair

FAMILY = {family.model_type: family for family in FAMILIES}["mistral"]
# config.json of published checkpoints: the first Mistral 7B, and the third instructed one, which has no window.
FIRST = {
    "architectures": ["MistralForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "model_type": "mistral",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 32000,
}
THIRD = FIRST | {"attention_dropout": 0.0, "rope_theta": 1000000.0, "sliding_window": None, "vocab_size": 32768}


@pytest.mark.reference
@pytest.mark.parametrize("values", [{}, FIRST, THIRD], ids=["defaults", "first", "third"])
def test_files_of_the_older_layout(values: dict[str, Any]) -> None:
    check_config_file(MistralConfig, values)
    config = MistralConfig.from_dict(values)
    assert config.head_dim == 128
    assert config.window(0) == config.window(31) == values.get("sliding_window", 4096)


@pytest.mark.reference
@pytest.mark.parametrize("window", [1, 6, 11, 12, 13, 40])
def test_windows_of_every_length_equal_the_reference(window: int) -> None:
    ours, theirs = pair(FAMILY, MistralModel, sliding_window=window)
    ids = torch.randint(5, 99, (2, 12), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        compare(ours(ids), theirs(ids), SINGLE)


def test_an_exported_program_takes_sequences_within_and_beyond_the_window() -> None:
    model = MistralModel(MistralConfig(**FAMILY.tiny | {"sliding_window": 12, "use_cache": False})).eval()
    ids, length = torch.arange(5, 45)[None], torch.export.Dim("length", min=2, max=48)
    program = torch.export.export(model, (ids[:, :9],), dynamic_shapes={"input_ids": {1: length}}).module()
    with torch.no_grad():
        for end in (5, 12, 13, 40):
            assert error(program(ids[:, :end])[0], model(ids[:, :end])[0]) <= SINGLE


@pytest.mark.reference
@pytest.mark.parametrize("steps", [[20], [7, 1, 1, 1, 1, 1, 1, 7], [2, 9, 9]])
def test_decoding_past_the_window_equals_the_reference(steps: list[int]) -> None:
    """Padded on the left; the reference forgets keys that have left the window."""
    ours, theirs = pair(FAMILY, MistralForCausalLM)
    ids = torch.randint(5, 99, (3, 20), generator=torch.Generator().manual_seed(6))
    mask = (torch.arange(20) >= torch.tensor([[0], [3], [6]])).long()
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    caches, start = [None, None], 0
    for size in steps:
        end = start + size
        part = {"input_ids": ids[:, start:end], "attention_mask": mask[:, :end], "position_ids": positions[:, start:end]}
        with torch.no_grad():
            mine, other = (
                model(**part, past_key_values=cache, use_cache=True)
                for model, cache in zip((ours, theirs), caches, strict=True)
            )
        real = mask[:, start:end].bool()
        assert error(mine.logits[real], other.logits[real]) <= SINGLE
        caches, start = [mine.past_key_values, other.past_key_values], end


def test_settings_that_mistral_does_not_have() -> None:
    for name in ("attention_bias", "mlp_bias", "pretraining_tp", "layer_types"):
        with pytest.warns(TranseptWarning, match=name):
            MistralConfig(**{name: None})
    kept = MistralConfig.from_dict(FIRST | {"attention_bias": True})  # as the reference, which has no biases either
    assert not kept.attention_bias
    assert kept.to_dict()["attention_bias"] is True
    with pytest.raises(ConfigError, match="sliding_window"):
        MistralConfig(sliding_window=0)
