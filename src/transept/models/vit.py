"""ViT (Dosovitskiy et al. 2021): a pre-norm encoder over patches of an image, with learned positions and a class token.

Shapes: B batch, C channels, H height, W width, N patches, T = N + 1 positions, D hidden size.
"""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Count, Share, derived
from transept.core.inputs import RecordOptions
from transept.heads.image import ForImageClassification, ForMaskedImageModeling
from transept.kinds.encoder import EncoderConfig, encoder_layers
from transept.kinds.feature_maps import PatchFeatureMaps, StagedConfig
from transept.kinds.image import PatchBackbone, check_patches, resized_positions
from transept.layers import Pooler, PreNorm
from transept.layers.context import Context, read_mask
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


class PatchEmbedding(nn.Conv2d):
    """Makes one state of each patch of an image; what remains at the right and at the bottom is left out."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).flatten(2).transpose(1, 2)


VIT_EMBEDDINGS: Table = {
    "embeddings.cls_token": "cls_token",
    "embeddings.mask_token": "mask_token",
    "embeddings.position_embeddings": "embed_positions",
    "embeddings.patch_embeddings.projection": "embed_patches",
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
        {**VIT_EMBEDDINGS, "layers.*": ("layers.*", VIT_BLOCK), "layernorm": "norm", "pooler": "pooler"},
        files={"encoder.layer.*": ("layers.*", VIT_FILES)},
        optional=("pooler", "mask_token", "embeddings.mask_token"),
    )

    def __init__(self, config: ViTConfig, add_pooling_layer: bool = True, use_mask_token: bool = False) -> None:
        super().__init__(config)
        c = config
        rows, columns = self.grid(*self.image_size)
        self.embed_patches = PatchEmbedding(c.num_channels, c.hidden_size, self.patch_size, stride=self.patch_size)
        self.embed_positions = nn.Parameter(torch.empty(1, self.prefix_tokens + rows * columns, c.hidden_size))
        self.cls_token = nn.Parameter(torch.empty(1, 1, c.hidden_size))
        self.mask_token = nn.Parameter(torch.empty(1, 1, c.hidden_size)) if use_mask_token else None
        self.dropout = nn.Dropout(c.hidden_dropout_prob)
        self.layers = encoder_layers(c, PreNorm, qkv_bias=c.qkv_bias)
        self.norm = nn.LayerNorm(c.hidden_size, c.layer_norm_eps)
        self.pooler = Pooler(c.hidden_size, c.pooler_output_size, c.pooler_act) if add_pooling_layer else None

    def reset_parameters(self) -> None:
        for parameter in (self.embed_positions, self.cls_token):
            nn.init.trunc_normal_(parameter, std=self.config.initializer_range)
        if self.mask_token is not None:
            nn.init.zeros_(self.mask_token)

    def prefix(self) -> Tensor:
        """The states before the patches, (1, 1, D)."""
        return self.cls_token

    def begin(
        self,
        pixel_values: Tensor | None = None,
        bool_masked_pos: Tensor | None = None,
        interpolate_pos_encoding: bool | None = None,
        attention_mask: Tensor | None = None,
        **options: Unpack[RecordOptions],
    ) -> tuple[Tensor, Context]:
        """Embed the patches of images (B, C, H, W), the class token before them.

        The mask token replaces patches where ``bool_masked_pos`` (B, N) is true. With ``interpolate_pos_encoding`` images may
        be of any size, for which the grid of positions is resized. An ``attention_mask`` may be (B, T), or as for text.

        Raises:
            InputError: images of another shape or size, a mask of another shape.
        """
        pixels = self.check_size(self.check_pixels(pixel_values), any_size=bool(interpolate_pos_encoding))
        x = self.embed_patches(pixels)
        if bool_masked_pos is not None:
            x = self.hide(x, bool_masked_pos)
        x = torch.cat([self.prefix().expand(x.shape[0], -1, -1), x], dim=1)
        grids = self.grid(*self.image_size), self.grid(*pixels.shape[2:])
        x = self.dropout(x + resized_positions(self.embed_positions, self.prefix_tokens, *grids))
        ctx = self.context(**options)
        ctx.grid = grids[1]
        if attention_mask is not None:
            ctx.padding, ctx.full_mask = read_mask(attention_mask, x.shape[0], x.shape[1], x.shape[1])
        return x, ctx

    def end(self, x: Tensor, ctx: Context) -> ModelOutput | tuple[Any, ...]:
        out = self.finalize(x)
        pooled = None if self.pooler is None else self.pooler(ctx.first(out))
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
