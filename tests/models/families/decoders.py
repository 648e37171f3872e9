"""Decoders of texts."""

from __future__ import annotations

from .settings import ALL, ROPES, SHARP, TEXT, Family

DECODERS = [
    Family(
        "gpt2",
        TEXT | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "initializer_range": SHARP},
        token_types=True,
        variants={
            "untied": {"tie_word_embeddings": False},
            "inner": {"n_inner": 37, "activation_function": "relu"},
            "scales": {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True},
            "crossed": {"add_cross_attention": True},
        },
    ),
    Family(
        "llama",
        TEXT | {"intermediate_size": 37, "num_key_value_heads": 2, "pad_token_id": 0, "initializer_range": SHARP},
        left_padded_alone=True,
        rounded=ALL,  # the reference norms in float32
        variants={
            "tied": {"tie_word_embeddings": True},
            "biases": {"attention_bias": True, "mlp_bias": True},
            "wide": {"head_dim": 12, "num_key_value_heads": 1},
            "narrow": {"num_key_value_heads": None, "hidden_act": "gelu"},
        },
    ),
    Family(
        "gpt_neox",
        TEXT
        | {"intermediate_size": 37, "pad_token_id": 0, "initializer_range": SHARP}
        # Of a head of 8 elements 4 turn.
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}},
        left_padded_alone=True,
        variants={
            "sequential": {"use_parallel_residual": False},
            "tied": {"tie_word_embeddings": True},
            "unbiased": {"attention_bias": False, "hidden_act": "relu"},
            "quarter": {"rope_parameters": None},
        },
    ),
    Family(
        "opt",
        TEXT | {"max_position_embeddings": 20, "ffn_dim": 37, "init_std": SHARP},
        left_padded_alone=True,
        variants={
            "untied": {"tie_word_embeddings": False},
            "narrow": {"word_embed_proj_dim": 12},
            "post": {"do_layer_norm_before": False, "word_embed_proj_dim": 12, "activation_function": "gelu"},
            "plain": {"_remove_final_layer_norm": True, "enable_bias": False, "layer_norm_elementwise_affine": False},
        },
    ),
    Family(
        "bloom",
        # The heads are no power of two.
        {"vocab_size": 99, "hidden_size": 48, "n_layer": 2, "n_head": 6, "pad_token_id": 3, "initializer_range": SHARP},
        left_padded_alone=True,
        rounded=ALL,  # the reference has fewer digits of a constant, and a softmax in float32
        variants={
            "untied": {"tie_word_embeddings": False},
            "normed": {"apply_residual_connection_post_layernorm": True},
            "heads": {"n_head": 16},
        },
    ),
    Family(
        "mistral",
        TEXT
        | {"intermediate_size": 37, "num_key_value_heads": 2, "pad_token_id": 0, "initializer_range": SHARP}
        | {"sliding_window": 4},
        left_padded_alone=True,
        rounded=ALL,  # the reference norms in float32
        variants={
            "tied": {"tie_word_embeddings": True},
            "whole": {"sliding_window": None},
            "wide": {"head_dim": 12, "num_key_value_heads": 1, "hidden_act": "gelu"},
            **ROPES,
        },
    ),
    Family(
        "ministral",
        TEXT
        | {"intermediate_size": 37, "num_key_value_heads": 2, "pad_token_id": 0, "initializer_range": SHARP}
        | {"sliding_window": 4, "head_dim": 8},  # the reference's sizes of heads have no default
        left_padded_alone=True,
        rounded=ALL,  # the reference norms in float32
        variants={
            "layers": {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 3},
            "whole": {"layer_types": ["full_attention", "full_attention"], "head_dim": 12},
        },
    ),
    Family(
        "qwen2",
        TEXT
        | {"intermediate_size": 37, "num_key_value_heads": 2, "pad_token_id": 0, "initializer_range": SHARP}
        | {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
        left_padded_alone=True,
        rounded=ALL,  # the reference norms in float32
        variants={
            "tied": {"tie_word_embeddings": True},
            "whole": {"use_sliding_window": False},
            "layers": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 3},
            "narrow": {"num_key_value_heads": None, "hidden_act": "gelu"},
            "wide": {"head_dim": 12},
        },
    ),
    Family(
        "qwen3",
        TEXT
        | {"intermediate_size": 37, "num_key_value_heads": 2, "pad_token_id": 0, "initializer_range": SHARP}
        | {"head_dim": 12, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
        left_padded_alone=True,
        rounded=ALL,  # the reference norms in float32
        variants={
            "tied": {"tie_word_embeddings": True},
            "biases": {"attention_bias": True, "rms_norm_eps": 0.1},
            "whole": {"use_sliding_window": False},
            "layers": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 3},
            "narrow": {"num_key_value_heads": None, "hidden_act": "gelu"},
        },
    ),
    Family(
        "gemma2",
        TEXT
        | {"intermediate_size": 37, "num_key_value_heads": 2, "head_dim": 12, "initializer_range": SHARP}
        | {"sliding_window": 5, "query_pre_attn_scalar": 3, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 1.5},
        # A window of 5, since with a smaller one padding sees nothing, which the reference makes NaN of in float64.
        left_padded_alone=True,
        rounded=ALL,  # the reference norms in float32
        variants={
            "untied": {"tie_word_embeddings": False},
            "unbounded": {"attn_logit_softcapping": None, "final_logit_softcapping": None},
            "biases": {"attention_bias": True, "rms_norm_eps": 0.1},
            "layers": {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 3},
            "relu": {"hidden_activation": "relu"},
        },
    ),
    Family(
        "mixtral",
        TEXT
        | {"intermediate_size": 37, "num_key_value_heads": 2, "pad_token_id": 0, "initializer_range": SHARP}
        | {"num_local_experts": 5, "sliding_window": 4},
        left_padded_alone=True,
        rounded=ALL,  # the reference norms and chooses in float32
        variants={
            "tied": {"tie_word_embeddings": True},
            "routed": {"output_router_logits": True, "num_experts_per_tok": 3},
            "wide": {"head_dim": 12, "num_key_value_heads": 1, "sliding_window": None},
            "narrow": {"num_experts_per_tok": 1, "num_local_experts": 1, "hidden_act": "gelu"},
        },
    ),
    Family(
        "qwen3_moe",
        TEXT
        | {"intermediate_size": 37, "num_key_value_heads": 2, "pad_token_id": 0, "initializer_range": SHARP}
        | {"head_dim": 12, "moe_intermediate_size": 21, "num_experts": 6, "num_experts_per_tok": 3}
        | {"num_hidden_layers": 3, "mlp_only_layers": [1]},
        left_padded_alone=True,
        rounded=ALL,  # the reference norms and chooses in float32
        variants={
            "tied": {"tie_word_embeddings": True},
            "routed": {"output_router_logits": True, "norm_topk_prob": True},
            "steps": {"decoder_sparse_step": 2, "mlp_only_layers": None, "attention_bias": True, "rms_norm_eps": 0.1},
            "dense": {"num_experts": 0, "hidden_act": "gelu"},
            "windows": {"use_sliding_window": True, "sliding_window": 3},
        },
    ),
    Family(
        "gpt_neo",
        {"vocab_size": 99, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 64}
        | {"attention_types": [[["global", "local"], 1]], "window_size": 5, "intermediate_size": 37, "pad_token_id": 0}
        | {"initializer_range": SHARP},
        token_types=True,
        # A window of 5, since with a smaller one padding sees nothing, which kernels make different things of.
        rounded=ALL,  # the reference has its scores in float32
        variants={
            "untied": {"tie_word_embeddings": False},
            "local": {"attention_types": [[["local"], 2]], "window_size": 6, "activation_function": "relu"},
            "inner": {"intermediate_size": None, "attention_types": [[["global"], 1], [["global"], 1]]},
        },
    ),
    Family(
        "gptj",
        {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "n_inner": 37, "rotary_dim": 4}
        | {"pad_token_id": 0, "initializer_range": SHARP},
        left_padded_alone=True,
        token_types=True,
        rounded=ALL,  # the reference has its scores in float32
        variants={
            "tied": {"tie_word_embeddings": True},
            "whole": {"rotary_dim": 8, "n_inner": None, "activation_function": "relu"},
        },
    ),
    Family(
        "codegen",
        {"vocab_size": 99, "n_embd": 48, "n_layer": 2, "n_head": 8, "n_positions": 64, "n_inner": 37, "rotary_dim": 4}
        | {"pad_token_id": 0, "initializer_range": SHARP},
        left_padded_alone=True,
        token_types=True,
        rounded=ALL,  # the reference has its scores in float32
        variants={
            "tied": {"tie_word_embeddings": True},
            "four": {"n_head": 4, "rotary_dim": 12, "n_inner": None, "activation_function": "relu"},
        },
    ),
    Family(
        "gpt_bigcode",
        {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "n_inner": 37, "pad_token_id": 0}
        | {"initializer_range": SHARP},
        token_types=True,
        rounded=ALL,  # the reference has its softmax in float32
        variants={
            "untied": {"tie_word_embeddings": False},
            "apart": {"multi_query": False, "activation_function": "relu"},
            "unscaled": {"scale_attn_weights": False, "n_inner": None},
        },
    ),
    Family(
        "falcon",
        {"vocab_size": 99, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6, "max_position_embeddings": 64}
        | {"ffn_hidden_size": 37, "pad_token_id": 0, "initializer_range": SHARP},
        left_padded_alone=True,
        rounded=ALL,  # the reference rotates in float32
        variants={
            "untied": {"tie_word_embeddings": False, "bias": True, "activation": "relu"},
            "heads": {"multi_query": False, "bias": True},
            "new": {"new_decoder_architecture": True, "num_kv_heads": 2},
            "one_norm": {"new_decoder_architecture": True, "num_kv_heads": 3, "num_ln_in_parallel_attn": 1},
            "alibi": {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True, "ffn_hidden_size": None},
            "biases": {"alibi": True},
            **ROPES,
        },
    ),
    Family(
        "mpt",
        # The heads are no power of two.
        {"vocab_size": 99, "d_model": 48, "n_layers": 2, "n_heads": 6, "max_seq_len": 64, "initializer_range": SHARP}
        | {"pad_token_id": 0, "use_cache": True},
        left_padded_alone=True,
        rounded=ALL,  # the reference has its softmax in float32
        variants={
            "untied": {"tie_word_embeddings": False},
            "clipped": {"attn_config": {"clip_qkv": 0.5, "softmax_scale": 0.7}, "n_heads": 4},
        },
    ),
    Family(
        "xglm",
        {"vocab_size": 99, "d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 37, "init_std": SHARP}
        | {"max_position_embeddings": 64},
        rounded=ALL,  # the reference's waves are float32
        computed=("embed_positions",),
        variants={
            "untied": {"tie_word_embeddings": False, "activation_function": "relu"},
            "unscaled": {"scale_embedding": False, "pad_token_id": 4},
        },
    ),
    Family(
        "ctrl",
        {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "dff": 37, "n_positions": 64, "pad_token_id": 0}
        | {"initializer_range": SHARP},
        token_types=True,
        rounded=ALL,  # the reference's waves are float32
        variants={"untied": {"tie_word_embeddings": False, "layer_norm_epsilon": 0.1}},
    ),
    Family(
        "openai_gpt",
        {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "pad_token_id": 0}
        | {"initializer_range": SHARP},
        token_types=True,
        variants={"untied": {"tie_word_embeddings": False}, "relu": {"afn": "relu"}, "swish": {"afn": "swish"}},
    ),
    Family(
        "biogpt",
        TEXT | {"intermediate_size": 37, "initializer_range": SHARP},
        variants={
            "untied": {"tie_word_embeddings": False, "hidden_act": "relu"},
            "unscaled": {"scale_embedding": False},
        },
    ),
]
