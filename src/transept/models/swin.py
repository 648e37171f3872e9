"""Swin (Liu et al. 2021): a transformer of stages over a grid, whose attention sees windows, shifted in every other layer.

Between stages four neighbours become one state of twice the size. Shapes: B batch, C channels, H height, W width (of the grid),
D hidden size.
"""

from __future__ import annotations

from dataclasses import field
from functools import partial
from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Count, Deviation, Share, derived
from transept.core.inputs import RecordOptions
from transept.errors import InputError
from transept.heads.image import ForImageClassification, ForMaskedImageModeling
from transept.kinds.feature_maps import NormedFeatureMaps, StagedConfig
from transept.kinds.image import PatchBackbone
from transept.layers import MLP, PreNorm
from transept.layers.context import Context
from transept.layers.conv import ChannelsFirstNorm, StochasticDepth, depth_rates
from transept.layers.grids import GridPositions, MaskedPatchEmbeddings, Patches, WindowAttention
from transept.layers.links import Layer, Linked
from transept.outputs import GridLogitsOutput, GridOutput, GridReconstructionOutput, ModelOutput


class SwinConfig(StagedConfig):
    """Settings of Swin; the defaults are those of swin-tiny-patch4-window7-224."""

    model_type = "swin"
    aliases = {"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"}

    image_size: int | list[int] = 224
    patch_size: int | list[int] = 4
    num_channels: Count = 3
    embed_dim: Count = 96
    depths: list[Count] = field(default_factory=lambda: [2, 2, 6, 2])
    num_heads: list[Count] = field(default_factory=lambda: [3, 6, 12, 24])
    window_size: Count = 7
    mlp_ratio: float = 4.0
    qkv_bias: bool = True
    hidden_dropout_prob: Share = 0.0
    attention_probs_dropout_prob: Share = 0.0
    drop_path_rate: Share = 0.1
    hidden_act: str = "gelu"
    use_absolute_embeddings: bool = False
    initializer_range: Deviation = 0.02
    layer_norm_eps: float = 1e-5
    encoder_stride: Count = 32
    hidden_size: int = derived(lambda c: c.embed_dim * 2 ** (len(c.depths) - 1), fixed=True)
    num_layers: int = derived(lambda c: len(c.depths), fixed=True)

    def validate(self) -> None:
        super().validate()
        if len(self.num_heads) != len(self.depths):
            self.fail("num_heads", f"must have as many numbers as `depths` ({len(self.depths)})")

    def check_model(self) -> None:
        super().check_model()
        if any(self.embed_dim * 2**stage % heads for stage, heads in enumerate(self.num_heads)):
            self.fail("num_heads", f"must divide `embed_dim` ({self.embed_dim}), doubled with each stage")


class SwinAttention(WindowAttention):
    """Attention within windows, which in feature maps are shifted over a grid of one window too, as in the reference."""

    def shift_for(self, height: int, width: int, ctx: Context) -> int:
        return self.shift if ctx.stages is not None else super().shift_for(height, width, ctx)


def block(c: SwinConfig, dim: int, heads: int, shift: int, rate: float) -> PreNorm:
    """A layer over the windows of a grid; in training, attention is left out for some rows."""
    shares = {"dropout": c.attention_probs_dropout_prob, "out_dropout": c.hidden_dropout_prob}
    return PreNorm(
        SwinAttention(dim, heads, c.window_size, shift=shift, bias=c.qkv_bias, out_bias=True, **shares),
        MLP(dim, int(c.mlp_ratio * dim), c.hidden_act, chunk_size=c.chunk_size_feed_forward),
        partial(nn.LayerNorm, dim, c.layer_norm_eps),
        branch=partial(StochasticDepth, rate),
        mlp_branch=partial(nn.Dropout, c.hidden_dropout_prob),
    )


