"""UMT5 (Chung et al. 2023): T5 of many languages, in which each layer has biases by distance of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.config.fields import Layers
from transept.config.model import Config
from transept.heads.classify import ForTokenClassification
from transept.heads.seq2seq import ForQuestionAnswering, ForSequenceClassification
from transept.layers import Context, distance_bias
from transept.layers.context import Attended
from transept.models.t5 import (
    ATTENTION,
    ScaledGeneration,
    T5Attention,
    T5Config,
    T5Decoder,
    T5Encoder,
    T5EncoderModel,
    T5Model,
    T5Stack,
    both_files,
    encoder_files,
)


class UMT5Config(T5Config):
    """Settings of UMT5; the defaults are those of umt5-small."""

    model_type = "umt5"

    vocab_size: int = 250112
    d_ff: int = 1024
    num_layers: Layers = 8
    num_heads: int = 6
    feed_forward_proj: str = "gated-gelu"
    decoder_start_token_id: int | None = 0


class UMT5Attention(T5Attention):
    """Attention with a table of biases of its own."""

    distance_bias: nn.Embedding

    def gathered(self, x: Tensor, ctx: Context) -> Attended:
        bias = None if self.cross else distance_bias(self.distance_bias, ctx, x, **self.distances)
        return super().gathered(x, replace(ctx, position_bias=bias, lowered={}))


class UMT5Stack(T5Stack):
    config_class = UMT5Config
    attention_class, shares_bias = UMT5Attention, False

    @classmethod
    def block_keys(cls, c: Config) -> dict[str, Any]:
        biased: Table = {**ATTENTION, "relative_attention_bias": "distance_bias"}
        return super().block_keys(c) | {"layer.0.SelfAttention": ("self_attn", biased)}

    @classmethod
    def stack_keys(cls, c: Config) -> Table:
        return {name: part for name, part in super().stack_keys(c).items() if part != "distance_bias"}


class UMT5Encoder(UMT5Stack, T5Encoder): ...


class UMT5Decoder(UMT5Stack, T5Decoder): ...


BIAS = "layers.*.self_attn.distance_bias"


class UMT5Model(T5Model):
    config_class = UMT5Config
    gguf = both_files(BIAS)
    encoder_class, decoder_class = UMT5Encoder, UMT5Decoder


class UMT5EncoderModel(UMT5Encoder, T5EncoderModel):
    gguf = encoder_files(BIAS)


class UMT5ForConditionalGeneration(ScaledGeneration[UMT5Model]):
    base_model_prefix = ""


class UMT5ForSequenceClassification(ForSequenceClassification[UMT5Model]): ...


class UMT5ForTokenClassification(ForTokenClassification[UMT5EncoderModel]): ...


class UMT5ForQuestionAnswering(ForQuestionAnswering[UMT5Model]):
    base_model_prefix = ""
