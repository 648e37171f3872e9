"""Decoders whose layers keep states, alone or beside layers of attention."""

from __future__ import annotations

from .settings import ALL, SHARP, Family

# With the usual step sizes of a hundredth hardly anything would reach the states. The reference norms and scans in float32.
MAMBA = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 6, "pad_token_id": 0}
MAMBA |= {"initializer_range": SHARP, "time_step_min": 0.5, "time_step_max": 2.0}

HYBRIDS = [
    Family(
        "mamba",
        MAMBA | {"time_step_scale": 4.0},
        left_padded_alone=True,
        rounded=ALL,
        variants={
            "untied": {"tie_word_embeddings": False},
            "biases": {"use_bias": True, "use_conv_bias": False, "hidden_act": "gelu"},
            "sizes": {"expand": 3, "conv_kernel": 2, "time_step_rank": 5, "state_size": 1},
            "plain": {"residual_in_fp32": False, "conv_kernel": 1},
        },
    ),
    Family(
        "falcon_mamba",
        MAMBA | {"time_step_scale": 4.0, "mixer_rms_eps": 1e-3},
        left_padded_alone=True,
        rounded=ALL,
        variants={"biases": {"use_bias": True, "use_conv_bias": False, "tie_word_embeddings": False}},
    ),
    Family(
        "mamba2",
        MAMBA | {"num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 4, "eos_token_id": 2},
        left_padded_alone=True,
        rounded=ALL,
        variants={
            "tied": {"tie_word_embeddings": True, "n_groups": 1, "chunk_size": 16},
            "biases": {"use_bias": True, "use_conv_bias": False, "residual_in_fp32": False},
            "sizes": {"expand": 3, "conv_kernel": 2, "num_heads": 4, "head_dim": 24, "n_groups": 4, "state_size": 1},
            "limits": {"time_step_limit": [0.6, 1.1]},
        },
    ),
]