class Merge(Linked):
    """Four neighbours become one: (B, H, W, D) -> (B, H / 2, W / 2, 2 D), of odd grids with zeros at the end."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm, self.reduction = nn.LayerNorm(4 * dim), nn.Linear(4 * dim, 2 * dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(x, (0, 0, 0, x.shape[2] % 2, 0, x.shape[1] % 2))
        joined = torch.cat([x[:, row::2, column::2] for column in range(2) for row in range(2)], dim=-1)
        out: Tensor = self.reduction(self.norm(joined))
        return out


class SwinStage(Layer):
    """Blocks over one grid, after which it is merged but in the last stage."""

    def __init__(self, c: SwinConfig, stage: int, rates: list[float]) -> None:
        super().__init__()
        dim, self.side = c.embed_dim * 2**stage, c.window_size
        shifts = (c.window_size // 2 * (layer % 2) for layer in range(len(rates)))  # of every other layer
        parts = zip(shifts, rates, strict=True)
        self.blocks = nn.ModuleList(block(c, dim, c.num_heads[stage], shift, rate) for shift, rate in parts)
        self.merge = Merge(dim) if stage < len(c.depths) - 1 else None

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        height, width = x.shape[1:3]
        if min(height, width) < self.side and ctx.stages is None:
            what = f"a stage has {height} x {width} states, fewer than a window of {self.side} x {self.side}."
            raise InputError(what, hint="Enlarge the images, or use the class for feature maps.")
        for layer in self.blocks:
            x = layer(x, ctx)
        if ctx.stages is not None:
            ctx.stages.append(x.permute(0, 3, 1, 2))
        return x if self.merge is None else self.merge(x)


_BLOCK: Table = {
    "attention": ("self_attn", {"relative_position_bias.relative_position_bias_table": "distance_bias"}),
    "layernorm_before": "self_attn_norm",
    "layernorm_after": "mlp_norm",
    "mlp": ("mlp", {"fc1": "up_proj", "fc2": "down_proj"}),
}
# A file's names of a block -> those of the tree.
_BLOCK_FILES: Table = {
    **{f"attention.self.{stored}": f"attention.{stored[0]}_proj" for stored in ("query", "key", "value")},
    "attention.self": "attention.relative_position_bias",
    "attention.output.dense": "attention.o_proj",
    "intermediate.dense": "mlp.fc1",
    "output.dense": "mlp.fc2",
}
_BLOCKS = "encoder.layers.*.blocks.*"


class PaddedPatches(Patches):
    """Patches of pictures that are padded to whole ones with zeros at the right and at the bottom."""

    def forward(self, pixel_values: Tensor) -> Tensor:
        (height, width), (rows, columns) = self.size, pixel_values.shape[2:]
        return super().forward(F.pad(pixel_values, (0, -columns % width, 0, -rows % height)))

    def grid(self, height: int, width: int) -> tuple[int, int]:
        return -(-height // self.size[0]), -(-width // self.size[1])


class SwinEmbeddings(MaskedPatchEmbeddings):
    """Normed patches, of which some may be masked, and learned positions, if there are some."""

    norm: nn.Module

    def forward(  # type: ignore[override]
        self,
        pixel_values: Tensor,
        bool_masked_pos: Tensor | None = None,
        interpolate_pos_encoding: bool | None = None,
    ) -> tuple[Tensor, tuple[int, int]]:
        """(B, C, H, W) -> (B, N, D), and the rows and columns of patches."""
        grid, x = self.grid_of(pixel_values, interpolate_pos_encoding), self.norm(self.patches(pixel_values))
        x = x if bool_masked_pos is None else self.hide(x, bool_masked_pos)
        x = x if self.positions is None else x + self.positions(grid)
        return self.dropout(x), grid


class SwinModel(PatchBackbone):
    """Swin without a head: ``last_hidden_state`` (B, H * W, D), and its mean as ``pooler_output`` (B, D)."""

    config_class = SwinConfig
    pooling = "pooler"
    reads = ("pixel_values", "bool_masked_pos", "labels", "interpolate_pos_encoding")
    names = Names(
        {
            "embeddings": (
                "embeddings",
                {
                    "mask_token": "mask_token",
                    "position_embeddings": "positions.table",
                    "patch_embeddings": "patches",
                    "norm": "norm",
                },
            ),
            "encoder.layers.*": (
                "layers.*",
                {
                    "blocks.*": ("blocks.*", _BLOCK),
                    "downsample": ("merge", {"reduction": "reduction", "norm": "norm"}),
                },
            ),
            "layernorm": "norm",
        },
        files={_BLOCKS: (_BLOCKS, _BLOCK_FILES)},
        ignore=("relative_position_index", "attn_mask"),
        optional=("embeddings.mask_token",),
    )
    config: SwinConfig

    def __init__(self, config: SwinConfig, add_pooling_layer: bool = True, use_mask_token: bool = False) -> None:
        super().__init__(config)
        c = config
        self.embeddings = self.make_embeddings(c, nn.Parameter(torch.empty(1, 1, c.embed_dim)) if use_mask_token else None)
        rates = depth_rates(c.drop_path_rate, c.depths)
        self.layers = nn.ModuleList(SwinStage(c, stage, each) for stage, each in enumerate(rates))
        self.norm = nn.LayerNorm(c.hidden_size, c.layer_norm_eps)
        self.pooler = nn.AdaptiveAvgPool1d(1) if add_pooling_layer else None

    def make_embeddings(self, c: SwinConfig, mask_token: nn.Parameter | None) -> SwinEmbeddings:
        """Normed patches, learned positions where there are some, dropout."""
        (height, width), (rows, columns) = self.image_size, self.patch_size
        positions = GridPositions((height // rows, width // columns), c.embed_dim) if c.use_absolute_embeddings else None
        return SwinEmbeddings(
            PaddedPatches(c.num_channels, c.embed_dim, self.patch_size),
            mask_token=mask_token,
            norm=nn.LayerNorm(c.embed_dim),
            positions=positions,
            dropout=c.hidden_dropout_prob,
            image_size=self.image_size if positions else None,
        )

    @property
    def reduction(self) -> int:
        return int(2 ** (len(self.config.depths) - 1))

    def begin(  # type: ignore[override]
        self,
        pixel_values: Tensor | None = None,
        bool_masked_pos: Tensor | None = None,
        interpolate_pos_encoding: bool | None = None,
        **options: Unpack[RecordOptions],
    ) -> tuple[Tensor, Context]:
        """Embed images (B, C, H, W) of any size; those for learned positions of their own size, but on request."""
        pixels = self.check_pixels(pixel_values)
        x, grid = self.embeddings(pixels, bool_masked_pos, interpolate_pos_encoding)
        return x.unflatten(1, grid), self.context(**options)

    def end(self, x: Tensor, ctx: Context) -> ModelOutput | tuple[Any, ...]:
        out = self.finalize(x).flatten(1, 2)
        pooled = None if self.pooler is None else self.pooler(out.transpose(1, 2)).flatten(1)
        output = GridOutput(last_hidden_state=out, pooler_output=pooled)
        if ctx.hidden_states is not None:
            states = [*ctx.hidden_states, x]
            output["reshaped_hidden_states"] = tuple(state.permute(0, 3, 1, 2) for state in states)
            ctx.hidden_states, x = [state.flatten(1, 2) for state in states[:-1]], x.flatten(1, 2)
        return self.recorded(output, x, self.last_attentions(ctx))

    def last_attentions(self, ctx: Context) -> Context:
        """The context with the weights of each stage's last block alone."""
        if ctx.attentions:
            ends = torch.tensor(self.config.depths).cumsum(0).tolist()
            ctx.attentions = [ctx.attentions[end - 1] for end in ends]
        return ctx


