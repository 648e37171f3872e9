"""WavLM (Chen et al. 2022): Wav2Vec2's network, whose attention has a bias for each distance, behind gates.

Each head makes the gate of a frame's biases from its state. The table of biases is shared by all layers.

Shapes: B batch, T frames, H heads, E size of a head.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config.fields import MAX_SIZE, Range
from transept.heads.audio import ForAudioClassification, ForAudioFrameClassification, ForCTC, ForXVector
from transept.kinds.audio import WaveConfig
from transept.layers import Attention, Context, distance_bias
from transept.layers.context import Attended
from transept.models.wav2vec2 import Wav2Vec2Config, Wav2Vec2Model, make_layers


class WavLMConfig(Wav2Vec2Config):
    """Settings of WavLM; the defaults are those of wavlm-base."""

    model_type = "wavlm"

    num_buckets: Annotated[int, Range(4, MAX_SIZE)] = 320
    max_bucket_distance: int = 800
    num_ctc_classes: int = 80
    ctc_loss_reduction: Literal["sum", "mean"] = "mean"

    def validate(self) -> None:
        super().validate()
        if self.max_bucket_distance <= self.num_buckets // 4:
            self.fail("max_bucket_distance", "must be more than a quarter of `num_buckets`")


class WavLMAttention(Attention):
    """Attention whose biases by distance are multiplied by a number that each head makes of a frame."""

    is_prepared = True

    def __init__(self, dim: int, heads: int, *, dropout: float = 0.0) -> None:
        super().__init__(dim, heads, dropout=dropout)
        self.gate, self.gate_scale = nn.Linear(self.head_dim, 8), nn.Parameter(torch.empty(1, heads, 1, 1))

    def reset_parameters(self) -> None:
        nn.init.ones_(self.gate_scale)

    def whole(self, x: Tensor, ctx: Context) -> Attended:
        assert ctx.position_bias is not None
        opened = self.gate(self.split(x)).unflatten(-1, (2, 4)).sum(dim=-1).sigmoid()  # (B, H, T, 2)
        update, reset = opened.split(1, dim=-1)
        factor = update * (reset * self.gate_scale - 1) + 2
        return super().whole(x, replace(ctx, position_bias=factor * ctx.position_bias, lowered={}))


class WavLMModel(Wav2Vec2Model):
    config_class = WavLMConfig
    base_model_prefix = "wavlm"
    names = Wav2Vec2Model.names | Names(
        {
            "encoder.layers.*.attention.gru_rel_pos_const": "layers.*.self_attn.gate_scale",
            "encoder.layers.*.attention.gru_rel_pos_linear": "layers.*.self_attn.gate",
            "encoder.layers.0.attention.rel_attn_embed": "distance_bias",
        }
    )

    def __init__(self, config: WavLMConfig) -> None:
        super().__init__(config)
        self.distance_bias = nn.Embedding(config.num_buckets, config.num_attention_heads)

    def make_layers(self, c: WaveConfig) -> nn.ModuleList:
        layers = make_layers(c, WavLMAttention)
        for layer in layers[:1]:
            layer.layerdrop = 0.0  # type: ignore[assignment]  # the first is never left out
        return layers

    def begin(self, *args: Any, **inputs: Any) -> tuple[Tensor, Context]:
        x, ctx = super().begin(*args, **inputs)
        ctx.queries = ctx.keys = x.shape[1]
        sizes = {"buckets": self.config.num_buckets, "furthest": self.config.max_bucket_distance}
        ctx.position_bias = distance_bias(self.distance_bias, ctx, x, **sizes)
        return x, ctx


class WavLMForCTC(ForCTC[WavLMModel]): ...


class WavLMForSequenceClassification(ForAudioClassification[WavLMModel]): ...


class WavLMForAudioFrameClassification(ForAudioFrameClassification[WavLMModel]): ...


class WavLMForXVector(ForXVector[WavLMModel]): ...
