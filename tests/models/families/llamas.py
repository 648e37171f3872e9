"""Decoders of texts that are Llama's kin."""

from __future__ import annotations

from typing import Any

from .settings import ALL, FACTORS, ROPE, ROPES, SHARP, TEXT, Family

KIN = TEXT | {"intermediate_size": 37, "num_key_value_heads": 2, "pad_token_id": 0, "initializer_range": SHARP}
FULL, SLIDING = "full_attention", "sliding_attention"
# Layers that see all turn otherwise than those with a window.
BY_KIND = {
    FULL: {"rope_type": "linear", "factor": 4.0, "rope_theta": 900.0},
    SLIDING: {"rope_type": "default", "rope_theta": 70.0},
}
LONG: dict[str, Any] = {"rope_parameters": ROPE | FACTORS | {"rope_type": "longrope"}}
# What the reference norms in float32 is rounded in float64.
NORMED: dict[str, Any] = {"left_padded_alone": True, "rounded": ALL}

LLAMAS = [
    Family(
        "gemma",
        KIN | {"head_dim": 12},
        **NORMED,
        variants={
            "untied": {"tie_word_embeddings": False},
            "biases": {"attention_bias": True, "rms_norm_eps": 0.1},
            "old": {"hidden_act": "gelu", "num_key_value_heads": 1, **ROPES["yarn"]},
        },
    ),
    Family(
        "gemma3_text",
        KIN
        | {"head_dim": 12, "num_hidden_layers": 3, "sliding_window_pattern": 2, "sliding_window": 5}
        | {"query_pre_attn_scalar": 24, "rope_parameters": BY_KIND},
        **NORMED,
        variants={
            "usual": {"num_hidden_layers": 7, "rope_parameters": None, "sliding_window_pattern": 6},
            "layers": {"layer_types": [FULL, FULL, SLIDING]},
            "bounded": {"final_logit_softcapping": 1.5, "tie_word_embeddings": False},
            "both": {"use_bidirectional_attention": True, "use_cache": False, "sliding_window": 7},
            "biases": {"attention_bias": True, "rms_norm_eps": 0.1, "hidden_activation": "relu"},
        },
    ),
    Family(
        "phi3",
        KIN,
        **NORMED,
        variants={
            "tied": {"tie_word_embeddings": True, "hidden_act": "gelu"},
            "window": {"sliding_window": 4, "num_key_value_heads": None},
            "part": {"rope_parameters": ROPE | {"rope_type": "default", "partial_rotary_factor": 0.5}},
            "long": LONG | {"original_max_position_embeddings": 4},
            "short": LONG | {"original_max_position_embeddings": 32},
        },
    ),
]