class SwinBackbone(NormedFeatureMaps, SwinModel):
    """Swin that gives feature maps: of each stage before its states are merged."""

    base_model_prefix = ""
    names = Names(
        {"swin": ("", SwinModel.names.table), "hidden_states_norms": "map_norms"},
        files={"embeddings": "swin.embeddings", "encoder": "swin.encoder", _BLOCKS: (f"swin.{_BLOCKS}", _BLOCK_FILES)},
        legacy={"layernorm": "swin.layernorm"},
        ignore=SwinModel.names.ignore,
        optional=("swin.embeddings.mask_token", "embeddings.mask_token"),
        absent=("norm",),  # files of earlier versions have no such norm
    )

    def __init__(self, config: SwinConfig) -> None:
        super().__init__(config)
        self.pooler = None  # the norm is used by no map, but it belongs to the model

    @property
    def stage_channels(self) -> list[int]:
        dim = self.config.embed_dim
        return [dim, *(dim * 2**stage for stage in range(len(self.config.depths)))]

    def make_map_norm(self, channels: int) -> nn.Module:
        return ChannelsFirstNorm(channels)

    def begin(self, *args: Any, **inputs: Any) -> tuple[Tensor, Context]:
        x, ctx = super().begin(*args, **inputs)
        ctx.stages = [x.permute(0, 3, 1, 2)]
        return x, ctx

    def run(self, x: Tensor, ctx: Context, start: int = 0, stop: int | None = None) -> Tensor:
        return SwinModel.run(self, x, ctx, start, stop)  # a stage keeps its map itself

    def end(self, x: Tensor, ctx: Context) -> ModelOutput | tuple[Any, ...]:
        assert ctx.stages is not None
        if ctx.hidden_states is not None:
            ctx.hidden_states = ctx.stages[:-1]
        return super().end(ctx.stages[-1], self.last_attentions(ctx))


class SwinForImageClassification(ForImageClassification[SwinModel]):
    output_class = GridLogitsOutput


class SwinForMaskedImageModeling(ForMaskedImageModeling[SwinModel]):
    """Swin that paints masked patches (SimMIM, Xie et al. 2022)."""

    output_class = GridReconstructionOutput
    reads = ("pixel_values", "bool_masked_pos", "interpolate_pos_encoding")
