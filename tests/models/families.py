"""One line per family: from it the whole suite of `test_families.py` derives."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Family:
    """What the suite cannot find out by itself.

    `tiny` are the settings of a small random model. `modality` chooses the inputs. `left_padded_alone` tells whether a row
    padded on the left equals the row alone (positions that are relative or derived from the mask). `variants` are further
    settings to check, on top of `tiny`. `rounded` names the classes whose float64 results the reference computes in
    float32.
    """

    model_type: str
    tiny: dict[str, Any]
    modality: str = "text"
    left_padded_alone: bool = False
    variants: dict[str, dict[str, Any]] = field(default_factory=dict)
    rounded: Container[str] = ()
    decoder: dict[str, Any] | None = None  # settings that make it a decoder, where it can be one
    token_types: bool = False


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
        "vit",
        BLOCK | {"image_size": 16, "patch_size": 4, "encoder_stride": 4},
        modality="image",
        variants={"unbiased": {"qkv_bias": False, "pooler_act": "relu", "pooler_output_size": 20}},
    ),
    Family(
        "wav2vec2",
        BLOCK
        | {"vocab_size": 32, "conv_dim": [16, 24], "conv_stride": [5, 4], "conv_kernel": [10, 8]}
        | {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2, "layerdrop": 0.0, "num_negatives": 5}
        | {"codevector_dim": 16, "proj_codevector_dim": 12, "num_codevectors_per_group": 8, "classifier_proj_size": 12}
        | {"tdnn_dim": [16, 20, 24], "tdnn_kernel": [5, 3, 1], "tdnn_dilation": [1, 2, 1], "xvector_output_dim": 18},
        modality="audio",
        variants={
            "stable": {"do_stable_layer_norm": True, "feat_extract_norm": "layer", "conv_bias": True, "adapter_attn_dim": 5},
            "weighted": {"use_weighted_layer_sum": True, "num_conv_pos_embeddings": 15, "mask_time_prob": 0.0},
        },
    ),
]
