"""What Qwen2 adds to the derived suite: files of the older layout and which layers slide."""

from __future__ import annotations

from typing import Any

import pytest

from transept.errors import ConfigError
from transept.models.qwen2 import Qwen2Config, Qwen2ForCausalLM, Qwen2Model

from .families import FAMILIES
from .harness import check_config_file

TINY = {family.model_type: family for family in FAMILIES}["qwen2"].tiny
# config.json of published checkpoints: of Qwen2 with half a billion parameters and of Qwen2.5 with seven.
SMALL = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151643,
    "hidden_act": "silu",
    "hidden_size": 896,
    "initializer_range": 0.02,
    "intermediate_size": 4864,
    "max_position_embeddings": 131072,
    "max_window_layers": 24,
    "model_type": "qwen2",
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 131072,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
LARGE = SMALL | {
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_window_layers": 28,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
    "vocab_size": 152064,
}
LONG = LARGE | {
    "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"},
    "use_sliding_window": True,
    "max_window_layers": 20,
}


@pytest.mark.reference
@pytest.mark.parametrize("values", [{}, SMALL, LARGE, LONG], ids=["defaults", "small", "large", "long"])
def test_files_of_the_older_layout(values: dict[str, Any]) -> None:
    check_config_file(Qwen2Config, values)


def test_which_layers_slide() -> None:
    assert {Qwen2Config.from_dict(SMALL).window(layer) for layer in range(24)} == {None}
    config = Qwen2Config.from_dict(LONG)
    assert [config.window(layer) for layer in (0, 19, 20, 27)] == [None, None, 131072, 131072]
    named = Qwen2Config(**TINY | {"layer_types": ["sliding_attention", "full_attention"]})
    assert [named.window(0), named.window(1)] == [4, None]
    assert Qwen2Config.from_dict(named.to_dict()) == named


def test_biases_are_those_of_queries_keys_and_values() -> None:
    model = Qwen2Model(Qwen2Config(**TINY))
    biased = {name.split(".", 2)[2] for name, _ in model.named_parameters() if name.endswith("bias")}
    assert biased == {f"self_attn.{part}_proj.bias" for part in "qkv"}


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "layer_types"),
        ({"layer_types": ["full_attention", "sliding_attention"], "use_sliding_window": False}, "sliding_window"),
        ({"sliding_window": 0}, "sliding_window"),
        ({"num_key_value_heads": 3}, "num_attention_heads"),
    ],
)
def test_impossible_settings_are_named(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Qwen2ForCausalLM(Qwen2Config(**TINY | wrong))
