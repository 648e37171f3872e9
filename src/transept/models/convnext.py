"""ConvNeXt (Liu et al. 2022): stages of depthwise convolutions and feed-forward layers over channels, like a transformer's.

Shapes: B batch, C channels, H height, W width.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, Unpack

from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config.fields import Count, Deviation, Share
from transept.core.inputs import RecordOptions
from transept.errors import InputError
from transept.heads.image import ForImageClassification
from transept.kinds.feature_maps import NormedFeatureMaps, StagedConfig
from transept.kinds.image import ImageBackbone
from transept.layers.context import Context
from transept.layers.conv import ChannelsFirstNorm, LayerScale, StochasticDepth, depth_rates
from transept.layers.links import Layer, Linked
from transept.layers.mlp import activation
from transept.outputs import BackboneOutput, ModelOutput

_EPS = 1e-6


class ConvNextConfig(StagedConfig):
    """Settings of ConvNeXt; the defaults are those of convnext-tiny-224."""

    model_type = "convnext"
    aliases = {"num_hidden_layers": "num_stages"}

    num_channels: Count = 3
    patch_size: Count = 4
    num_stages: Count = 4
    hidden_sizes: list[Count] = field(default_factory=lambda: [96, 192, 384, 768])
    depths: list[Count] = field(default_factory=lambda: [3, 3, 9, 3])
    hidden_act: str = "gelu"
    initializer_range: Deviation = 0.02
    layer_norm_eps: float = 1e-12
    layer_scale_init_value: float = 1e-6
    drop_path_rate: Share = 0.0
    image_size: int | list[int] = 224

    def validate(self) -> None:
        super().validate()
        for name in ("depths", "hidden_sizes"):
            if len(getattr(self, name)) != self.num_stages:
                self.fail(name, f"must have `num_stages` ({self.num_stages}) numbers")


class ConvNextBlock(Linked):
    """A 7 x 7 convolution of each channel, and a feed-forward layer; the input is added."""

    def __init__(self, c: ConvNextConfig, dim: int, rate: float) -> None:
        super().__init__()
        self.conv = nn.Conv2d(dim, dim, kernel_size=7, padding=3, groups=dim)
        self.norm = nn.LayerNorm(dim, _EPS)
        self.up_proj, self.down_proj = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.act = activation(c.hidden_act)
        self.scale, self.drop = LayerScale(dim, c.layer_scale_init_value), StochasticDepth(rate)

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm(self.conv(x).permute(0, 2, 3, 1))
        out = self.scale(self.down_proj(self.act(self.up_proj(out))))
        added: Tensor = x + self.drop(out.permute(0, 3, 1, 2))
        return added


class ConvNextStage(Layer):
    """Blocks of one size; before them, but in the first stage, a norm and a convolution halve height and width."""

    def __init__(self, c: ConvNextConfig, inputs: int, outputs: int, stride: int, rates: list[float]) -> None:
        super().__init__()
        down = [ChannelsFirstNorm(inputs, _EPS), nn.Conv2d(inputs, outputs, kernel_size=2, stride=stride)]
        self.down = nn.Sequential(*down) if inputs != outputs or stride > 1 else nn.Sequential()
        self.blocks = nn.ModuleList(ConvNextBlock(c, outputs, rate) for rate in rates)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, C, H, W) -> (B, C', H', W')."""
        x = self.down(x)
        for block in self.blocks:
            x = block(x)
        return x


_BLOCK = {
    "dwconv": "conv",
    "layernorm": "norm",
    "pwconv1": "up_proj",
    "pwconv2": "down_proj",
    "layer_scale_parameter": "scale.scale",
}


class ConvNextModel(ImageBackbone):
    """ConvNeXt without a head; ``pooler_output`` (B, C) is the normed mean over all places."""

    config_class = ConvNextConfig
    pooling = "pooler"
    names = Names(
        {
            "embeddings": ("", {"patch_embeddings": "embed_patches", "layernorm": "embed_norm"}),
            "encoder.stages.*": ("layers.*", {"downsampling_layer": "down", "layers.*": ("blocks.*", _BLOCK)}),
            "layernorm": "pooler",
        }
    )
    config: ConvNextConfig

    def __init__(self, config: ConvNextConfig) -> None:
        super().__init__(config)
        c = config
        self.embed_patches = nn.Conv2d(c.num_channels, c.hidden_sizes[0], c.patch_size, c.patch_size)
        self.embed_norm = ChannelsFirstNorm(c.hidden_sizes[0], _EPS)
        sizes = zip([c.hidden_sizes[0], *c.hidden_sizes], c.hidden_sizes, depth_rates(c.drop_path_rate, c.depths))
        self.layers = nn.ModuleList(
            ConvNextStage(c, a, b, 2 if stage else 1, rates) for stage, (a, b, rates) in enumerate(sizes)
        )
        self.pooler = nn.LayerNorm(c.hidden_sizes[-1], c.layer_norm_eps)

    @property
    def dim(self) -> int:
        return self.config.hidden_sizes[-1]

    def begin(self, pixel_values: Tensor | None = None, **options: Unpack[RecordOptions]) -> tuple[Tensor, Context]:
        """Embed the patches of images (B, C, H, W)."""
        pixels = self.check_pixels(pixel_values)
        least = self.config.patch_size * 2 ** (self.config.num_stages - 1)
        if min(pixels.shape[2:]) < least:
            what = f"images of {pixels.shape[2]} x {pixels.shape[3]} pixels are too small for this {type(self).__name__}."
            raise InputError(what, hint=f"It takes {least} x {least} pixels and more.")
        return self.embed_norm(self.embed_patches(pixels)), self.context(**options)

    def end(self, x: Tensor, ctx: Context) -> ModelOutput | tuple[Any, ...]:
        pooled = None if self.pooler is None else self.pooler(x.mean((-2, -1)))
        return self.recorded(BackboneOutput(last_hidden_state=x, pooler_output=pooled), x, ctx)


class ConvNextBackbone(NormedFeatureMaps, ConvNextModel):
    """ConvNeXt that gives feature maps."""

    names = ConvNextModel.names | Names({"hidden_states_norms": "map_norms"})

    def __init__(self, config: ConvNextConfig) -> None:
        super().__init__(config)
        self.pooler = None

    @property
    def stage_channels(self) -> list[int]:
        return [self.config.hidden_sizes[0], *self.config.hidden_sizes]

    def make_map_norm(self, channels: int) -> nn.Module:
        return ChannelsFirstNorm(channels, _EPS)


class ConvNextForImageClassification(ForImageClassification[ConvNextModel]): ...
