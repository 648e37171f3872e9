"""BLIP's networks: a ViT that reads images, and BERTs that read and write text.

Shapes: B batch, C channels, H height, W width, S states of an image, T positions of a text, D hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import partial
from typing import Annotated, Any

from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Deviation, Layers, Multiple, PaddingId, Share
from transept.core.parts import CompositeConfig, PartConfig
from transept.kinds.encoder import EncoderConfig, LayersStep, encoder_layers
from transept.kinds.image import PatchBackbone, check_patches
from transept.kinds.text import TextBackbone
from transept.layers import MLP, Context, FusedAttention, Pooler, PreNorm, standard_layers
from transept.layers.grids import GridPositions, PatchEmbeddings, Patches, learned_tokens
from transept.layers.links import Step
from transept.models.bert import BERT_EMBEDDINGS, BERT_LAYERS, BertLMHeadModel
from transept.objectives.classification import cross_entropy
from transept.objectives.terms import LossTerm
from transept.outputs import BackboneOutput, ModelOutput


class BlipVisionConfig(PartConfig):
    """Settings of the network that reads images; the defaults are those of blip-vqa-base."""

    model_type = "blip_vision_model"
    section = "vision_config"

    hidden_size: Annotated[int, Multiple("num_attention_heads")] = 768
    intermediate_size: int = 3072
    projection_dim: int = 512
    num_hidden_layers: Layers = 12
    num_attention_heads: int = 12
    image_size: int | list[int] = 384
    patch_size: int | list[int] = 16
    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-5
    attention_dropout: Share = 0.0
    initializer_range: Deviation = 1e-10
    num_channels = 3

    def validate(self) -> None:
        super().validate()
        check_patches(self)


class BlipTextConfig(PartConfig, EncoderConfig):
    """Settings of the networks that read and write text; with ``is_decoder`` they have cross-attention to images."""

    model_type = "blip_text_model"
    section = "text_config"

    vocab_size: int = 30524
    encoder_hidden_size: int = 768
    projection_dim: int = 768
    num_attention_heads: int = 8
    max_position_embeddings: int = 512
    hidden_dropout_prob: Share = 0.0
    attention_probs_dropout_prob: Share = 0.0
    bos_token_id: int | None = 30522
    eos_token_id: int | list[int] | None = 2
    pad_token_id: PaddingId | None = 0
    sep_token_id: int | None = 102
    is_decoder: bool = True
    label_smoothing: Share = 0.0


class BlipConfig(CompositeConfig):
    """Settings of BLIP: those of its two kinds of networks, and sizes of what images and texts are compared in."""

    model_type = "blip"
    parts = {"text_config": BlipTextConfig, "vision_config": BlipVisionConfig}

    text_config: BlipTextConfig = field(default_factory=BlipTextConfig)
    vision_config: BlipVisionConfig = field(default_factory=BlipVisionConfig)
    projection_dim: int = 512
    logit_scale_init_value: float = 2.6592
    image_text_hidden_size: int = 256
    label_smoothing: Share = 0.0
    initializer_factor: float = 1.0
    initializer_range: Deviation = 0.02

    def validate(self) -> None:
        super().validate()
        if self.text_config.encoder_hidden_size != (size := self.vision_config.hidden_size):
            self.text_config = self.text_config.with_settings(encoder_hidden_size=size)


_VISION_BLOCK: Table = {
    "self_attn": ("self_attn", {"qkv": "qkv_proj", "projection": "o_proj"}),
    "layer_norm1": "self_attn_norm",
    "mlp": ("mlp", {"fc1": "up_proj", "fc2": "down_proj"}),
    "layer_norm2": "mlp_norm",
}


# What a file of a whole model holds beside the network that reads images.
_BESIDE = frozenset({"text_model", "text_encoder", "text_decoder", "itm_head", "vision_proj", "text_proj"})
_BESIDE |= {"text_projection", "visual_projection", "logit_scale"}


class BlipVisionModel(PatchBackbone):
    """The network that reads images; the pooled state is the class token's, normed twice, as the checkpoints were trained."""

    config_class = BlipVisionConfig
    base_model_prefix = "vision_model"
    reads = ("pixel_values", "interpolate_pos_encoding")
    names = Names(
        {
            "embeddings": (
                "embeddings",
                {
                    "class_embedding": "cls_token",
                    "position_embedding": "positions.table",
                    "patch_embedding": "patches.projection",
                },
            ),
            "encoder.layers.*": ("layers.*", _VISION_BLOCK),
            "post_layernorm": "norm",
        },
        heads=_BESIDE,  # a whole model's file is read too
    )

    def __init__(self, config: BlipVisionConfig) -> None:
        super().__init__(config)
        c = config
        self.embeddings = self.make_embeddings(c)
        norm = partial(nn.LayerNorm, c.hidden_size, c.layer_norm_eps)
        attention = partial(FusedAttention, c.hidden_size, c.num_attention_heads, dropout=c.attention_dropout)
        mlp = partial(MLP, c.hidden_size, c.intermediate_size, c.hidden_act)
        self.layers = standard_layers(c, PreNorm, attention, mlp, norm)
        self.norm: nn.Module = norm()

    def make_embeddings(self, c: BlipVisionConfig) -> PatchEmbeddings:
        """Patches, a class token before them, learned positions."""
        start = partial(nn.init.trunc_normal_, std=c.initializer_range)
        patches = Patches(c.num_channels, c.hidden_size, self.patch_size)
        return PatchEmbeddings(
            patches,
            tokens=learned_tokens(c.hidden_size, "cls_token"),
            positions=GridPositions(patches.grid(*self.image_size), c.hidden_size, first=1, initialize=start),
            image_size=self.image_size,
            initialize=start,
        )

    def pooled_places(self, x: Tensor, ctx: Context) -> Tensor | None:
        return ctx.firsts(x)

    def end(self, x: Tensor, ctx: Context) -> ModelOutput | tuple[Any, ...]:
        out = self.finalize(x)
        return self.recorded(BackboneOutput(last_hidden_state=out, pooler_output=self.finalize(out[:, 0])), x, ctx)


