"""BEiT (Bao et al. 2022): a pre-norm encoder over patches of an image, pretrained to tell the visual tokens of hidden ones.

Attention has no key biases and a learned bias for each distance of rows and columns; branches are scaled by a learned factor
per channel. Shapes: B batch, C channels, H height, W width, N patches, T = N + 1 positions, D hidden size, V visual tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Count, Layers, Share
from transept.config.model import Config
from transept.errors import InputError
from transept.heads.image import ForImageClassification
from transept.heads.segment import ForSemanticSegmentation
from transept.heads.task import Task
from transept.kinds.encoder import EncoderConfig
from transept.kinds.feature_maps import PatchFeatureMaps, StagedConfig
from transept.kinds.image import PatchBackbone, check_patches
from transept.layers import MLP, Attention, PreNorm
from transept.layers.context import Context, mask_for
from transept.layers.conv import ScaledBranch, depth_rates
from transept.layers.grids import GridPositions, MaskedPatchEmbeddings, PatchEmbeddings, Patches, learned_tokens
from transept.layers.links import Linked
from transept.models.beit.decode_heads import FCN, FCN_FILES, FCN_NAMES, UPERNET_FILES, UPERNET_NAMES, UPerNet
from transept.models.vit import VIT_BLOCK, VIT_EMBEDDINGS, VIT_FILES
from transept.objectives.classification import IGNORED, check_is_tensor, counted, cross_entropy
from transept.objectives.terms import LossTerm
from transept.outputs import BackboneOutput, LogitsOutput, ModelOutput


class BeitConfig(StagedConfig, EncoderConfig):
    """Settings of BEiT; the defaults are those of beit-base-patch16-224-pt22k.

    For feature maps, each layer is a stage; with ``add_fpn`` four of them become a pyramid, and where ``reshape_hidden_states``
    is false they stay states (B, T, D).
    """

    model_type = "beit"
    aliases = {"segmentation_indices": "out_indices"}

    vocab_size: Count = 8192
    hidden_dropout_prob: Share = 0.0
    attention_probs_dropout_prob: Share = 0.0
    image_size: int | list[int] = 224
    patch_size: int | list[int] = 16
    num_channels: Count = 3
    use_mask_token: bool = False
    use_absolute_position_embeddings: bool = False
    use_relative_position_bias: bool = False
    use_shared_relative_position_bias: bool = False
    layer_scale_init_value: float = 0.1
    drop_path_rate: Share = 0.1
    use_mean_pooling: bool = True
    pool_scales: list[Count] = field(default_factory=lambda: [1, 2, 3, 6])
    use_auxiliary_head: bool = True
    auxiliary_loss_weight: float = 0.4
    auxiliary_channels: Count = 256
    auxiliary_num_convs: Layers = 1
    auxiliary_concat_input: bool = False
    semantic_loss_ignore_index: int = 255
    add_fpn: bool = False
    reshape_hidden_states: bool = True

    @property
    def stages(self) -> int:
        return self.num_hidden_layers

    def validate(self) -> None:
        super().validate()
        check_patches(self)
        if self.add_fpn and (self.out_indices is None or len(self.out_indices) != 4 or not self.reshape_hidden_states):
            self.fail("add_fpn", "needs four `out_indices`, and `reshape_hidden_states`")


def distances(rows: int, columns: int, device: torch.device) -> Tensor:
    """(T, T) numbers of distances over a grid with a class token before it.

    Those between patches come first, by rows and then by columns; then class to patch, patch to class, class to class.
    """
    high, wide = (torch.arange(side, device=device) for side in (rows, columns))
    down, right = (place[:, None] - place + len(place) - 1 for place in (high, wide))
    index = (down[:, None, :, None] * (2 * columns - 1) + right[None, :, None, :]).view(rows * columns, rows * columns)
    count = (2 * rows - 1) * (2 * columns - 1)
    index = F.pad(F.pad(index, (0, 0, 1, 0), value=count), (1, 0), value=count + 1)
    return torch.cat([F.pad(index[:1, 1:], (1, 0), value=count + 2), index[1:]])


class GridBias(Linked):
    """A bias for each distance over a grid and each head; for grids of other sizes the table is resized."""

    def __init__(self, grid: tuple[int, int], heads: int) -> None:
        super().__init__()
        self.grid = grid
        self.table = nn.Parameter(torch.empty((2 * grid[0] - 1) * (2 * grid[1] - 1) + 3, heads))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.table)

    def forward(self, ctx: Context[Tensor]) -> Tensor:
        """(1, heads, T, T) of a pass whose own are the ``distances`` (T, T) over its grid."""
        table: Tensor = self.table
        if tuple(ctx.grid) != self.grid:
            old, new = ([2 * side - 1 for side in grid] for grid in (self.grid, ctx.grid))
            patches = F.interpolate(table[:-3].T.view(1, -1, *old), size=new, mode="bilinear", align_corners=False)
            table = torch.cat([patches[0].flatten(1).T, table[-3:]])
        # Rows of the transposed table, so that the biases of a head stand together, as attention reads them.
        return table.T.contiguous().index_select(1, ctx.own.flatten()).view(1, -1, *ctx.own.shape)


class BeitAttention(Attention):
    """Attention without key biases, and where the config says so with biases by distance of its own."""

    def __init__(self, c: BeitConfig, grid: tuple[int, int]) -> None:
        super().__init__(c.hidden_size, c.num_attention_heads, dropout=c.attention_probs_dropout_prob)
        self.k_proj = nn.Linear(c.hidden_size, c.hidden_size, bias=False)
        self.position_bias = GridBias(grid, c.num_attention_heads) if c.use_relative_position_bias else None

    def self_keys(self, q: Tensor, k: Tensor, v: Tensor, ctx: Context) -> tuple[Tensor, Tensor, Tensor | None, bool]:
        if self.position_bias is not None:
            bias = self.position_bias(ctx)
            shared = ctx.position_bias
            ctx = replace(ctx, position_bias=bias if shared is None else bias + shared, lowered={})
        return k, v, *mask_for(ctx, self.pattern, q.shape[2], k.shape[2], q)


class BeitPooler(Linked):
    """(B, T, D) -> (B, D): the normed mean of patches, or without a norm the class token."""

    def __init__(self, norm: nn.Module | None) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0] if self.norm is None else self.norm(x[:, 1:].mean(1))


_BIAS: Table = {"relative_position_bias_table": "table"}
_BLOCK: Table = {
    "lambda_1": "dropout.scale",
    "lambda_2": "mlp_dropout.scale",
    **VIT_BLOCK,
    "relative_position_bias": ("self_attn.position_bias", _BIAS),
}
_FILES: Table = {**VIT_FILES, "attention.attention.relative_position_bias": "relative_position_bias"}


class BeitModel(PatchBackbone):
    """BEiT without a head; ``pooler_output`` (B, D) is the normed mean of patches, or the class token."""

    config_class = BeitConfig
    pooling = "pooler"
    reads = ("pixel_values", "bool_masked_pos", "labels", "interpolate_pos_encoding", "attention_mask")
    names = Names(
        {
            "embeddings": ("embeddings", VIT_EMBEDDINGS),
            "shared_position_bias": ("position_bias", _BIAS),
            "layers.*": ("layers.*", _BLOCK),
            "layernorm": "norm",
            "pooler": ("pooler", {"layernorm": "norm"}),
        },
        files={"encoder.relative_position_bias": "shared_position_bias", "encoder.layer.*": ("layers.*", _FILES)},
        ignore=("relative_position_index",),
        optional=("embeddings.mask_token",),
    )
    config: BeitConfig

    def __init__(self, config: BeitConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        c, dim = config, config.hidden_size
        norm = partial(nn.LayerNorm, dim, c.layer_norm_eps)
        self.embeddings = self.make_embeddings(c)
        grid = self.grid(*self.image_size)
        self.position_bias = GridBias(grid, c.num_attention_heads) if c.use_shared_relative_position_bias else None
        self.layers = nn.ModuleList()
        for rate in depth_rates(c.drop_path_rate, [c.num_hidden_layers])[0]:
            branch = partial(ScaledBranch, dim, c.layer_scale_init_value, dropout=c.hidden_dropout_prob, rate=rate)
            mlp = MLP(dim, c.intermediate_size, c.hidden_act, chunk_size=c.chunk_size_feed_forward)
            self.layers.append(PreNorm(BeitAttention(c, grid), mlp, norm, branch=branch))
        self.norm = None if c.use_mean_pooling else norm()
        self.pooler = BeitPooler(norm() if c.use_mean_pooling else None) if add_pooling_layer else None

    def make_embeddings(self, c: BeitConfig) -> PatchEmbeddings:
        """Patches of images of any size, a class token before them, learned positions where there are some, dropout."""
        dim, patches = c.hidden_size, Patches(c.num_channels, c.hidden_size, self.patch_size)
        positions = GridPositions(patches.grid(*self.image_size), dim, first=1) if c.use_absolute_position_embeddings else None
        return MaskedPatchEmbeddings(
            patches,
            mask_token=nn.Parameter(torch.empty(1, 1, dim)) if c.use_mask_token else None,
            tokens=learned_tokens(dim, "cls_token"),
            positions=positions,
            dropout=c.hidden_dropout_prob,
        )

    def begin(self, *args: Any, **inputs: Any) -> tuple[Tensor, Context]:
        """Embed images; positions and biases are resized for their grid, whatever ``interpolate_pos_encoding`` says."""
        x, ctx = super().begin(*args, **inputs)
        ctx.own = distances(*ctx.grid, x.device)
        if self.position_bias is not None:
            ctx.position_bias = self.position_bias(ctx)
        return x, ctx

    def end(self, x: Tensor, ctx: Context) -> ModelOutput | tuple[Any, ...]:
        out = self.finalize(x)
        pooled = None if self.pooler is None else self.pooler(out)
        return self.recorded(BackboneOutput(last_hidden_state=out, pooler_output=pooled), x, ctx)


class BeitForImageClassification(ForImageClassification[BeitModel]): ...


class BeitForMaskedImageModeling(Task[BeitModel]):
    """The visual tokens behind masked patches: ``logits`` (B, N, V) of all patches.

    ``bool_masked_pos`` (B, N) is true for patches that are hidden; ``labels`` (number of these, row by row) are what a
    tokenizer of images makes of them. ``num_items_in_batch`` counts masked patches.
    """

    reads = ("pixel_values", "bool_masked_pos", "labels", "interpolate_pos_encoding", "attention_mask")
    names = Names({"layernorm": "head_norm", "lm_head": "head"})

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.head_norm = nn.LayerNorm(self.backbone.dim, config.layer_norm_eps)
        self.head = nn.Linear(self.backbone.dim, config.vocab_size)

    def predict(self, states: BackboneOutput, inputs: dict[str, Any]) -> LogitsOutput:
        return LogitsOutput(logits=self.head(self.head_norm(states.last_hidden_state[:, 1:])))

    def all_terms(self, output: Any, states: Any, labels: list[Any], inputs: dict[str, Any]) -> dict[str, LossTerm]:
        masked = inputs.get("bool_masked_pos")
        if masked is None:
            raise InputError("`labels` are those of masked patches, but there is no `bool_masked_pos`.")
        return {"masked_patches": cross_entropy(output.logits, scattered(labels[0], masked != 0))}

    def counts(self, labels: Tensor, inputs: dict[str, Any]) -> dict[str, Tensor]:
        return {"masked_patches": counted(labels)}

    def inputs_of_rows(self, inputs: Mapping[str, Any], start: int, stop: int) -> dict[str, Any]:
        labels, masked = inputs.get("labels"), inputs.get("bool_masked_pos")
        if labels is None or masked is None:
            return {}
        return {"labels": labels[int((masked[:start] != 0).sum()) : int((masked[:stop] != 0).sum())]}


def scattered(labels: Tensor, masked: Tensor) -> Tensor:
    """Labels (M) of the places where ``masked`` (B, N) is true, in their order, as (B, N) with -100 elsewhere.

    Raises:
        InputError: another number of labels than of such places.
    """
    check_is_tensor(labels)
    fits = torch.compiler.is_compiling() or labels.device.type != "cpu" or labels.numel() == int(masked.sum())
    if labels.ndim != 1 or not fits:
        what = f"`labels` has the shape {tuple(labels.shape)}, but `bool_masked_pos` is true for {int(masked.sum())} patches."
        raise InputError(what, hint="Pass one label for each masked patch: tokens[bool_masked_pos].")
    masked = masked.to(labels.device)
    if not labels.numel():
        return torch.full_like(masked, IGNORED, dtype=torch.long)
    places = (masked.flatten().cumsum(0) - 1).clamp(min=0)
    return torch.where(masked, labels[places].view_as(masked), IGNORED)


class BeitNeck(Linked):
    """Four maps of one size as a pyramid: four times as large, twice, as it is, and half."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        twice = partial(nn.ConvTranspose2d, dim, dim, kernel_size=2, stride=2)
        self.conv1, self.norm, self.act, self.conv2 = twice(), nn.BatchNorm2d(dim), nn.GELU(), twice()
        self.conv = twice()

    def forward(self, maps: Sequence[Tensor]) -> tuple[Tensor, ...]:
        one, two, three, four = maps
        if min(four.shape[2:]) < 2:
            raise InputError(f"maps of {tuple(four.shape[2:])} patches cannot be halved.", hint="Use larger images.")
        return self.conv2(self.act(self.norm(self.conv1(one)))), self.conv(two), three, F.max_pool2d(four, 2)


