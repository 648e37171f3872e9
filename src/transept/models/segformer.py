"""Segformer (Xie et al. 2021): a transformer of four stages without positions, and a head of linear layers for pixels.

Each stage embeds overlapping patches; its attention reads keys and values from a shortened sequence, and its feed-forward
layers look at their neighbours. Shapes: B batch, C channels, H height, W width, T = H * W positions.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import field
from functools import partial
from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Count, Deviation, Share
from transept.config.model import Config
from transept.core.inputs import RecordOptions
from transept.errors import InputError
from transept.heads.image import ForImageClassification
from transept.heads.segment import ForSemanticSegmentation
from transept.kinds.image import ImageBackbone
from transept.layers.block import PreNorm
from transept.layers.context import Context
from transept.layers.conv import ConvNormAct, StochasticDepth, depth_rates
from transept.layers.grids import PatchEmbeddings, Patches, ReducedAttention
from transept.layers.links import Layer, Linked
from transept.layers.mlp import activation
from transept.outputs import BackboneOutput, ModelOutput

_LISTS = ("depths", "sr_ratios", "hidden_sizes", "patch_sizes", "strides", "num_attention_heads", "mlp_ratios")


def _four(*numbers: int) -> Any:
    return field(default_factory=lambda: list(numbers))


class SegformerConfig(Config):
    """Settings of Segformer; the defaults are those of mit-b0. ``layer_norm_eps`` is kept, and read by no norm."""

    model_type = "segformer"
    aliases = {"num_hidden_layers": "num_encoder_blocks"}

    num_channels: Count = 3
    num_encoder_blocks: Count = 4
    depths: list[Count] = _four(2, 2, 2, 2)
    sr_ratios: list[Count] = _four(8, 4, 2, 1)
    hidden_sizes: list[Count] = _four(32, 64, 160, 256)
    patch_sizes: list[Count] = _four(7, 3, 3, 3)
    strides: list[Count] = _four(4, 2, 2, 2)
    num_attention_heads: list[Count] = _four(1, 2, 5, 8)
    mlp_ratios: list[float] = _four(4, 4, 4, 4)
    hidden_act: str = "gelu"
    hidden_dropout_prob: Share = 0.0
    attention_probs_dropout_prob: Share = 0.0
    classifier_dropout_prob: Share = 0.1
    initializer_range: Deviation = 0.02
    drop_path_rate: Share = 0.1
    layer_norm_eps: float = 1e-6
    decoder_hidden_size: Count = 256
    semantic_loss_ignore_index: int = 255
    reshape_last_stage: bool = True

    def validate(self) -> None:
        super().validate()
        for name in _LISTS:
            if len(getattr(self, name)) != self.num_encoder_blocks:
                self.fail(name, f"must have `num_encoder_blocks` ({self.num_encoder_blocks}) numbers")
        if any(size % heads for size, heads in zip(self.hidden_sizes, self.num_attention_heads)):
            self.fail("hidden_sizes", f"must be multiples of `num_attention_heads` ({self.num_attention_heads})")


class MixMLP(Linked):
    """A feed-forward layer with a 3 x 3 convolution of each channel within."""

    def __init__(self, dim: int, inner: int, act: str, dropout: float) -> None:
        super().__init__()
        self.up_proj, self.down_proj = nn.Linear(dim, inner), nn.Linear(inner, dim)
        self.conv = nn.Conv2d(inner, inner, 3, padding=1, groups=inner)
        self.act, self.dropout = activation(act), nn.Dropout(dropout)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, H, W, D) -> (B, H, W, D)."""
        x = self.act(self.conv(self.up_proj(x).permute(0, 3, 1, 2)).permute(0, 2, 3, 1))
        out: Tensor = self.dropout(self.down_proj(self.dropout(x)))
        return out


def block(c: SegformerConfig, stage: int, rate: float) -> PreNorm:
    """A layer over a grid; in training, either part is left out for some rows."""
    dim, heads, ratio = c.hidden_sizes[stage], c.num_attention_heads[stage], c.sr_ratios[stage]
    shares = {"dropout": c.attention_probs_dropout_prob, "out_dropout": c.hidden_dropout_prob}
    attention = ReducedAttention(dim, heads, ratio, **shares)
    mlp = MixMLP(dim, int(dim * c.mlp_ratios[stage]), c.hidden_act, c.hidden_dropout_prob)
    return PreNorm(attention, mlp, partial(nn.LayerNorm, dim), branch=partial(StochasticDepth, rate))


