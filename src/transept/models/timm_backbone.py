"""ResNets under the names of the library timm, as published DETR files hold them; the network is that of ``resnet``."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from transept.checkpoint.names import Names
from transept.config.fields import Count
from transept.kinds.feature_maps import StagedConfig
from transept.layers.context import Context
from transept.models.resnet import ResNetBackbone

# Names -> the type of the blocks, and how many each stage has.
SIZES = {
    "resnet18": ("basic", [2, 2, 2, 2]),
    "resnet34": ("basic", [3, 4, 6, 3]),
    "resnet50": ("bottleneck", [3, 4, 6, 3]),
    "resnet101": ("bottleneck", [3, 4, 23, 3]),
    "resnet152": ("bottleneck", [3, 8, 36, 3]),
}


class TimmBackboneConfig(StagedConfig):
    """Settings of a ResNet of timm, by its name ``backbone``; with ``output_stride=16`` the last stage is dilated."""

    model_type = "timm_backbone"

    backbone: str = "resnet50"
    num_channels: Count = 3
    features_only: bool = True
    freeze_batch_norm_2d: bool = False
    output_stride: int | None = None

    embedding_size, hidden_act = 64, "relu"
    downsample_in_first_stage = downsample_in_bottleneck = False
    stage_names = property(lambda self: ["act1", "layer1", "layer2", "layer3", "layer4"])
    layer_type = property(lambda self: SIZES[self.backbone][0])
    depths = property(lambda self: SIZES[self.backbone][1])
    dilates = property(lambda self: self.output_stride == 16)

    @property
    def hidden_sizes(self) -> list[int]:
        """The channels of each stage."""
        return [size * (4 if self.layer_type == "bottleneck" else 1) for size in (64, 128, 256, 512)]

    def validate(self) -> None:
        if self.backbone not in SIZES:
            self.fail("backbone", f"must be one of {', '.join(SIZES)}; other networks of timm are not here")
        if self.output_stride not in (None, 16, 32):
            self.fail("output_stride", "must be 16 or 32")
        super().validate()


_PARTS = {"conv": "conv", "bn": "norm"}
_BLOCK = {f"{timm}{i + 1}": f"convs.{i}.{ours}" for i in range(3) for timm, ours in _PARTS.items()}
_BLOCK |= {"downsample.0": "shortcut.conv", "downsample.1": "shortcut.norm"}


class TimmBackbone(ResNetBackbone):
    """A ResNet that gives feature maps; the first, ``act1``, comes before the stem is pooled."""

    config_class = TimmBackboneConfig  # type: ignore[assignment]
    base_model_prefix = ""
    names = Names(
        {"conv1": "stem.conv", "bn1": "stem.norm"}
        | {f"layer{stage + 1}.*": (f"layers.{stage}.blocks.*", _BLOCK) for stage in range(4)},
        ignore=("fc",),
    )

    def begin(self, *args: Any, **inputs: Any) -> tuple[Tensor, Context]:
        x, ctx = super().begin(*args, **inputs)
        if "act1" in self.out_features:
            ctx.stages = [self.stem(self.check_pixels(args[0] if args else inputs["pixel_values"]))]
        return x, ctx
