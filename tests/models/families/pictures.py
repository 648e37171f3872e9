"""Families that read pictures."""

from __future__ import annotations

from .settings import BEIT, BLOCK, DINO, Family

PICTURES = [
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
]
