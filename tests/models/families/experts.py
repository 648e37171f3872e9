"""Decoders whose tokens choose experts, and decoders with latent attention."""

from __future__ import annotations

from typing import Any

from .settings import ALL, ROPES, SHARP, TEXT, Family

# The reference norms and chooses in float32.
SPARSE = TEXT | {"intermediate_size": 37, "num_key_value_heads": 2, "pad_token_id": 0, "initializer_range": SHARP}
LATENT = SPARSE | {"num_key_value_heads": 4, "kv_lora_rank": 12, "q_lora_rank": 10, "v_head_dim": 7}
LATENT |= {"qk_nope_head_dim": 6, "qk_rope_head_dim": 4}
ROUTED = {"num_hidden_layers": 3, "moe_intermediate_size": 21, "n_routed_experts": 6, "num_experts_per_tok": 3}
ROUTED |= {"first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}
YARN: dict[str, Any] = {"rope_type": "yarn", "factor": 16.0, "rope_theta": 10000.0, "original_max_position_embeddings": 4}
GRANITE = {"num_local_experts": 5, "num_experts_per_tok": 3, "attention_multiplier": 0.3, "embedding_multiplier": 3.0}
GRANITE |= {"residual_multiplier": 0.4, "logits_scaling": 2.5}
LONG: dict[str, Any] = ROPES["longrope_short"]["rope_parameters"] | {"short_mscale": 1.2, "long_mscale": 1.4}

EXPERTS = [
    Family(
        "deepseek_v3",
        LATENT | ROUTED,
        left_padded_alone=True,
        rounded=ALL,
        variants={
            "tied": {"tie_word_embeddings": True},
            "routed": {"output_router_logits": True, "norm_topk_prob": False, "n_shared_experts": 2},
            "groups": {"n_group": 3, "topk_group": 2, "routed_scaling_factor": 1.5},
            "plain": {"q_lora_rank": None, "rope_interleave": False, "attention_bias": True},
            "yarn": {"rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 0.9}, "attention_bias": True},
            "dense": {"first_k_dense_replace": 3, "hidden_act": "gelu"},
        },
    ),
    Family(
        "deepseek_v2",
        LATENT | ROUTED,
        left_padded_alone=True,
        rounded=ALL,
        variants={
            "routed": {"output_router_logits": True, "n_shared_experts": 1, "routed_scaling_factor": 1.5},
            "groups": {"n_group": 3, "topk_group": 2, "topk_method": "group_limited_greedy"},
            "plain": {"q_lora_rank": None, "attention_bias": True, "mlp_bias": True},
            "yarn": {"rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 0.9}},
        },
    ),
    Family(
        "gpt_oss",
        # The root of the head size is no power of two, and gates reach their bounds.
        SPARSE | {"head_dim": 12, "num_local_experts": 5, "num_experts_per_tok": 3, "sliding_window": 4, "swiglu_limit": 1.5},
        left_padded_alone=True,
        rounded=ALL,
        variants={
            "routed": {"output_router_logits": True, "num_experts_per_tok": 1},
            "plain": {"rope_parameters": {"rope_type": "default", "rope_theta": 900.0}, "attention_bias": False},
            "layers": {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 3, "swiglu_alpha": 0.7},
            "whole": {"layer_types": ["full_attention", "full_attention"], "tie_word_embeddings": True},
        },
    ),
    Family(
        "glm4_moe",
        SPARSE | ROUTED | {"head_dim": 12},
        left_padded_alone=True,
        rounded=ALL,
        variants={
            "routed": {"output_router_logits": True, "n_group": 3, "topk_group": 2, "use_qk_norm": True},
            "whole": {"rope_parameters": {"rope_type": "default", "rope_theta": 900.0, "partial_rotary_factor": 1.0}},
            "biases": {"attention_bias": True, "norm_topk_prob": False, "n_shared_experts": 2},
        },
    ),
    Family(
        "dots1",
        SPARSE | ROUTED | {"n_shared_experts": 2, "sliding_window": 4, "max_window_layers": 1},
        left_padded_alone=True,
        rounded=ALL,
        variants={
            "routed": {"output_router_logits": True, "norm_topk_prob": True, "routed_scaling_factor": 1.5},
            "whole": {"sliding_window": None, "attention_bias": True},
        },
    ),
    Family(
        "qwen2_moe",
        SPARSE
        | {"num_hidden_layers": 3, "mlp_only_layers": [1], "moe_intermediate_size": 21, "num_experts": 6}
        | {"num_experts_per_tok": 3, "shared_expert_intermediate_size": 23},
        left_padded_alone=True,
        rounded=ALL,
        variants={
            "routed": {"output_router_logits": True, "norm_topk_prob": True, "qkv_bias": False},
            "steps": {"decoder_sparse_step": 2, "mlp_only_layers": None, "tie_word_embeddings": True},
            "dense": {"num_experts": 0, "hidden_act": "gelu"},
            "windows": {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 2},
        },
    ),
    Family(
        "olmoe",
        SPARSE | {"num_experts": 6, "num_experts_per_tok": 3},
        left_padded_alone=True,
        rounded=ALL,
        variants={
            "routed": {"output_router_logits": True, "norm_topk_prob": True, "tie_word_embeddings": True},
            "clipped": {"clip_qkv": 0.5, "attention_bias": True, "num_key_value_heads": None},
        },
    ),
    Family(
        "flex_olmo",
        SPARSE | {"num_experts": 6, "num_experts_per_tok": 3},
        left_padded_alone=True,
        rounded=ALL,
        variants={"routed": {"output_router_logits": True, "norm_topk_prob": True, "attention_bias": True}},
    ),
    Family(
        "minimax_m2",
        SPARSE
        | {"head_dim": 12, "num_local_experts": 6, "num_experts_per_tok": 3}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 900.0, "partial_rotary_factor": 0.5}},
        left_padded_alone=True,
        rounded=ALL,
        variants={"routed": {"output_router_logits": True, "rope_parameters": None, "tie_word_embeddings": True}},
    ),
    Family(
        "granitemoe",
        SPARSE | GRANITE,
        left_padded_alone=True,
        rounded=ALL,
        variants={
            "routed": {"output_router_logits": True, "num_experts_per_tok": 1, "attention_bias": True},
            "tied": {"tie_word_embeddings": True, "num_key_value_heads": None},
        },
    ),
    Family(
        "granitemoeshared",
        SPARSE | GRANITE | {"shared_intermediate_size": 23},
        left_padded_alone=True,
        rounded=ALL,
        variants={"routed": {"output_router_logits": True, "shared_intermediate_size": 0}},
    ),
    Family(
        # Norms behind the rotary tables have weights, so that positions count by themselves and not by their distance.
        "hunyuan_v1_moe",
        SPARSE | {"num_experts": 6, "moe_topk": 3, "head_dim": 12},
        rounded=ALL,
        variants={
            "routed": {"output_router_logits": True, "moe_topk": [2, 4], "attention_bias": True},
            "alpha": {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 900.0, "factor": 1.0, "alpha": 50.0}},
        },
    ),
    Family(
        "ernie4_5_moe",
        SPARSE
        | {"num_hidden_layers": 3, "moe_intermediate_size": 21, "moe_num_experts": 6, "moe_k": 3, "tie_word_embeddings": False},
        left_padded_alone=True,
        rounded=ALL,
        variants={
            "routed": {"output_router_logits": True, "moe_num_shared_experts": 0, "moe_norm_min": 0.7},
            "biases": {"use_bias": True, "moe_layer_start_index": 0, "moe_layer_interval": 2},
            "tied": {"tie_word_embeddings": True, "moe_layer_end_index": 1},
        },
    ),
    Family(
        "minicpm3",
        LATENT | {"scale_depth": 0.9, "dim_model_base": 20, "scale_emb": 3},
        left_padded_alone=True,
        rounded=ALL,
        variants={
            "plain": {"q_lora_rank": None, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
            "none": {"v_head_dim": None, "scale_depth": None, "dim_model_base": None},
            "yarn": {"rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 0.9}},
        },
    ),
    Family(
        "phimoe",
        SPARSE | {"num_local_experts": 5, "sliding_window": 4, "router_jitter_noise": 0.3},
        left_padded_alone=True,
        rounded=ALL,
        variants={
            "routed": {"output_router_logits": True, "lm_head_bias": True, "attention_bias": True, "sliding_window": None},
            "short": {"rope_parameters": LONG, "tie_word_embeddings": True},
        },
    ),
    Family(
        "llama4_text",
        SPARSE
        | {"num_hidden_layers": 4, "head_dim": 8, "num_local_experts": 5, "num_experts_per_tok": 2, "moe_layers": [0, 1, 3]}
        | {"intermediate_size_mlp": 23, "attention_chunk_size": 4},
        left_padded_alone=True,
        rounded=ALL,
        variants={
            "warm": {"floor_scale": 2, "attn_scale": 0.7, "no_rope_layers": [0, 1, 0, 1], "attention_bias": True},
            "routed": {"output_router_logits": True, "num_experts_per_tok": 1, "use_qk_norm": False},
            "steps": {"interleave_moe_layer_step": 2, "moe_layers": None, "attn_temperature_tuning": False},
        },
    ),
]
