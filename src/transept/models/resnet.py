"""ResNet (He et al. 2016): stages of residual blocks of convolutions, with a norm over the batch after each.

Strides stand in the 3 x 3 convolution, as in the variant 1.5. Shapes: B batch, C channels, H height, W width.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, Literal, Unpack

from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config.fields import Count
from transept.core.inputs import RecordOptions
from transept.heads.image import ForImageClassification
from transept.kinds.feature_maps import FeatureMaps, StagedConfig
from transept.kinds.image import ImageBackbone
from transept.layers.context import Context
from transept.layers.conv import ConvNormAct
from transept.layers.links import Layer, Linked
from transept.outputs import BackboneOutput, ModelOutput


class ResNetConfig(StagedConfig):
    """Settings of ResNet; the defaults are those of resnet-50."""

    model_type = "resnet"

    num_channels: Count = 3
    embedding_size: Count = 64
    hidden_sizes: list[Count] = field(default_factory=lambda: [256, 512, 1024, 2048])
    depths: list[Count] = field(default_factory=lambda: [3, 4, 6, 3])
    layer_type: Literal["basic", "bottleneck"] = "bottleneck"
    hidden_act: str = "relu"
    downsample_in_first_stage: bool = False
    downsample_in_bottleneck: bool = False

    # Whether the last stage keeps height and width, and its convolutions look farther in return.
    dilates = False

    def validate(self) -> None:
        super().validate()
        if len(self.depths) != len(self.hidden_sizes):
            self.fail("depths", f"must have as many numbers as `hidden_sizes` ({len(self.hidden_sizes)})")
        if self.layer_type == "bottleneck" and min(self.hidden_sizes, default=4) < 4:
            self.fail("hidden_sizes", "must be at least 4 for blocks of the type 'bottleneck'")


class ResidualBlock(Linked):
    """Two 3 x 3 convolutions, or a 3 x 3 one of a fourth of the channels between two 1 x 1; the input is added."""

    def __init__(self, c: ResNetConfig, inputs: int, outputs: int, stride: int, dilation: int = 1) -> None:
        super().__init__()
        if c.layer_type == "basic":
            convs = [ConvNormAct(inputs, outputs, 3, stride, dilation=dilation)]
            convs.append(ConvNormAct(outputs, outputs, act=c.hidden_act, dilation=dilation))
        else:
            strides, inner = (stride, 1) if c.downsample_in_bottleneck else (1, stride), outputs // 4
            convs = [ConvNormAct(inputs, inner, 1, strides[0]), ConvNormAct(inner, inner, 3, strides[1], dilation=dilation)]
            convs.append(ConvNormAct(inner, outputs, 1, act=c.hidden_act))
        self.convs = nn.ModuleList(convs)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else ConvNormAct(inputs, outputs, 1, stride, act="linear")

    def forward(self, x: Tensor) -> Tensor:
        rest = self.shortcut(x)
        for conv in self.convs[:-1]:
            x = conv(x)
        out: Tensor = self.convs[-1](x, rest)
        return out


class ResNetStage(Layer):
    """Blocks of one size, of which the first makes it."""

    def __init__(self, c: ResNetConfig, inputs: int, outputs: int, stride: int, depth: int, dilation: int = 1) -> None:
        super().__init__()
        first = ResidualBlock(c, inputs, outputs, stride)
        self.blocks = nn.ModuleList([first, *(ResidualBlock(c, outputs, outputs, 1, dilation) for _ in range(depth - 1))])

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, C, H, W) -> (B, C', H', W')."""
        for block in self.blocks:
            x = block(x)
        return x


_CONV = {"convolution": "conv", "normalization": "norm"}
_BLOCK = {"shortcut": ("shortcut", _CONV), "layer.*": ("convs.*", _CONV)}


class ResNetModel(ImageBackbone):
    """ResNet without a head; ``pooler_output`` (B, C, 1, 1) is the mean over all places."""

    config_class = ResNetConfig
    pooling = "pooler"
    reads = ("pixel_values", "labels", "output_hidden_states", "return_dict")
    names = Names({"embedder.embedder": ("stem", _CONV), "encoder.stages.*": ("layers.*", {"layers.*": ("blocks.*", _BLOCK)})})
    config: ResNetConfig

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__(config)
        c = config
        self.stem = ConvNormAct(c.num_channels, c.embedding_size, 7, 2, act=c.hidden_act)
        self.stem_pool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        strides, dilations = [2 if c.downsample_in_first_stage else 1, *(2 for _ in c.depths[1:])], [1 for _ in c.depths]
        if c.dilates:
            strides[-1], dilations[-1] = 1, 2
        sizes = zip([c.embedding_size, *c.hidden_sizes], c.hidden_sizes, strides, c.depths, dilations)
        self.layers = nn.ModuleList(ResNetStage(c, *each) for each in sizes)
        self.pooler = nn.AdaptiveAvgPool2d((1, 1))

    @property
    def dim(self) -> int:
        return self.config.hidden_sizes[-1]

    def initialize_module(self, module: nn.Module) -> None:
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear | nn.BatchNorm2d):
            module.reset_parameters()

    def begin(self, pixel_values: Tensor | None = None, **options: Unpack[RecordOptions]) -> tuple[Tensor, Context]:
        """The stem over images (B, C, H, W)."""
        return self.stem_pool(self.stem(self.check_pixels(pixel_values))), self.context(**options)

    def end(self, x: Tensor, ctx: Context) -> ModelOutput | tuple[Any, ...]:
        pooled = None if self.pooler is None else self.pooler(x)
        return self.recorded(BackboneOutput(last_hidden_state=x, pooler_output=pooled), x, ctx)


class ResNetBackbone(FeatureMaps, ResNetModel):
    """ResNet that gives feature maps."""

    @property
    def stage_channels(self) -> list[int]:
        return [self.config.embedding_size, *self.config.hidden_sizes]

    def fixed_modules(self) -> list[nn.Module]:
        return [self.stem.conv, self.stem.norm, self.layers[0].blocks]


class ResNetForImageClassification(ForImageClassification[ResNetModel]):
    names = Names({"classifier.1": "head.out_proj"})
