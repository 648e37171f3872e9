"""Decoders whose layers keep states, alone or beside layers of attention."""

from __future__ import annotations

from typing import Any

from .settings import ALL, SHARP, TEXT, Family

# With the usual step sizes of a hundredth hardly anything would reach the states. The reference norms and scans in float32.
MAMBA = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 6, "pad_token_id": 0}
MAMBA |= {"initializer_range": SHARP, "time_step_min": 0.5, "time_step_max": 2.0}
HYBRID = TEXT | {"intermediate_size": 37, "num_key_value_heads": 2, "pad_token_id": 0, "initializer_range": SHARP}
HYBRID |= {"num_hidden_layers": 3}
# Of what the reference computes in float32 little is amplified with smaller weights.
MILD = {"initializer_range": 0.15}
MIXERS: dict[str, Any] = {"mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_state": 6, "mamba_chunk_size": 4}
GRANITE = {"num_local_experts": 5, "num_experts_per_tok": 3, "attention_multiplier": 0.3, "embedding_multiplier": 3.0}
GRANITE |= {"residual_multiplier": 0.4, "logits_scaling": 2.5, "shared_intermediate_size": 23}
LINEAR = "linear_attention"
KINDS = {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
DELTA: dict[str, Any] = KINDS | {"head_dim": 12, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
DELTA |= {"initializer_range": 0.08, "linear_key_head_dim": 6, "linear_value_head_dim": 7}

HYBRIDS = [
    Family(
        # The reference halves weights in place outside training, and gives states by name: see test_mamba.py.
        "rwkv",
        {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 3, "intermediate_size": 37, "rescale_every": 0}
        | {"use_cache": False},
        left_padded_alone=True,
        rounded=ALL,
        reads_padding=True,
        averages_heads=True,
        variants={"tied": {"tie_word_embeddings": True, "intermediate_size": 60, "layer_norm_epsilon": 1e-3}},
    ),
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
    Family(
        "bamba",
        HYBRID | MIXERS | MILD | {"attn_layer_indices": [1]},
        left_padded_alone=True,
        rounded=ALL,
        variants={
            "tied": {"tie_word_embeddings": True, "mamba_n_groups": 1, "mamba_expand": 3},
            "biases": {"mamba_proj_bias": True, "mamba_conv_bias": False, "attention_bias": True, "mlp_bias": True},
            "limits": {"time_step_limit": [0.6, 1.1], "attn_layer_indices": [0, 2], "mamba_d_conv": 2},
        },
    ),
    Family(
        "granitemoehybrid",
        HYBRID | MIXERS | GRANITE | KINDS,
        left_padded_alone=True,
        rounded=ALL,
        variants={
            "routed": {"output_router_logits": True, "position_embedding_type": "rope", "attention_bias": True},
            "dense": {"num_local_experts": 0, "num_experts_per_tok": 0, "tie_word_embeddings": True},
            "older": {"layer_types": ["attention", "mamba", "mamba"], "mamba_proj_bias": True},
        },
    ),
    Family(
        "zamba2",
        HYBRID
        | {"initializer_range": 0.1, "num_hidden_layers": 6, "num_mem_blocks": 2, "adapter_rank": 5, "num_key_value_heads": 4}
        | {"layers_block_type": [LINEAR, "hybrid", LINEAR, "hybrid", "hybrid", LINEAR], "n_mamba_heads": 8, "mamba_ngroups": 2}
        | {"mamba_d_state": 6, "time_step_min": 0.5, "time_step_max": 2.0},
        left_padded_alone=True,
        rounded=ALL,
        variants={
            "adapted": {"use_shared_attention_adapter": True, "num_mem_blocks": 1, "hidden_act": "silu"},
            "turned": {"use_mem_rope": True, "add_bias_linear": True, "mamba_expand": 3, "n_mamba_heads": 6},
            "untied": {"tie_word_embeddings": False},
            "grouped": {"num_key_value_heads": 2, "num_mem_blocks": 4, "layers_block_type": ["mamba", "hybrid", "hybrid"] * 2},
        },
    ),
    Family(
        "jamba",
        HYBRID
        | MILD
        | {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 5, "num_experts_per_tok": 3, "mamba_d_state": 6}
        | {"expert_layer_period": 2, "expert_layer_offset": 0},
        left_padded_alone=True,
        rounded=ALL,
        variants={
            "routed": {"output_router_logits": True, "mamba_dt_rank": 5, "mamba_expand": 3},
            "dense": {"num_experts": 1, "num_experts_per_tok": 1, "mamba_proj_bias": True, "mamba_conv_bias": False},
        },
    ),
    Family(
        "lfm2",
        HYBRID | MILD | {"layer_types": ["conv", "full_attention", "conv"], "block_multiple_of": 8},
        left_padded_alone=True,
        rounded=ALL,
        variants={
            "untied": {"tie_word_embeddings": False, "block_ffn_dim_multiplier": 1.3},
            "whole": {"layer_types": None, "full_attn_idxs": [0], "block_auto_adjust_ff_dim": False, "conv_L_cache": 4},
        },
    ),
    Family(
        "lfm2_moe",
        HYBRID
        | {"layer_types": ["conv", "full_attention", "conv"], "num_dense_layers": 1, "moe_intermediate_size": 21}
        | {"num_experts": 5, "num_experts_per_tok": 3},
        left_padded_alone=True,
        rounded=ALL,
        variants={
            "routed": {"output_router_logits": True, "routed_scaling_factor": 1.5, "norm_topk_prob": False},
            "unbiased": {"use_expert_bias": False, "num_dense_layers": 0, "tie_word_embeddings": False},
        },
    ),
    Family(
        "qwen3_next",
        HYBRID
        | DELTA
        | {"num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 21}
        | {"shared_expert_intermediate_size": 23},
        left_padded_alone=True,
        rounded=ALL,
        variants={
            "routed": {"output_router_logits": True, "norm_topk_prob": False, "linear_num_key_heads": 4},
            "dense": {"num_experts": 0, "attention_bias": True, "tie_word_embeddings": True},
            "steps": {"decoder_sparse_step": 2, "mlp_only_layers": [2], "layer_types": None, "num_hidden_layers": 4},
        },
    ),
    Family(
        "qwen3_5_text",
        HYBRID | DELTA,
        left_padded_alone=True,
        rounded=ALL,
        variants={"tied": {"tie_word_embeddings": True, "attention_bias": True, "linear_conv_kernel_dim": 2}},
    ),
    Family(
        "qwen3_5_moe_text",
        {name: value for name, value in HYBRID.items() if name != "intermediate_size"}
        | DELTA
        | {"num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 21, "shared_expert_intermediate_size": 23},
        left_padded_alone=True,
        rounded=ALL,
        variants={"routed": {"output_router_logits": True, "tie_word_embeddings": True}},
    ),
    Family(
        "kimi_linear",
        HYBRID
        | KINDS
        | {"num_key_value_heads": 4, "linear_num_heads": 4, "linear_head_dim": 6, "kv_lora_rank": 10, "qk_rope_head_dim": 4}
        | {
            "qk_nope_head_dim": 6,
            "v_head_dim": 7,
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 21,
        }
        | {"initializer_range": 0.03, "bos_token_id": 1, "eos_token_id": 2},
        left_padded_alone=True,
        rounded=ALL,
        variants={
            "routed": {"output_router_logits": True, "n_group": 3, "topk_group": 2, "q_lora_rank": 9},
            "dense": {"mlp_layer_types": ["dense"] * 3, "attention_bias": True, "linear_conv_kernel_dim": 2},
            "sparse": {"mlp_layer_types": ["sparse", "dense", "sparse"], "norm_topk_prob": False, "n_shared_experts": 2},
            "usual": {"layer_types": None, "num_hidden_layers": 5},
        },
    ),
    Family(
        "falcon_h1",
        HYBRID | MIXERS | MILD | {"num_hidden_layers": 2, "mamba_d_ssm": 24},
        left_padded_alone=True,
        rounded=ALL,
        variants={
            "normed": {"mamba_rms_norm": True, "mamba_norm_before_gate": False, "tie_word_embeddings": True},
            "before": {"mamba_rms_norm": True, "mamba_d_ssm": None, "attention_bias": True, "mlp_bias": True},
            "biases": {"projectors_bias": True, "mamba_proj_bias": True, "mamba_conv_bias": False},
            "scaled": {"ssm_multipliers": [0.5, 0.7, 1.2, 0.8, 1.1], "mlp_multipliers": [0.7, 1.3], "key_multiplier": 0.6}
            | {"ssm_in_multiplier": 1.2, "ssm_out_multiplier": 0.7, "attention_in_multiplier": 0.8, "lm_head_multiplier": 0.4}
            | {"attention_out_multiplier": 1.2, "embedding_multiplier": 1.5},
        },
    ),
    Family(
        "nemotron_h",
        {name: value for name, value in HYBRID.items() if name != "num_hidden_layers"}
        | {"layer_types": ["linear_attention", "moe", "full_attention", "mlp"], "head_dim": 12, "ssm_state_size": 6}
        | {"mamba_num_heads": 4, "mamba_head_dim": 6, "n_groups": 2, "chunk_size": 4, "moe_intermediate_size": 21}
        | {"moe_shared_expert_intermediate_size": 23, "n_routed_experts": 6, "num_experts_per_tok": 3}
        | {"time_step_min": 1e-6, "time_step_floor": 0.3, "time_step_max": 2.0},
        # Below their minimum the reference bounds steps of prompts alone.
        left_padded_alone=True,
        rounded=ALL,
        variants={
            "routed": {"output_router_logits": True, "n_group": 3, "topk_group": 2, "routed_scaling_factor": 1.5},
            "latent": {"moe_latent_size": 10, "norm_topk_prob": False, "mlp_bias": True, "tie_word_embeddings": True},
            "biases": {"use_bias": True, "use_conv_bias": False, "time_step_min": 0.9},
            "first": {"layer_types": ["mlp", "attention", "mamba"], "mlp_hidden_act": "gelu"},
        },
    ),
    Family(
        # The reference keeps states on the model, and reads padding.
        "recurrent_gemma",
        {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 38}
        | {"num_key_value_heads": 2, "pad_token_id": 0, "lru_width": 40, "attention_window_size": 4},
        left_padded_alone=True,
        rounded=ALL,
        reads_padding=True,
        variants={
            "untied": {"tie_word_embeddings": False, "attention_bias": True, "conv1d_width": 2, "lru_width": None},
            "kinds": {"block_types": ["attention", "recurrent"], "logits_soft_cap": 5.0, "num_key_value_heads": None},
        },
    ),
]
