"""Decoders whose tokens choose experts, and decoders with latent attention."""

from __future__ import annotations

from typing import Any

from .settings import ALL, SHARP, TEXT, Family

# The reference norms and chooses in float32.
SPARSE = TEXT | {"intermediate_size": 37, "num_key_value_heads": 2, "pad_token_id": 0, "initializer_range": SHARP}
LATENT = SPARSE | {"num_key_value_heads": 4, "kv_lora_rank": 12, "q_lora_rank": 10, "v_head_dim": 7}
LATENT |= {"qk_nope_head_dim": 6, "qk_rope_head_dim": 4}
ROUTED = {"num_hidden_layers": 3, "moe_intermediate_size": 21, "n_routed_experts": 6, "num_experts_per_tok": 3}
ROUTED |= {"first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}
YARN: dict[str, Any] = {"rope_type": "yarn", "factor": 16.0, "rope_theta": 10000.0, "original_max_position_embeddings": 4}

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
]
