"""One line per family: from it the whole suite of `test_families.py` derives."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, eq=False)
class Family:
    """What the suite cannot find out by itself.

    `tiny` are the settings of a small random model. `modality` chooses the inputs. `left_padded_alone` tells whether a row
    padded on the left equals the row alone (positions that are relative or derived from the mask). `variants` are further
    settings to check, on top of `tiny`. `rounded` names the classes whose float64 results the reference computes in
    float32. `computed` are parts of the names of what the reference stores and ours computes. `beyond` are the classes that
    the reference lacks, which have tests of their own. `averages_heads` tells that the reference shows no attention of each
    head, but their mean. `exempt` names the tests that cannot hold, and why.
    """

    model_type: str
    tiny: dict[str, Any]
    modality: str = "text"
    left_padded_alone: bool = False
    variants: dict[str, dict[str, Any]] = field(default_factory=dict)
    rounded: Container[str] = ()
    decoder: dict[str, Any] | None = None  # settings that make it a decoder, where it can be one
    token_types: bool = False
    computed: tuple[str, ...] = ()
    beyond: tuple[str, ...] = ()
    averages_heads: bool = False
    exempt: dict[str, str] = field(default_factory=dict)


class _All:
    def __contains__(self, name: object) -> bool:
        return True


ALL = _All()

# Weights so large that attention is far from uniform, and a wrong angle or scale is seen.
SHARP = 0.25

TEXT = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64}
# Large weights: with the usual small ones attention is all but even, and states hardly differ between positions.
BLOCK = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 37,
    "initializer_range": 0.2,
}

BEIT = BLOCK | {"vocab_size": 20, "image_size": 16, "patch_size": 4, "num_hidden_layers": 4, "layer_scale_init_value": 0.5}
BEIT |= {"drop_path_rate": 0.0, "out_indices": [1, 2, 3, 4], "num_labels": 3, "auxiliary_channels": 12}
DINO = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "mlp_ratio": 2, "image_size": 16, "patch_size": 4}
DINO |= {"initializer_range": 0.2, "layerscale_value": 0.5, "out_indices": [0, -1]}

WAVE = BLOCK | {"vocab_size": 32, "conv_dim": [16, 24], "conv_stride": [5, 4], "conv_kernel": [10, 8], "layerdrop": 0.0}
WAVE |= {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2, "classifier_proj_size": 12}
XVECTOR = {"tdnn_dim": [16, 20, 24], "tdnn_kernel": [5, 3, 1], "tdnn_dilation": [1, 2, 1], "xvector_output_dim": 18}

# Sequences of nine are longer than what `dynamic` and `longrope` begin to stretch at; heads have four pairs to turn.
ROPE = {"rope_theta": 10000.0, "original_max_position_embeddings": 4}
FACTORS = {"short_factor": [1.0, 1.5, 2.0, 2.5], "long_factor": [2.0, 3.0, 4.0, 5.0]}
BANDS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
ROPES: dict[str, dict[str, Any]] = {
    "linear": {"rope_parameters": ROPE | {"rope_type": "linear", "factor": 4.0}},
    "dynamic": {"rope_parameters": ROPE | {"rope_type": "dynamic", "factor": 2.5}, "max_position_embeddings": 4},
    "yarn": {"rope_parameters": ROPE | {"rope_type": "yarn", "factor": 16.0}},
    "longrope": {"rope_parameters": ROPE | FACTORS | {"rope_type": "longrope"}},
    "longrope_short": {"rope_parameters": ROPE | FACTORS | {"rope_type": "longrope", "original_max_position_embeddings": 32}},
    "llama3": {"rope_parameters": ROPE | BANDS | {"rope_type": "llama3", "factor": 8.0}},
}
# Of the stacks of an encoder–decoder.
SEQ2SEQ = {
    "vocab_size": 99,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "max_position_embeddings": 64,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 37,
    "decoder_ffn_dim": 37,
}

# The last ids are those that sequences begin and end with.
BLIP_TEXT = TEXT | {"intermediate_size": 37, "initializer_range": 0.2, "encoder_hidden_size": 32}
BLIP_TEXT |= {"bos_token_id": 98, "sep_token_id": 97}

# Models that read texts with pictures of any size.
READER = TEXT | {"intermediate_size": 37, "num_key_value_heads": 2, "pad_token_id": 0, "initializer_range": SHARP}
READER |= {"bos_token_id": 1, "eos_token_id": 2}
MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}}
TOKENS = {"image_token_id": 90, "video_token_id": 91, "vision_start_token_id": 92, "vision_end_token_id": 93}
PICTURES = {"text_config": READER | MROPE, **TOKENS}
EYE = {"depth": 2, "num_heads": 2, "patch_size": 4, "initializer_range": SHARP}
SIZED = {
    **dict.fromkeys(
        ("test_compiles_whole", "test_compiles_with_inductor", "test_exports"),
        "sizes of pictures are read from tensors; the text model compiles: see test_qwen2_vl.py",
    ),
    "test_cached_equals_uncached": "a picture is read at once: see test_qwen2_vl.py",
}
# The two networks of models that compare texts with images.
TOWER = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 37}
TEXT_TOWER = TOWER | {
    "vocab_size": 99,
    "max_position_embeddings": 16,
    "pad_token_id": 1,
    "bos_token_id": 97,
    "eos_token_id": 98,
}
IMAGE_TOWER = TOWER | {"image_size": 16, "patch_size": 4}
SHARED = {"projection_dim": 12, "initializer_factor": 4.0}

# The decoder alone.
WRITER = {name: value for name, value in SEQ2SEQ.items() if not name.startswith("encoder_")} | {"init_std": SHARP}

FAMILIES = [
    Family(
        "bert",
        TEXT | {"intermediate_size": 37},
        token_types=True,
        decoder={"is_decoder": True},
        variants={"untied": {"tie_word_embeddings": False}, "relu": {"hidden_act": "relu"}},
    ),
    Family(
        "roberta",
        TEXT | {"intermediate_size": 37},
        token_types=True,
        decoder={"is_decoder": True},
        left_padded_alone=True,
        variants={"untied": {"tie_word_embeddings": False}, "relu": {"hidden_act": "relu"}},
    ),
    Family(
        "xlm_roberta",
        TEXT | {"intermediate_size": 37, "type_vocab_size": 1},
        decoder={"is_decoder": True},
        left_padded_alone=True,
        variants={"untied": {"tie_word_embeddings": False}, "relu": {"hidden_act": "relu"}},
    ),
    Family(
        "distilbert",
        {"vocab_size": 99, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 37, "max_position_embeddings": 64},
        variants={
            "untied": {"tie_word_embeddings": False},
            "relu": {"activation": "relu"},
            "sinusoidal": {"sinusoidal_pos_embds": True},
        },
    ),
    Family(
        "electra",
        TEXT | {"intermediate_size": 37, "embedding_size": 12},
        token_types=True,
        decoder={"is_decoder": True},
        variants={
            "untied": {"tie_word_embeddings": False},
            "relu": {"hidden_act": "relu"},
            "unfactorised": {"embedding_size": 32},
            "summary": {"summary_type": "mean", "summary_use_proj": False, "summary_activation": ""},
        },
    ),
    Family(
        "mpnet",
        TEXT | {"intermediate_size": 37},
        left_padded_alone=True,
        variants={"untied": {"tie_word_embeddings": False}, "relu": {"hidden_act": "relu"}},
    ),
    Family(
        "modernbert",
        TEXT
        | {"intermediate_size": 37, "local_attention": 4, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
        | {"cls_token_id": 1, "sep_token_id": 2, "initializer_range": SHARP},
        left_padded_alone=True,
        rounded=ALL,  # the reference rotates in float32
        variants={
            "untied": {"tie_word_embeddings": False},
            "biases": {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "classifier_bias": True},
            "mean": {"classifier_pooling": "mean", "decoder_bias": False, "classifier_activation": "relu"},
            "local": {"global_attn_every_n_layers": 4, "num_hidden_layers": 6, "local_attention": 3},
        },
    ),
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
        "xlnet",
        {"vocab_size": 99, "d_model": 32, "num_hidden_layers": 2, "n_head": 4, "d_inner": 37, "initializer_range": SHARP},
        token_types=True,
        left_padded_alone=True,
        variants={
            "untied": {"tie_word_embeddings": False},
            "relu": {"ff_activation": "relu"},
            "clamped": {"clamp_len": 5, "use_mems_eval": False},
            "short": {"mem_len": 4, "reuse_len": 6},
            "summary": {"summary_type": "mean", "summary_use_proj": False, "summary_activation": ""},
        },
    ),
    Family(
        "reformer",
        {"vocab_size": 99, "hidden_size": 32, "num_attention_heads": 4, "attention_head_size": 8, "feed_forward_size": 37}
        | {"attn_layers": ["local", "lsh", "lsh"], "local_attn_chunk_length": 4, "lsh_attn_chunk_length": 6}
        | {"axial_pos_shape": [4, 16], "axial_pos_embds_dim": [12, 20], "max_position_embeddings": 64}
        | {"num_buckets": 4, "num_hashes": 2, "hash_seed": 0, "initializer_range": SHARP, "use_cache": False},
        decoder={"is_decoder": True, "use_cache": True},
        variants={
            "fitted": {"num_buckets": None, "num_hashes": 1},
            "factors": {"num_buckets": [2, 4], "num_hashes": 3, "lsh_attn_chunk_length": 2},
            "table": {"axial_pos_embds": False, "hidden_act": "gelu", "attn_layers": ["lsh"]},
            "local": {"attn_layers": ["local", "local"], "local_num_chunks_before": 2},
            "wide": {"lsh_num_chunks_before": 0, "local_attn_chunk_length": 16, "lsh_attn_chunk_length": 4},
            "chunks": {"chunk_size_lm_head": 3, "chunk_size_feed_forward": 3},
        },
        exempt={
            **dict.fromkeys(
                ("test_compiles_whole", "test_compiles_with_inductor", "test_exports"),
                "the global random numbers, the choice of buckets and the backward pass of reversible layers break graphs",
            ),
            "test_padded_equals_alone": "which positions share a chunk of sorted ones depends on how many there are",
            "test_cached_equals_uncached": "a hashed step sees other chunks; for local attention see test_reformer.py",
            "test_gradients_equal_reference": "the reference's layers are run backwards in training only: see test_reformer.py",
        },
    ),
    Family(
        "bart",
        SEQ2SEQ | {"init_std": SHARP},
        modality="seq2seq",
        variants={
            "untied": {"tie_word_embeddings": False},
            "scaled": {"scale_embedding": True, "activation_function": "relu"},
            "uneven": {"decoder_layers": 1, "decoder_ffn_dim": 21, "decoder_attention_heads": 2},
        },
    ),
    Family(
        "encoder_decoder",
        {
            "encoder": TEXT | {"model_type": "bert", "intermediate_size": 37},
            "decoder": TEXT | {"model_type": "gpt2", "vocab_size": 87, "initializer_range": SHARP, "add_cross_attention": True},
            "decoder_start_token_id": 1,
            "pad_token_id": 0,
        },
        modality="seq2seq",
        variants={
            "berts": {
                "encoder": TEXT | {"model_type": "roberta", "intermediate_size": 37},
                "decoder": TEXT
                | {"model_type": "bert", "hidden_size": 24, "is_decoder": True, "add_cross_attention": True}
                | {"intermediate_size": 37},
            },
            "bart": {"decoder": SEQ2SEQ | {"model_type": "bart", "init_std": SHARP}},
        },
    ),
    Family(
        "mbart",
        SEQ2SEQ | {"init_std": SHARP},
        modality="seq2seq",
        variants={
            "untied": {"tie_word_embeddings": False},
            "scaled": {"scale_embedding": True, "activation_function": "relu"},
            "uneven": {"decoder_layers": 1, "decoder_ffn_dim": 21, "decoder_attention_heads": 2},
        },
    ),
    Family(
        "marian",
        SEQ2SEQ | {"init_std": SHARP, "activation_function": "swish", "pad_token_id": 98, "decoder_start_token_id": 98},
        modality="seq2seq",
        rounded=ALL,  # the reference's waves are float32
        computed=("embed_positions",),
        variants={
            "untied": {"tie_word_embeddings": False},
            "scaled": {"scale_embedding": True, "activation_function": "relu"},
            "apart": {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 99},
            "uneven": {"decoder_layers": 1, "decoder_ffn_dim": 21, "decoder_attention_heads": 2},
        },
    ),
    Family(
        "t5",
        {"vocab_size": 99, "d_model": 32, "d_kv": 6, "d_ff": 37, "num_layers": 3, "num_heads": 4}
        | {"num_decoder_layers": 2, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 6}
        | {"decoder_start_token_id": 0},
        modality="seq2seq",
        left_padded_alone=True,
        rounded=ALL,  # the reference norms in float32
        variants={
            "unscaled": {"tie_word_embeddings": False},
            "gated": {"feed_forward_proj": "gated-gelu"},
            "silu": {"feed_forward_proj": "gated-silu", "layer_norm_epsilon": 0.1},
        },
    ),
    Family(
        "mamba",
        # With the usual step sizes of a hundredth hardly anything would reach the states.
        {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 6, "pad_token_id": 0}
        | {"initializer_range": SHARP, "time_step_min": 0.5, "time_step_max": 2.0, "time_step_scale": 4.0},
        left_padded_alone=True,
        rounded=ALL,  # the reference norms and scans in float32
        variants={
            "untied": {"tie_word_embeddings": False},
            "biases": {"use_bias": True, "use_conv_bias": False, "hidden_act": "gelu"},
            "sizes": {"expand": 3, "conv_kernel": 2, "time_step_rank": 5, "state_size": 1},
            "plain": {"residual_in_fp32": False, "conv_kernel": 1},
        },
    ),
    Family(
        "vit",
        BLOCK | {"image_size": 16, "patch_size": 4, "encoder_stride": 4},
        modality="image",
        beyond=("ViTBackbone",),
        variants={"unbiased": {"qkv_bias": False, "pooler_act": "relu", "pooler_output_size": 20}},
    ),
    Family(
        "deit",
        BLOCK | {"image_size": 16, "patch_size": 4, "encoder_stride": 4},
        modality="image",
        beyond=("DeiTBackbone",),
        variants={"unbiased": {"qkv_bias": False, "pooler_act": "relu", "pooler_output_size": 20}},
    ),
    Family(
        "beit",
        BEIT | {"use_relative_position_bias": True, "use_mask_token": True},
        modality="image",
        variants={
            "shared": {"use_relative_position_bias": False, "use_shared_relative_position_bias": True},
            "absolute": {"use_relative_position_bias": False, "use_absolute_position_embeddings": True},
            "both": {"use_shared_relative_position_bias": True, "layer_scale_init_value": 0.0, "hidden_act": "relu"},
        },
    ),
    Family(
        "dinov2",
        DINO,
        modality="image",
        variants={
            "gated": {"use_swiglu_ffn": True, "mlp_ratio": 3, "qkv_bias": False},
            "plain": {"apply_layernorm": False, "reshape_hidden_states": False, "use_mask_token": False},
        },
    ),
    Family(
        "dinov2_with_registers",
        DINO | {"num_register_tokens": 3},
        modality="image",
        variants={
            "gated": {"use_swiglu_ffn": True, "mlp_ratio": 3, "qkv_bias": False},
            "plain": {"apply_layernorm": False, "reshape_hidden_states": False, "num_register_tokens": 1},
        },
    ),
    Family(
        "dpt",
        BLOCK
        | {"num_hidden_layers": 3, "image_size": 16, "patch_size": 4, "num_labels": 3, "backbone_out_indices": [0, 1, 2]}
        | {"neck_hidden_sizes": [6, 8, 10], "reassemble_factors": [2, 1, 0.5], "fusion_hidden_size": 12},
        modality="image",
        variants={
            "added": {"readout_type": "add", "use_batch_norm_in_fusion_residual": True, "use_auxiliary_head": False},
            "ignored": {"readout_type": "ignore", "use_bias_in_fusion_residual": False, "head_in_index": 1},
        },
    ),
    Family(
        "depth_anything",
        {
            "backbone_config": DINO
            | {"model_type": "dinov2", "image_size": 32, "out_indices": [0, 1, 2], "reshape_hidden_states": False}
        }
        | {"neck_hidden_sizes": [6, 8, 10], "reassemble_factors": [2, 1, 0.5], "fusion_hidden_size": 12}
        | {"reassemble_hidden_size": 32, "patch_size": 4, "head_hidden_size": 7, "initializer_range": 0.2},
        modality="image",
        variants={"metric": {"depth_estimation_type": "metric", "max_depth": 20, "head_in_index": 1}},
    ),
    Family(
        "resnet",
        {"embedding_size": 8, "hidden_sizes": [8, 16, 24], "depths": [2, 1, 1], "out_indices": [0, 1, 3]},
        modality="image",
        variants={
            "basic": {"layer_type": "basic", "hidden_act": "gelu"},
            "downsampled": {"downsample_in_first_stage": True, "downsample_in_bottleneck": True, "out_indices": [2]},
        },
    ),
    Family(
        "convnext",
        {"hidden_sizes": [8, 16, 24], "depths": [2, 1, 1], "num_stages": 3, "patch_size": 2, "layer_scale_init_value": 0.5}
        | {"out_features": ["stage1", "stage3"], "initializer_range": 0.2},
        modality="image",
        variants={"unscaled": {"layer_scale_init_value": 0.0, "hidden_act": "relu"}},
    ),
    Family(
        "segformer",
        {"hidden_sizes": [8, 12, 16], "depths": [2, 1, 1], "num_encoder_blocks": 3, "num_attention_heads": [1, 2, 4]}
        | {"sr_ratios": [4, 2, 1], "patch_sizes": [7, 3, 3], "strides": [4, 2, 2], "mlp_ratios": [2, 3, 4]}
        | {"decoder_hidden_size": 12, "initializer_range": 0.2, "num_labels": 3},
        modality="image",
        variants={"one class": {"num_labels": 1}},
    ),
    Family(
        "swin",
        {"embed_dim": 8, "depths": [2, 2], "num_heads": [2, 4], "window_size": 2, "image_size": 16, "patch_size": 2}
        | {"encoder_stride": 4, "initializer_range": 0.2, "out_features": ["stage1", "stage2"], "drop_path_rate": 0.0},
        modality="image",
        variants={
            "positions": {"use_absolute_embeddings": True, "qkv_bias": False},
            "odd": {"window_size": 3, "patch_size": 3, "encoder_stride": 6, "hidden_act": "relu"},
        },
    ),
    Family(
        "detr",
        {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 8, "decoder_attention_heads": 4}
        | {"encoder_ffn_dim": 20, "decoder_ffn_dim": 20, "num_queries": 6, "num_labels": 3, "use_timm_backbone": False}
        | {
            "backbone_config": {
                "model_type": "resnet",
                "embedding_size": 8,
                "hidden_sizes": [8, 12, 16, 20],
                "depths": [1] * 4,
                "out_indices": [1, 2, 3, 4],
            }
        },
        modality="image",
        variants={"learned": {"position_embedding_type": "learned", "auxiliary_loss": True}},
    ),
    Family(
        "wav2vec2",
        WAVE | XVECTOR | {"num_negatives": 5, "codevector_dim": 16, "proj_codevector_dim": 12, "num_codevectors_per_group": 8},
        modality="audio",
        variants={
            "stable": {"do_stable_layer_norm": True, "feat_extract_norm": "layer", "conv_bias": True, "adapter_attn_dim": 5},
            "weighted": {"use_weighted_layer_sum": True, "num_conv_pos_embeddings": 15, "mask_time_prob": 0.0},
        },
    ),
    Family(
        "whisper",
        {name: value for name, value in SEQ2SEQ.items() if name != "max_position_embeddings"}
        | {"num_mel_bins": 8, "max_source_positions": 6, "max_target_positions": 20, "init_std": SHARP}
        | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3, "classifier_proj_size": 12},
        modality="speech",
        variants={
            "untied": {"tie_word_embeddings": False},
            "uneven": {"decoder_layers": 1, "decoder_ffn_dim": 21, "decoder_attention_heads": 2, "activation_function": "relu"},
        },
    ),
    Family(
        "clip",
        {"text_config": TEXT_TOWER | SHARED, "vision_config": IMAGE_TOWER | SHARED} | SHARED,
        modality="image and text",
    ),
    Family(
        "siglip",
        {"text_config": TEXT_TOWER, "vision_config": IMAGE_TOWER},
        modality="image and text",
    ),
    Family(
        "speech_encoder_decoder",
        {
            "encoder": BLOCK
            | {"model_type": "wav2vec2", "conv_dim": [16, 24], "conv_stride": [5, 4], "conv_kernel": [10, 8]}
            | {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2, "layerdrop": 0.0},
            "decoder": TEXT | {"model_type": "gpt2", "initializer_range": SHARP, "add_cross_attention": True},
            "decoder_start_token_id": 1,
            "pad_token_id": 0,
        },
        modality="speech",
        variants={
            "berts": {
                "decoder": TEXT
                | {"model_type": "bert", "hidden_size": 24, "is_decoder": True, "add_cross_attention": True}
                | {"intermediate_size": 37},
            },
        },
    ),
    Family(
        "layoutlmv3",
        TEXT
        | {"intermediate_size": 37, "initializer_range": SHARP, "coordinate_size": 4, "shape_size": 8, "input_size": 16}
        | {"patch_size": 4, "rel_pos_bins": 8, "max_rel_pos": 6, "rel_2d_pos_bins": 16, "max_rel_2d_pos": 300},
        modality="document",
        variants={
            "order": {"has_spatial_attention_bias": False, "hidden_act": "relu"},
            "plain": {"has_relative_attention_bias": False},
        },
    ),
    Family(
        "hubert",
        WAVE,
        modality="audio",
        variants={
            "stable": {"do_stable_layer_norm": True, "feat_extract_norm": "layer", "conv_bias": True},
            "normed": {"conv_pos_batch_norm": True, "feat_proj_layer_norm": False, "num_conv_pos_embeddings": 15},
        },
    ),
    Family(
        "wavlm",
        WAVE | XVECTOR | {"num_buckets": 16, "max_bucket_distance": 20},
        modality="audio",
        averages_heads=True,
        variants={
            "stable": {"do_stable_layer_norm": True, "feat_extract_norm": "layer", "conv_bias": True},
            "weighted": {"use_weighted_layer_sum": True, "num_conv_pos_embeddings": 15, "mask_time_prob": 0.0},
        },
    ),
    Family(
        "audio_spectrogram_transformer",
        BLOCK | {"patch_size": 4, "frequency_stride": 3, "time_stride": 2, "max_length": 14, "num_mel_bins": 10},
        modality="speech",
        variants={"unbiased": {"qkv_bias": False, "hidden_act": "relu"}},
    ),
    Family(
        "trocr",
        WRITER,
        modality="seq2seq",
        variants={
            "untied": {"tie_word_embeddings": False},
            "scaled": {"scale_embedding": True, "activation_function": "relu", "layernorm_embedding": False},
        },
    ),
    Family(
        "blip",
        {
            # The last ids are those that sequences begin and end with.
            "text_config": TEXT
            | {"intermediate_size": 37, "initializer_range": 0.2, "encoder_hidden_size": 32}
            | {"bos_token_id": 98, "sep_token_id": 97},
            "vision_config": BLOCK | {"image_size": 16, "patch_size": 4, "projection_dim": 32},
            "image_text_hidden_size": 12,
            "projection_dim": 10,
            "initializer_range": 0.2,
        },
        modality="image and text",
        variants={"smoothed": {"text_config": BLIP_TEXT | {"label_smoothing": 0.2, "hidden_act": "relu"}}},
    ),
    Family(
        "vision_encoder_decoder",
        {
            "encoder": BLOCK | {"model_type": "vit", "image_size": 16, "patch_size": 4},
            "decoder": WRITER | {"model_type": "trocr", "decoder_ffn_dim": 37},
            "decoder_start_token_id": 2,
            "pad_token_id": 1,
        },
        modality="image to text",
        rounded=ALL,  # the reference's decoder knows its plain attention alone, and ViT's has a softmax in float32
        variants={
            "narrow": {"decoder": WRITER | {"model_type": "trocr", "d_model": 24}},
            "crossed": {"decoder": WRITER | {"model_type": "trocr", "d_model": 24, "cross_attention_hidden_size": 32}},
            "gpt": {"decoder": TEXT | {"model_type": "gpt2", "initializer_range": SHARP, "add_cross_attention": True}},
        },
    ),
    Family(
        "llava",
        {"text_config": READER | {"model_type": "llama"}, "image_token_index": 90}
        | {"vision_config": IMAGE_TOWER | {"model_type": "clip_vision_model", "initializer_factor": 4.0}},
        modality="pictures",
        rounded=ALL,  # the reference norms in float32
        variants={
            "whole": {
                "vision_feature_select_strategy": "full",
                "vision_feature_layer": [-2, 0],
                "projector_hidden_act": "relu",
            },
            "others": {
                "vision_config": IMAGE_TOWER | {"model_type": "siglip_vision_model"},
                "text_config": READER | {"model_type": "mistral"},
                "multimodal_projector_bias": False,
                "vision_feature_select_strategy": "full",
            },
        },
        exempt={"test_cached_equals_uncached": "a picture is read at once: see test_llava.py"},
    ),
    Family(
        "qwen2_vl",
        PICTURES | {"vision_config": EYE | {"embed_dim": 16, "hidden_size": 32, "mlp_ratio": 2}},
        modality="pictures",
        beyond=("Qwen2VisionTransformerPretrainedModel",),
        rounded=ALL,  # the reference norms and rotates in float32
        variants={"tied": {"tie_word_embeddings": True}},
        exempt=SIZED,
    ),
    Family(
        "qwen2_5_vl",
        PICTURES
        | {
            "vision_config": EYE
            | {"hidden_size": 16, "out_hidden_size": 32, "intermediate_size": 21, "window_size": 16}
            | {"fullatt_block_indexes": [1], "tokens_per_second": 2}
        },
        modality="pictures",
        beyond=("Qwen2_5_VisionTransformerPretrainedModel",),
        rounded=ALL,  # the reference norms and rotates in float32
        variants={"tied": {"tie_word_embeddings": True}},
        exempt=SIZED,
    ),
]
