"""ViT (Dosovitskiy et al. 2021): a pre-norm encoder over patches of an image, with learned positions and a class token.

Shapes: B batch, C channels, H height, W width, N patches, T = N + 1 positions, D hidden size.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Count, Share, derived
from transept.heads.image import ForImageClassification, ForMaskedImageModeling
from transept.kinds.encoder import EncoderConfig, encoder_layers
from transept.kinds.feature_maps import PatchFeatureMaps, StagedConfig
from transept.kinds.image import PatchBackbone, check_patches
from transept.layers import Pooler, PreNorm
from transept.layers.context import Context
from transept.layers.grids import GridPositions, MaskedPatchEmbeddings, PatchEmbeddings, Patches, learned_tokens
from transept.outputs import BackboneOutput, ModelOutput


class ViTConfig(StagedConfig, EncoderConfig):
    """Settings of ViT; the defaults are those of vit-base-patch16-224."""

    model_type = "vit"

    hidden_dropout_prob: Share = 0.0
    attention_probs_dropout_prob: Share = 0.0
    image_size: int | list[int] = 224
    patch_size: int | list[int] = 16
    num_channels: Count = 3
    qkv_bias: bool = True
    encoder_stride: Count = 16
    pooler_output_size: int = derived(lambda c: c.hidden_size)
    pooler_act: str = "tanh"

    @property
    def stages(self) -> int:
        return self.num_hidden_layers

    def validate(self) -> None:
        super().validate()
        check_patches(self)


VIT_EMBEDDINGS: Table = {
    "cls_token": "cls_token",
    "mask_token": "mask_token",
    "position_embeddings": "positions.table",
    "patch_embeddings": "patches",
}
VIT_BLOCK: Table = {
    "attention": "self_attn",
    "layernorm_before": "self_attn_norm",
    "layernorm_after": "mlp_norm",
    "mlp": ("mlp", {"fc1": "up_proj", "fc2": "down_proj"}),
}
# Files have older names.
VIT_ATTENTION_FILES = {f"attention.{name}": f"{name[0]}_proj" for name in ("query", "key", "value")} | {
    "output.dense": "o_proj"
}
VIT_FILES: Table = {
    "attention": ("attention", VIT_ATTENTION_FILES),
    "intermediate.dense": "mlp.fc1",
    "output.dense": "mlp.fc2",
}


class ViTModel(PatchBackbone):
    """ViT without a head, but with a pooler; ``use_mask_token`` makes the embedding that stands for masked patches."""

    config_class = ViTConfig
    reads = ("pixel_values", "bool_masked_pos", "labels", "interpolate_pos_encoding", "attention_mask")
    names = Names(
        {
            "embeddings": ("embeddings", VIT_EMBEDDINGS),
            "layers.*": ("layers.*", VIT_BLOCK),
            "layernorm": "norm",
            "pooler": "pooler",
        },
        files={"encoder.layer.*": ("layers.*", VIT_FILES)},
        optional=("pooler", "embeddings.mask_token"),
    )

    def __init__(self, config: ViTConfig, add_pooling_layer: bool = True, use_mask_token: bool = False) -> None:
        super().__init__(config)
        c = config
        self.embeddings = self.make_embeddings(c, nn.Parameter(torch.empty(1, 1, c.hidden_size)) if use_mask_token else None)
        self.layers = encoder_layers(c, PreNorm, qkv_bias=c.qkv_bias)
        self.norm = nn.LayerNorm(c.hidden_size, c.layer_norm_eps)
        self.pooler = Pooler(c.hidden_size, c.pooler_output_size, c.pooler_act) if add_pooling_layer else None

    def make_embeddings(self, c: ViTConfig, mask_token: nn.Parameter | None) -> PatchEmbeddings:
        """Patches, a class token before them, learned positions, dropout."""
        start = partial(nn.init.trunc_normal_, std=c.initializer_range)
        patches = Patches(c.num_channels, c.hidden_size, self.patch_size)
        return MaskedPatchEmbeddings(
            patches,
            mask_token=mask_token,
            tokens=learned_tokens(c.hidden_size, "cls_token"),
            positions=GridPositions(patches.grid(*self.image_size), c.hidden_size, first=1, initialize=start),
            dropout=c.hidden_dropout_prob,
            image_size=self.image_size,
            initialize=start,
        )

    def end(self, x: Tensor, ctx: Context) -> ModelOutput | tuple[Any, ...]:
        out = self.finalize(x)
        pooled = None if self.pooler is None else self.pooler(ctx.to_pool(out))
        return self.recorded(BackboneOutput(last_hidden_state=out, pooler_output=pooled), x, ctx)


class ViTBackbone(PatchFeatureMaps, ViTModel):
    """ViT that gives feature maps: the states of patches after each layer, without the last norm."""

    names = ViTModel.names | Names(optional=("layernorm",))

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config, add_pooling_layer=False)
        self.norm = None


class ViTForImageClassification(ForImageClassification[ViTModel]): ...


class ViTForMaskedImageModeling(ForMaskedImageModeling[ViTModel]):
    """ViT that paints masked patches (SimMIM, Xie et al. 2022)."""