class SegformerStage(Layer):
    """Overlapping patches, blocks, and a norm."""

    def __init__(self, c: SegformerConfig, stage: int, rates: list[float]) -> None:
        super().__init__()
        channels = [c.num_channels, *c.hidden_sizes]
        patch, dim = c.patch_sizes[stage], c.hidden_sizes[stage]
        size, stride, padding = ((side, side) for side in (patch, c.strides[stage], patch // 2))
        patches = Patches(channels[stage], dim, size, stride, padding=padding)
        self.embeddings, self.norm = PatchEmbeddings(patches, norm=nn.LayerNorm(dim)), nn.LayerNorm(dim)
        self.blocks = nn.ModuleList(block(c, stage, rate) for rate in rates)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, C, H, W) -> (B, C', H', W')."""
        x = self.embeddings(x).unflatten(1, self.embeddings.grid(*x.shape[2:]))
        for layer in self.blocks:
            x = layer(x, ctx)
        out: Tensor = self.norm(x).permute(0, 3, 1, 2)
        return out.contiguous()


_REDUCTION = "sequence_reduction"
_BLOCK: Table = {
    "layernorm_before": "self_attn_norm",
    "attention": ("self_attn", {f"{_REDUCTION}.{_REDUCTION}": "reduce", f"{_REDUCTION}.layer_norm": "reduce_norm"}),
    "layernorm_after": "mlp_norm",
    "mlp": ("mlp", {"fc1": "up_proj", "dwconv.dwconv": "conv", "fc2": "down_proj"}),
}
# A file's names of a block -> those of the tree.
_BLOCK_FILES: Table = {
    "layer_norm_1": "layernorm_before",
    **{f"attention.self.{stored}": f"attention.{stored[0]}_proj" for stored in ("query", "key", "value")},
    "attention.output.dense": "attention.o_proj",
    "attention.self.sr": f"attention.{_REDUCTION}.{_REDUCTION}",
    "attention.self.layer_norm": f"attention.{_REDUCTION}.layer_norm",
    "layer_norm_2": "layernorm_after",
    "mlp.dense1": "mlp.fc1",
    "mlp.dense2": "mlp.fc2",
}


class SegformerModel(ImageBackbone):
    """Segformer without a head: ``last_hidden_state`` (B, C, H, W), or (B, T, C) where ``reshape_last_stage`` is false.

    The hidden states are the map (B, C, H, W) of each stage.
    """

    config_class = SegformerConfig
    pooling = "mean"
    names = Names(
        {
            "stages.*": (
                "layers.*",
                {
                    "patch_embeddings": ("embeddings", {"proj": "patches.projection", "layer_norm": "norm"}),
                    "blocks.*": ("blocks.*", _BLOCK),
                    "layer_norm": "norm",
                },
            ),
        },
        files={
            "encoder.patch_embeddings.*": "stages.*.patch_embeddings",
            "encoder.block.*.*": ("stages.*.blocks.*", _BLOCK_FILES),
            "encoder.layer_norm.*": "stages.*.layer_norm",
        },
    )
    config: SegformerConfig

    def __init__(self, config: SegformerConfig) -> None:
        super().__init__(config)
        rates = depth_rates(config.drop_path_rate, config.depths)
        self.layers = nn.ModuleList(SegformerStage(config, stage, each) for stage, each in enumerate(rates))

    @property
    def dim(self) -> int:
        return self.config.hidden_sizes[-1]

    def begin(self, pixel_values: Tensor | None = None, **options: Unpack[RecordOptions]) -> tuple[Tensor, Context]:
        """Images (B, C, H, W) of any size."""
        return self.check_pixels(pixel_values), self.context(**options)

    def end(self, x: Tensor, ctx: Context) -> ModelOutput | tuple[Any, ...]:
        if not self.config.reshape_last_stage:
            x = x.flatten(2).transpose(1, 2)
        if ctx.hidden_states is not None:
            del ctx.hidden_states[0]  # the pixels
        return self.recorded(BackboneOutput(last_hidden_state=x), x, ctx)


class SegformerForImageClassification(ForImageClassification[SegformerModel]):
    def pool(self, states: BackboneOutput, ids: Tensor | None, mask: Tensor | None) -> Tensor:
        x = states.last_hidden_state
        return x.mean((-2, -1)) if self.config.reshape_last_stage else x.mean(1)


class SegformerHead(Linked):
    """Maps of all stages, in one size and with as many channels, joined."""

    def __init__(self, c: SegformerConfig) -> None:
        super().__init__()
        dim = c.decoder_hidden_size
        self.linears = nn.ModuleList(nn.Sequential(OrderedDict(proj=nn.Linear(size, dim))) for size in c.hidden_sizes)
        self.fuse = ConvNormAct(dim * len(c.hidden_sizes), dim, 1)
        self.dropout = nn.Dropout(c.classifier_dropout_prob)
        self.classifier = nn.Conv2d(dim, c.num_labels, kernel_size=1)

    def forward(self, maps: tuple[Tensor, ...]) -> Tensor:
        """(B, C, H, W) of each stage -> (B, K, H, W) in the size of the first."""
        # A product with joined maps is the sum of products with each, and may come before resizing: small maps cost little.
        weight, bias = self.fuse.folded() if self.fuse.folds else (self.fuse.conv.weight, None)
        total: Any = None
        size = maps[0].shape[2:]
        for linear, x, part in zip(self.linears, maps, reversed(weight.flatten(1).chunk(len(maps), dim=1)), strict=True):
            product, shift = _composed(linear, x.shape[1], part)
            shift = shift if total is not None or bias is None else shift + bias
            x = F.linear(x.movedim(1, -1), product, shift).movedim(-1, 1)
            total = x if total is None else total.add_(F.interpolate(x, size=size, mode="bilinear", align_corners=False))
        logits: Tensor = self.classifier(self.dropout(self.fuse.act(total if bias is not None else self.fuse.norm(total))))
        return logits


def _composed(linear: nn.Module, size: int, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The weight and bias of a linear layer over ``size`` numbers, whatever has taken its place, and of a product after it."""
    corners = torch.cat([weight.new_zeros(1, size), torch.eye(size, dtype=weight.dtype, device=weight.device)])
    shift, *rows = (linear(corners) @ weight.T).split([1, size])
    return (rows[0] - shift).T, shift[0]


class SegformerForSemanticSegmentation(ForSemanticSegmentation[SegformerModel]):
    names = Names(
        {
            "decode_head": (
                "head",
                {
                    "linear_projections.*": "linears.*",
                    "linear_fuse": "fuse.conv",
                    "batch_norm": "fuse.norm",
                    "classifier": "classifier",
                },
            )
        },
        files={"decode_head.linear_c": "decode_head.linear_projections"},
    )

    def make_head(self, config: Config) -> nn.Module:
        assert isinstance(config, SegformerConfig)
        if not config.reshape_last_stage:
            raise InputError("the head for pixels needs maps of all stages, but `reshape_last_stage` is false.")
        return SegformerHead(config)
