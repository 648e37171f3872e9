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
# What the reference norms or turns in float32 is rounded in float64.
NORMED: dict[str, Any] = {"left_padded_alone": True, "rounded": ALL}
# Where a position itself counts, not only how far others are: a row that is padded on the left needs its positions.
ABSOLUTE = NORMED | {"left_padded_alone": False}

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
    Family(
        "granite",
        KIN | {"embedding_multiplier": 3.0, "logits_scaling": 0.5, "residual_multiplier": 0.7, "attention_multiplier": 0.3},
        **NORMED,
        variants={"llama": {"attention_multiplier": 1.0}, "biases": {"attention_bias": True, "mlp_bias": True}, **ROPES},
    ),
    Family(
        "smollm3",
        KIN | {"no_rope_layer_interval": 2},
        **NORMED,
        variants={
            "untied": {"tie_word_embeddings": False, "no_rope_layers": [0, 1]},
            "window": {"use_sliding_window": True, "sliding_window": 4},
            "biases": {"attention_bias": True, "mlp_bias": True, "no_rope_layer_interval": 4},
        },
    ),
    Family(
        "olmo2",
        KIN,
        **NORMED,
        variants={"biases": {"attention_bias": True, "rms_norm_eps": 0.1}, "tied": {"tie_word_embeddings": True}, **ROPES},
    ),
    Family(
        "glm",
        KIN | {"head_dim": 12},
        **NORMED,
        variants={"whole": {"partial_rotary_factor": 1.0}, "plain": {"attention_bias": False, "hidden_act": "gelu"}},
    ),
    Family(
        "glm4",
        KIN | {"head_dim": 12},
        **NORMED,
        variants={"whole": {"partial_rotary_factor": 1.0}, "plain": {"attention_bias": False, "tie_word_embeddings": True}},
    ),
    Family(
        "arcee",
        KIN,
        **NORMED,
        variants={"biases": {"attention_bias": True, "mlp_bias": True}, "gelu": {"hidden_act": "gelu", "head_dim": 12}},
    ),
    Family(
        "helium",
        KIN | {"head_dim": 8},
        **NORMED,
        variants={"biases": {"attention_bias": True, "mlp_bias": True}, "tied": {"tie_word_embeddings": True}},
    ),
    Family(
        "ernie4_5",
        KIN | {"head_dim": 12},
        **NORMED,
        variants={"biases": {"use_bias": True, "tie_word_embeddings": False}, "gelu": {"hidden_act": "gelu"}},
    ),
    Family(
        "exaone4",
        KIN | {"sliding_window": 4, "sliding_window_pattern": 2},
        **NORMED,
        variants={
            "all": {"sliding_window": None, "layer_types": [FULL, FULL]},
            "layers": {"layer_types": [FULL, SLIDING], "tie_word_embeddings": True},
        },
    ),
    Family(
        "seed_oss",
        KIN | {"head_dim": 16, "attention_dropout": 0.0, "residual_dropout": 0.0},
        **NORMED,
        variants={
            "biases": {"attention_out_bias": True, "mlp_bias": True},
            "plain": {"attention_bias": False, "tie_word_embeddings": True},
        },
    ),
    Family(
        "hunyuan_v1_dense",
        KIN | {"head_dim": 12},
        **ABSOLUTE,
        variants={
            "alpha": {"rope_parameters": ROPE | {"rope_type": "dynamic", "alpha": 1000.0, "factor": 1.0}},
            "biases": {"attention_bias": True, "tie_word_embeddings": True},
        },
    ),
    Family(
        "ministral3",
        # Queries of a text of nine grow twice.
        KIN | {"head_dim": 8, "rope_parameters": ROPE | {"rope_type": "yarn", "factor": 16.0, "llama_4_scaling_beta": 0.5}},
        **ABSOLUTE,
        variants={"usual": {"rope_parameters": None}, "window": {"sliding_window": 4, "tie_word_embeddings": True}},
    ),
    Family(
        "phi",
        # Of a head of 8 elements 4 turn.
        KIN,
        left_padded_alone=True,
        variants={
            "normed": {"qk_layernorm": True, "layer_norm_eps": 0.1},
            "whole": {"partial_rotary_factor": 1.0, "num_key_value_heads": None, "hidden_act": "relu"},
            "tied": {"tie_word_embeddings": True},
        },
    ),
    Family(
        "cohere",
        KIN | {"use_qk_norm": True, "logit_scale": 0.3},
        **NORMED,
        variants={
            "plain": {"use_qk_norm": False, "num_key_value_heads": None},
            "biases": {"attention_bias": True, "tie_word_embeddings": False, "layer_norm_eps": 0.1},
        },
    ),
    Family(
        "cohere2",
        KIN | {"sliding_window": 4, "sliding_window_pattern": 2, "logit_scale": 0.3},
        **NORMED,
        variants={
            "layers": {"layer_types": [FULL, SLIDING]},
            "biases": {"attention_bias": True, "tie_word_embeddings": False, "layer_norm_eps": 0.1},
        },
    ),
    Family(
        "starcoder2",
        KIN,
        left_padded_alone=True,
        variants={
            "window": {"sliding_window": 4, "tie_word_embeddings": False},
            "unbiased": {"use_bias": False, "norm_epsilon": 0.1, "hidden_act": "relu"},
        },
    ),
    Family(
        "stablelm",
        KIN | {"num_key_value_heads": 2, "qk_layernorm": True},
        left_padded_alone=True,
        variants={
            "parallel": {"use_parallel_residual": True, "use_qkv_bias": True},
            "plain": {"qk_layernorm": False, "tie_word_embeddings": True, "partial_rotary_factor": 1.0},
        },
    ),
    Family(
        "olmo",
        KIN,
        **NORMED,
        exempt={
            "test_chunks_and_recomputation_change_nothing": "norms have no weights: the sum of squares that it looks at is constant"
        },
        variants={"clipped": {"clip_qkv": 0.5, "attention_bias": True}, "tied": {"tie_word_embeddings": True}, **ROPES},
    ),
    Family(
        "nemotron",
        KIN,
        left_padded_alone=True,
        variants={
            "biases": {"attention_bias": True, "mlp_bias": True, "norm_eps": 0.1},
            "whole": {"partial_rotary_factor": 1.0, "head_dim": 12, "tie_word_embeddings": True},
        },
    ),
    Family(
        "persimmon",
        {name: value for name, value in KIN.items() if name != "num_key_value_heads"},
        left_padded_alone=True,
        variants={
            "plain": {"qk_layernorm": False, "hidden_act": "gelu", "partial_rotary_factor": 1.0},
            "tied": {"tie_word_embeddings": True, "layer_norm_eps": 0.1},
        },
    ),
    Family(
        "olmo3",
        KIN | {"sliding_window": 4},
        **NORMED,
        variants={
            "layers": {"layer_types": [FULL, SLIDING], "rope_parameters": BY_KIND},
            "biases": {"num_hidden_layers": 5, "attention_bias": True, "tie_word_embeddings": True},
        },
    ),
    Family(
        "apertus",
        KIN,
        **NORMED,
        variants={
            "plain": {"hidden_act": "gelu", "attention_bias": True},
            "linear": {"rope_parameters": ROPE | {"rope_type": "linear", "factor": 2.0}, "tie_word_embeddings": True},
        },
    ),
    Family(
        "modernbert-decoder",
        TEXT
        | {"intermediate_size": 37, "initializer_range": 0.3, "local_attention": 8, "pad_token_id": 0, "bos_token_id": 1}
        | {"eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2},
        **NORMED,
        variants={
            "untied": {"tie_word_embeddings": False, "decoder_bias": False},
            "biases": {"norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_bias": True},
            "layers": {"layer_types": [SLIDING, FULL], "rope_parameters": BY_KIND},
        },
    ),
    Family(
        "gemma4_text",
        KIN
        | {"head_dim": 8, "global_head_dim": 16, "num_hidden_layers": 4, "layer_types": [SLIDING, FULL, SLIDING, FULL]}
        | {"sliding_window": 5, "num_kv_shared_layers": 2, "use_double_wide_mlp": True}
        | {"hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": 99},
        **NORMED,
        variants={
            "plain": {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0, "tie_word_embeddings": False},
            "values": {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "final_logit_softcapping": 1.5},
            "experts": {"enable_moe_block": True, "num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 9},
            "both": {"use_bidirectional_attention": "all", "sliding_window": 7, "use_cache": False},
            "usual": {"layer_types": None, "num_hidden_layers": 7, "num_kv_shared_layers": 0, "attention_bias": True},
        },
    ),
]
