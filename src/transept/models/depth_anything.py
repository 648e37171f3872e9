"""Depth Anything (Yang et al. 2024): DPT's neck over the states of a DINOv2, and a head for depths.

Relative models give inverse depth up to scale and shift, metric ones metres. Shapes: B batch, H height, W width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any, ClassVar, Literal

from torch import Tensor

from transept.config.fields import Count
from transept.config.model import Config
from transept.core.parts import Part, resolved
from transept.heads.depth import DepthHead, ForDepthEstimation
from transept.kinds.image import pair
from transept.layers.reassemble import Neck
from transept.models.dinov2 import Dinov2Backbone
from transept.models.dpt import NECK, NeckConfig

_SMALL = {"model_type": "dinov2", "image_size": 518, "hidden_size": 384, "num_attention_heads": 6}


class DepthAnythingConfig(NeckConfig):
    """Settings of Depth Anything; the defaults are those of depth-anything-small."""

    model_type = "depth_anything"
    parts = {"backbone_config": _SMALL | {"out_indices": [9, 10, 11, 12], "reshape_hidden_states": False}}

    patch_size: int | list[int] = 14
    reassemble_hidden_size: Count = 384
    neck_hidden_sizes: list[Count] = field(default_factory=lambda: [48, 96, 192, 384])
    fusion_hidden_size: Count = 64
    head_hidden_size: Count = 32
    depth_estimation_type: Literal["relative", "metric"] = "relative"
    max_depth: Count | None = 1

    def validate(self) -> None:
        super().validate()
        inner: Any = self.backbone_config
        patch = self.patch_size if isinstance(self.patch_size, list) else [self.patch_size] * 2
        if patch != list(pair(inner.patch_size)):
            self.fail("patch_size", f"must be that of `backbone_config` ({inner.patch_size})")
        if self.reassemble_hidden_size != inner.hidden_size:
            self.fail("reassemble_hidden_size", f"must be the `hidden_size` of `backbone_config` ({inner.hidden_size})")


class DepthAnythingForDepthEstimation(ForDepthEstimation[Dinov2Backbone]):
    """Depth Anything: ``predicted_depth`` is of the size of the images, without what is left of whole patches."""

    config_class = DepthAnythingConfig
    base_model_prefix = "backbone"
    reads: ClassVar[tuple[str, ...]] = ("pixel_values", "labels")
    names = NECK

    def __init__(self, config: DepthAnythingConfig) -> None:
        super().__init__(config)
        c = config
        c.check_read()
        self.neck = Neck(self.backbone.dim, c.fusion_hidden_size, c.neck_hidden_sizes, c.reassemble_factors, fitted=True)
        metric = c.depth_estimation_type == "metric"
        self.head = DepthHead(c.fusion_hidden_size, c.head_hidden_size, sigmoid=metric, unit=c.max_depth or 1)

    @classmethod
    def backbone_part(cls, config: Config) -> Part:
        return replace(super().backbone_part(config), kind=resolved("Backbone"), field="backbone_config")

    def depth(self, states: Any, size: Sequence[int]) -> Tensor:
        grid, patch = self.backbone.grid(*size), self.backbone.patch_size
        x = self.neck(states.feature_maps, self.backbone.prefix_tokens, grid)[self.config.head_in_index]
        out: Tensor = self.head(x, (grid[0] * patch[0], grid[1] * patch[1]))
        return out
