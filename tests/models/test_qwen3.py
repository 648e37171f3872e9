"""What Qwen3 adds to the derived suite: files of the older layout, and norms that come before rotation."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from transept.models.qwen3 import Qwen3Config, Qwen3Model

from .families import FAMILIES
from .harness import check_config_file, error

TINY = {family.model_type: family for family in FAMILIES}["qwen3"].tiny
# config.json of a published checkpoint, that with 0.6 billion parameters, and the one with 8 stretched to longer texts.
SMALL = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "max_window_layers": 28,
    "model_type": "qwen3",
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
LARGE = SMALL | {
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}


@pytest.mark.reference
@pytest.mark.parametrize("values", [{}, SMALL, LARGE], ids=["defaults", "small", "large"])
def test_files_of_the_older_layout(values: dict[str, Any]) -> None:
    check_config_file(Qwen3Config, values)
    assert Qwen3Config.from_dict(values).head_dim == 128


def test_the_size_of_queries_and_keys_does_not_matter() -> None:
    """Norms take it out again."""
    config = Qwen3Config(**TINY | {"rms_norm_eps": 1e-12})
    model, ids = Qwen3Model(config).eval(), torch.arange(5, 14)[None]
    with torch.no_grad():
        expected = model(ids).last_hidden_state
        for layer in model.layers:
            layer.self_attn.q_proj.weight *= 7.0
            layer.self_attn.k_proj.weight *= 0.2
        assert error(model(ids).last_hidden_state, expected) <= 1e-5
        model.layers[0].self_attn.q_norm.weight *= 3.0
        assert error(model(ids).last_hidden_state, expected) > 1e-3
