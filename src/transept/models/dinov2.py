"""DINOv2 (Oquab et al. 2024): a pre-norm encoder over patches of images of any size, trained without labels.

Each branch of a block is scaled by a learned factor per channel. Shapes: B batch, C channels, H height, W width, N patches,
T = N + 1 positions, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.keys import Fused, Table
from transept.checkpoint.names import Names
from transept.config.fields import Count, Deviation, Layers, Multiple, Positive, Share
from transept.config.model import Config
from transept.heads.classify import Classifier
from transept.heads.image import ForImageClassification
from transept.kinds.encoder import LayersStep
from transept.kinds.feature_maps import PatchFeatureMaps, StagedConfig
from transept.kinds.image import PatchBackbone, check_patches
from transept.layers import MLP, Attention, GatedMLP, PreNorm
from transept.layers.context import Context
from transept.layers.conv import ScaledBranch
from transept.layers.grids import GridPositions, MaskedPatchEmbeddings, PatchEmbeddings, Patches, learned_tokens
from transept.layers.links import Step
from transept.models.vit import VIT_ATTENTION_FILES, VIT_EMBEDDINGS
from transept.objectives.classification import widened
from transept.outputs import BackboneOutput, ModelOutput


class Dinov2Config(StagedConfig):
    """Settings of DINOv2; the defaults are those of dinov2-base.

    For feature maps, each layer is a stage; ``apply_layernorm`` norms them, and where ``reshape_hidden_states`` is false they
    stay states (B, T, D).
    """

    model_type = "dinov2"

    hidden_size: Annotated[int, Multiple("num_attention_heads")] = 768
    num_hidden_layers: Layers = 12
    num_attention_heads: Count = 12
    mlp_ratio: Count = 4
    hidden_act: str = "gelu"
    hidden_dropout_prob: Share = 0.0
    attention_probs_dropout_prob: Share = 0.0
    initializer_range: Deviation = 0.02
    layer_norm_eps: float = 1e-6
    image_size: int | list[int] = 224
    patch_size: int | list[int] = 14
    num_channels: Count = 3
    qkv_bias: bool = True
    layerscale_value: Positive = 1.0
    drop_path_rate: Share = 0.0
    use_swiglu_ffn: bool = False
    apply_layernorm: bool = True
    reshape_hidden_states: bool = True
    use_mask_token: bool = True

    @property
    def stages(self) -> int:
        return self.num_hidden_layers

    def validate(self) -> None:
        super().validate()
        check_patches(self)


def block(c: Dinov2Config) -> PreNorm:
    """A layer, whose branches are scaled, and in training left out for some rows."""
    inner, chunk = c.hidden_size * c.mlp_ratio, c.chunk_size_feed_forward
    mlp = MLP(c.hidden_size, inner, c.hidden_act, bias=True, chunk_size=chunk)
    if c.use_swiglu_ffn:  # two thirds as large, in multiples of eight
        mlp = GatedMLP(c.hidden_size, (int(inner * 2 / 3) + 7) // 8 * 8, "silu", bias=True, chunk_size=chunk)
    dropout, heads = c.attention_probs_dropout_prob, c.num_attention_heads
    attention = Attention(c.hidden_size, heads, dropout=dropout, bias=c.qkv_bias, out_bias=True)
    branch = partial(ScaledBranch, c.hidden_size, c.layerscale_value, rate=c.drop_path_rate)
    return PreNorm(attention, mlp, partial(nn.LayerNorm, c.hidden_size, c.layer_norm_eps), branch=branch)


_BLOCK: Table = {
    "norm1": "self_attn_norm",
    "attention": "self_attn",
    "layer_scale1": ("dropout", {"lambda1": "scale"}),
    "norm2": "mlp_norm",
}
_MLP: Table = {"mlp": ("mlp", {"fc1": "up_proj", "fc2": "down_proj"})}
_GATED: Table = {"mlp": "mlp"}


def layer_names(config: Config) -> tuple[str, Table]:
    """The names of layers, whose feed-forward layer may be gated."""
    mlp = _GATED if config.use_swiglu_ffn else _MLP
    return "layers.*", {**_BLOCK, **mlp, "layer_scale2": ("mlp_dropout", {"lambda1": "scale"})}


_LAYER = "encoder.layer.*"


def resized(maps: Tensor, size: Sequence[int], antialias: bool = False) -> Tensor:
    """Maps (1, D, rows, columns) of positions in another size, computed in float32 at least."""
    found = F.interpolate(widened(maps), size=size, mode="bicubic", align_corners=False, antialias=antialias)
    return found.to(maps.dtype)


class Dinov2Model(PatchBackbone):
    """DINOv2 without a head; ``pooler_output`` (B, D) is the normed state of the class token."""

    config_class = Dinov2Config
    reads: ClassVar[tuple[str, ...]] = ("pixel_values", "bool_masked_pos", "labels", "attention_mask")
    names = Names(
        {"embeddings": ("embeddings", VIT_EMBEDDINGS), _LAYER: layer_names, "layernorm": "norm"},
        files={
            f"{_LAYER}.attention": (f"{_LAYER}.attention", VIT_ATTENTION_FILES),
            f"{_LAYER}.mlp": (f"{_LAYER}.mlp", {"weights_in": Fused(("gate_proj", "up_proj")), "weights_out": "down_proj"}),
        },
        optional=("embeddings.mask_token",),
    )
    config: Dinov2Config

    def __init__(self, config: Dinov2Config) -> None:
        super().__init__(config)
        c = config
        self.embeddings = self.make_embeddings(c)
        self.layers = nn.ModuleList(block(c) for _ in range(c.num_hidden_layers))
        self.norm = nn.LayerNorm(c.hidden_size, c.layer_norm_eps)

    def step_classes(self) -> Mapping[str, type[Step]]:
        return {"encoder": LayersStep}

    def make_embeddings(
        self,
        c: Dinov2Config,
        kind: Callable[..., PatchEmbeddings] = MaskedPatchEmbeddings,
        resize: Callable[..., Tensor] = resized,
    ) -> PatchEmbeddings:
        """Patches of images of any size, a class token before them, learned positions, dropout."""
        start, dim = partial(nn.init.trunc_normal_, std=c.initializer_range), c.hidden_size
        patches = Patches(c.num_channels, dim, self.patch_size)
        return kind(
            patches,
            mask_token=nn.Parameter(torch.empty(1, dim)) if c.use_mask_token else None,
            tokens=learned_tokens(dim, "cls_token"),
            positions=GridPositions(patches.grid(*self.image_size), dim, first=1, resize=resize, initialize=start),
            dropout=c.hidden_dropout_prob,
            initialize=start,
        )

    def pooled_places(self, x: Tensor, ctx: Context) -> Tensor | None:
        return ctx.firsts(x)

    def end(self, x: Tensor, ctx: Context) -> ModelOutput | tuple[Any, ...]:
        out = self.finalize(x)
        return self.recorded(BackboneOutput(last_hidden_state=out, pooler_output=ctx.first(out)), x, ctx)


class Dinov2Backbone(PatchFeatureMaps, Dinov2Model):
    """DINOv2 that gives feature maps."""

    reads = ("pixel_values", "attention_mask")

    def feature_map(self, stage: str, x: Tensor, ctx: Context) -> Tensor:
        x = self.finalize(x) if self.config.apply_layernorm else x
        return super().feature_map(stage, x, ctx) if self.config.reshape_hidden_states else x


class Dinov2ForImageClassification(ForImageClassification[Dinov2Model]):
    """DINOv2 that classifies images by the class token and the mean of the patches."""

    def make_head(self, config: Config) -> nn.Module:
        return Classifier(2 * self.backbone.dim, self.classes) if self.classes else nn.Identity()

    def pool(self, states: BackboneOutput, ids: Tensor | None, mask: Tensor | None) -> Tensor:
        x = states.last_hidden_state
        return torch.cat([x[:, 0], x[:, self.backbone.prefix_tokens :].mean(1)], dim=1)