_NECK: Table = {
    "fpn": (
        "neck",
        {"fpn1.conv_transpose1": "conv1", "fpn1.normalization": "norm", "fpn1.conv_transpose2": "conv2", "fpn2": "conv"},
    )
}
_NECK_FILES: Table = {
    "fpn1": ("fpn.fpn1", {"0": "conv_transpose1", "1": "normalization", "3": "conv_transpose2"}),
    "fpn2.0": "fpn.fpn2",
}


class BeitForSemanticSegmentation(ForSemanticSegmentation[BeitModel]):
    """A class for each pixel, by UPerNet over the states *before* the layers that ``out_indices`` name."""

    names = Names(
        {**_NECK, "decode_head": ("head", UPERNET_NAMES), "auxiliary_head": ("auxiliary", FCN_NAMES)},
        files={**_NECK_FILES, "decode_head": ("decode_head", UPERNET_FILES), "auxiliary_head": ("auxiliary_head", FCN_FILES)},
    )

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.neck = BeitNeck(self.backbone.dim)

    def make_head(self, config: Config) -> nn.Module:
        assert isinstance(config, BeitConfig)
        if config.out_indices is None or len(config.out_indices) != 4:
            what = f"the head for pixels reads four layers, but `out_indices` is {config.out_indices}."
            raise InputError(what, hint="Set out_indices=[3, 5, 7, 11] for a model of twelve layers.")
        return UPerNet([config.hidden_size] * 4, config.hidden_size, config.num_labels, config.pool_scales)

    def make_auxiliary(self, config: Config) -> nn.Module | None:
        assert isinstance(config, BeitConfig)
        if not config.use_auxiliary_head:
            return None
        sizes = config.hidden_size, config.auxiliary_channels, config.num_labels, config.auxiliary_num_convs
        return FCN(*sizes, skip=config.auxiliary_concat_input)

    def maps(self, states: Any, inputs: dict[str, Any]) -> tuple[Tensor, ...]:
        grid = self.backbone.grid(*inputs["pixel_values"].shape[2:])
        chosen = (states.hidden_states[index - 1] for index in self.config.out_indices)
        pyramid: tuple[Tensor, ...] = self.neck([x[:, 1:].transpose(1, 2).unflatten(2, grid) for x in chosen])
        return pyramid

    def auxiliary_logits(self, maps: tuple[Tensor, ...]) -> Tensor:
        return super().auxiliary_logits(maps[:3])


class BeitBackbone(PatchFeatureMaps, BeitModel):
    """BEiT that gives feature maps: the states of patches after each layer, without the last norm."""

    names = Names(
        {"beit": ("", BeitModel.names.table), **_NECK},
        files={**_NECK_FILES, "": ("beit", {"embeddings": "embeddings", "layernorm": "layernorm", **BeitModel.names.files})},
        ignore=BeitModel.names.ignore,
        optional=(*BeitModel.names.optional, "layernorm"),
    )

    def __init__(self, config: BeitConfig) -> None:
        super().__init__(config, add_pooling_layer=False)
        self.neck = BeitNeck(self.dim) if config.add_fpn else None

    def feature_map(self, stage: str, x: Tensor, ctx: Context) -> Tensor:
        return super().feature_map(stage, x, ctx) if self.config.reshape_hidden_states else x

    def joined(self, maps: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return maps if self.neck is None else self.neck(maps)
