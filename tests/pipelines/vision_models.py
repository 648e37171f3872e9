"""Tiny random models that see objects, segments and depth, with image processors that make answers of their outputs."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from transept.models import detr, segformer
from transept.outputs import ModelOutput
from transept.preprocess.image.segformer import SegformerImageProcessor
from transept.preprocess.image.vit import ViTImageProcessor

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


class Boxes(ViTImageProcessor):
    """A processor of boxes."""

    def post_process_object_detection(self, outputs: Any, threshold: float = 0.5, target_sizes: Any = None) -> list[Any]:
        found = []
        for logits, boxes, (height, width) in zip(outputs.logits, outputs.pred_boxes, target_sizes, strict=True):
            scores, labels = logits.softmax(-1)[:, :-1].max(-1)
            x, y, w, h = boxes.unbind(-1)
            corners = torch.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2], -1) * torch.tensor([width, height] * 2)
            kept = scores > threshold
            found.append({"scores": scores[kept], "labels": labels[kept], "boxes": corners[kept]})
        return found


class Segments(SegformerImageProcessor):
    """A processor of objects and regions: a segment for each query that wins a pixel."""

    def post_process_instance_segmentation(
        self,
        outputs: Any,
        threshold: float = 0.5,
        mask_threshold: float = 0.5,
        overlap_mask_area_threshold: float = 0.8,
        target_sizes: Any = None,
    ) -> list[Any]:
        found = []
        for logits, masks, size in zip(outputs.logits, outputs.pred_masks, target_sizes, strict=True):
            scores, labels = logits.softmax(-1)[:, :-1].max(-1)
            kept = (scores > threshold).nonzero()[:, 0].tolist()
            if not kept:
                found.append({"segmentation": torch.full(size, -1), "segments_info": []})
                continue
            large = F.interpolate(masks[None, kept].sigmoid(), size=size, mode="bilinear")[0]
            numbers = large.argmax(0) + 1
            infos = [{"id": i + 1, "label_id": int(labels[k]), "score": float(scores[k])} for i, k in enumerate(kept)]
            infos = [info for info in infos if (numbers == info["id"]).any()]
            found.append({"segmentation": numbers, "segments_info": infos})
        return found

    def post_process_panoptic_segmentation(self, outputs: Any, label_ids_to_fuse: Any = None, **options: Any) -> list[Any]:
        return self.post_process_instance_segmentation(outputs, **options)


class DepthOutput(ModelOutput):
    predicted_depth: Tensor | None = None


class TinyForDepthEstimation(segformer.SegformerForSemanticSegmentation):
    """A model whose first class is depth."""

    def forward(self, *given: Any, **inputs: Any) -> Any:
        return DepthOutput(predicted_depth=super().forward(*given, **inputs).logits[:, 0])


def tiny_detr(kind: str = "DetrForObjectDetection") -> Any:
    """A DETR whose queries differ, so that they find different things."""
    torch.manual_seed(0)
    model = getattr(detr, kind)(detr.DetrConfig(**DETR, backbone_config=dict(BACKBONE), id2label=LABELS)).eval()
    torch.nn.init.normal_(model.model.queries.weight, std=3)
    for module in (model.model.decoder, model.class_head, model.box_head):
        for weight in module.parameters():
            if weight.ndim > 1:
                torch.nn.init.normal_(weight, std=0.4)
    return model


def tiny_segformer(kind: str = "SegformerForSemanticSegmentation") -> Any:
    torch.manual_seed(0)
    cls = TinyForDepthEstimation if kind == "TinyForDepthEstimation" else getattr(segformer, kind)
    return cls(segformer.SegformerConfig(**SEGFORMER, id2label=LABELS)).eval()
