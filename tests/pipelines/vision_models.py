"""Tiny random models that see objects, segments and depth."""

from __future__ import annotations

from typing import Any

import torch

from transept.models import depth_anything, detr, dpt, segformer

LABELS = {0: "sea", 1: "boat", 2: "gull"}
BACKBONE: dict[str, Any] = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 12, 16, 20], "depths": [1] * 4}
BACKBONE |= {"out_features": ["stage1", "stage2", "stage3", "stage4"]}
DETR: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 8,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 20,
    "num_queries": 6,
    "use_timm_backbone": False,
}
SEGFORMER: dict[str, Any] = {
    "hidden_sizes": [8, 12, 16],
    "depths": [1, 1, 1],
    "num_encoder_blocks": 3,
    "num_attention_heads": [1, 2, 4],
    "sr_ratios": [4, 2, 1],
    "patch_sizes": [7, 3, 3],
    "strides": [4, 2, 2],
    "mlp_ratios": [2, 3, 4],
    "decoder_hidden_size": 12,
    "initializer_range": 0.5,
}
NECK: dict[str, Any] = {
    "neck_hidden_sizes": [6, 8, 10],
    "reassemble_factors": [2, 1, 0.5],
    "fusion_hidden_size": 12,
    "initializer_range": 0.2,
}
DPT: dict[str, Any] = NECK | {
    "num_hidden_layers": 3,
    "image_size": 48,
    "patch_size": 4,
    "backbone_out_indices": [0, 1, 2],
    "hidden_size": 32,
    "num_attention_heads": 2,
    "intermediate_size": 48,
}
DEPTH_ANYTHING: dict[str, Any] = NECK | {
    "backbone_config": {"model_type": "dinov2", "image_size": 32, "patch_size": 4, "hidden_size": 32, "num_hidden_layers": 3}
    | {"num_attention_heads": 2, "out_indices": [1, 2, 3], "reshape_hidden_states": False},
    "reassemble_hidden_size": 32,
    "patch_size": 4,
    "head_hidden_size": 7,
}


def tiny_detr(kind: str = "DetrForObjectDetection") -> Any:
    """A DETR whose queries differ, so that they find different things."""
    torch.manual_seed(0)
    model = getattr(detr, kind)(detr.DetrConfig(**DETR, backbone_config=dict(BACKBONE), id2label=LABELS)).eval()
    torch.nn.init.normal_(model.backbone.queries.weight, std=3)
    for module in (model.backbone.decoder, model.class_head, model.box_head):
        for weight in module.parameters():
            if weight.ndim > 1:
                torch.nn.init.normal_(weight, std=0.4)
    if kind == "DetrForSegmentation":  # masks that cover something, each somewhere else
        for weight in model.attention.parameters():
            torch.nn.init.normal_(weight, std=0.5)
        for conv in (model.masks.first, model.masks.second):
            torch.nn.init.normal_(conv.conv.weight, std=0.5)
        torch.nn.init.normal_(model.masks.out.weight, std=1)
        torch.nn.init.constant_(model.masks.out.bias, 2)
    return model


def tiny_segformer(kind: str = "SegformerForSemanticSegmentation") -> Any:
    torch.manual_seed(0)
    return getattr(segformer, kind)(segformer.SegformerConfig(**SEGFORMER, id2label=LABELS)).eval()


def tiny_dpt() -> Any:
    torch.manual_seed(0)
    return dpt.DPTForDepthEstimation(dpt.DPTConfig(**DPT)).eval()


def tiny_depth_anything() -> Any:
    torch.manual_seed(0)
    return depth_anything.DepthAnythingForDepthEstimation(depth_anything.DepthAnythingConfig(**DEPTH_ANYTHING)).eval()
