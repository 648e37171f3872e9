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
]
