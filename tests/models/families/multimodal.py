"""Families that read two kinds of input, or read one and write another."""

from __future__ import annotations

from .settings import (
    ALL,
    BLIP_TEXT,
    BLOCK,
    EYE,
    IMAGE_TOWER,
    READER,
    SHARED,
    SHARP,
    SIZED,
    TEXT,
    TEXT_TOWER,
    WITH_PICTURES,
    WRITER,
    Family,
)

MULTIMODAL = [
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
        WITH_PICTURES | {"vision_config": EYE | {"embed_dim": 16, "hidden_size": 32, "mlp_ratio": 2}},
        modality="pictures",
        beyond=("Qwen2VisionTransformerPretrainedModel",),
        rounded=ALL,  # the reference norms and rotates in float32
        variants={"tied": {"tie_word_embeddings": True}},
        exempt=SIZED,
    ),
    Family(
        "qwen2_5_vl",
        WITH_PICTURES
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