class BlipTextModel(TextBackbone):
    """BERT without segments, with cross-attention to an image's states where the config says ``is_decoder``.

    Each position sees all others; with the argument ``is_decoder`` only those before it.
    """

    config_class = BlipTextConfig
    base_model_prefix = "bert"
    pooling = "pooler"
    reads = (
        *("input_ids", "attention_mask", "position_ids", "inputs_embeds", "encoder_hidden_states"),
        *("encoder_attention_mask", "labels", "past_key_values", "use_cache"),
    )
    names = Names(
        {"embeddings": ("", BERT_EMBEDDINGS), **BERT_LAYERS},
        ignore=("embeddings.position_ids",),
    )

    def __init__(self, config: BlipTextConfig, add_pooling_layer: bool = True, is_decoder: bool = False) -> None:
        super().__init__(config)
        c, self.is_decoder = config, is_decoder
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size, padding_idx=c.pad_token_id)
        self.embed_positions = nn.Embedding(c.max_position_embeddings, c.hidden_size)
        self.embed_norm = nn.LayerNorm(c.hidden_size, c.layer_norm_eps)
        self.dropout = nn.Dropout(c.hidden_dropout_prob)
        self.layers = encoder_layers(c, causal=is_decoder, cross=c.encoder_hidden_size if c.is_decoder else False)
        self.pooler = Pooler(c.hidden_size) if add_pooling_layer else None

    def step_classes(self) -> Mapping[str, type[Step]]:
        return {"encoder": LayersStep}

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        return self.dropout(self.embed_norm(x + self.embed_positions(positions)))

    @property
    def causal(self) -> bool:
        return self.is_decoder

    @property
    def reads_encoder(self) -> bool:
        return bool(self.config.is_decoder)


class BlipTextLMHeadModel(BertLMHeadModel, backbone=BlipTextModel):
    """The network that writes text. Targets are smoothed by the config's ``label_smoothing``."""

    backbone_options = {"add_pooling_layer": False, "is_decoder": True}

    def terms(self, logits: Tensor, labels: Tensor, inputs: dict[str, Any]) -> dict[str, LossTerm]:
        targets = self.targets(labels, logits)
        return {"causal_lm": cross_entropy(logits, targets, smoothing=self.config.label_smoothing)}
