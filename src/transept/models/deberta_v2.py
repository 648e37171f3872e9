"""DeBERTa's second and third version (He et al. 2020, 2021): distances in buckets that widen, and perhaps a convolution.

The third version, trained as ELECTRA is, has the same network.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Count, Signed
from transept.heads import classify, span
from transept.kinds.encoder import EncoderBlock
from transept.layers import Context
from transept.layers.mlp import activation
from transept.models.deberta import (
    DEBERTA_EMBEDDINGS,
    DebertaConfig,
    DebertaModel,
    DisentangledAttention,
    PoolsContext,
    PredictsWords,
    block_names,
)


class DebertaV2Config(DebertaConfig):
    """Settings of DeBERTa-v2 and -v3; the defaults are those of the large second version.

    With ``position_buckets``, distances beyond half of them share buckets that widen up to ``max_relative_positions``.
    ``share_att_key`` lets the projections of contents serve distances, ``norm_rel_ebd="layer_norm"`` norms these, and a
    ``conv_kernel_size`` puts a convolution of ``conv_groups`` beside the first layer.
    """

    model_type = "deberta-v2"

    vocab_size: int = 128100
    hidden_size: int = 1536
    num_hidden_layers: int = 24
    num_attention_heads: int = 24
    intermediate_size: int = 6144
    position_buckets: Signed = -1
    share_att_key: bool = False
    norm_rel_ebd: str = "none"
    conv_kernel_size: int = 0
    conv_groups: Count = 1
    conv_act: str = "tanh"

    def validate(self) -> None:
        super().validate()
        if self.conv_kernel_size and not self.conv_kernel_size % 2:
            self.fail("conv_kernel_size", "must be odd, so that there are as many positions behind the convolution")

    @property
    def score_scale(self) -> float:
        kinds = {"c2p", "p2c"} & {*(self.pos_att_type or ())}
        return 1 / math.sqrt(self.hidden_size // self.num_attention_heads * (1 + len(kinds)))

    @property
    def furthest(self) -> int:
        """The distance from which on all are the same."""
        return self.max_relative_positions if self.max_relative_positions > 0 else self.max_position_embeddings

    @property
    def span(self) -> int:
        return self.position_buckets if self.position_buckets > 0 else self.furthest


class DebertaV2Attention(DisentangledAttention):
    """The same with biases everywhere, and perhaps no projections for distances alone."""

    def make_distances(self, dim: int, size: int, settings: DebertaV2Config) -> None:
        self.shared = settings.share_att_key
        own = () if self.shared else self.compared
        self.pos_k_proj = nn.Linear(dim, size) if "c2p" in own else None
        self.pos_q_proj = nn.Linear(dim, size) if "p2c" in own else None

    def projection(self, kind: str) -> nn.Module:
        if not self.shared:
            return super().projection(kind)
        return self.k_proj if kind == "c2p" else self.q_proj


class ConvLayer(nn.Module):
    """A convolution over the embeddings that is added to what the first layer gives: (B, T, D), (B, T, D) -> (B, T, D)."""

    def __init__(self, c: DebertaV2Config) -> None:
        super().__init__()
        size, kernel = c.hidden_size, c.conv_kernel_size
        self.conv = nn.Conv1d(size, size, kernel, padding=kernel // 2, groups=c.conv_groups)
        self.LayerNorm, self.dropout = nn.LayerNorm(size, c.layer_norm_eps), nn.Dropout(c.hidden_dropout_prob)
        self.act = activation(c.conv_act)

    def forward(self, hidden_states: Tensor, residual_states: Tensor, input_mask: Tensor | None = None) -> Tensor:
        out = self.conv(hidden_states.mT).mT
        real = None if input_mask is None else input_mask[..., None] != 0
        out = out if real is None else out.masked_fill(~real, 0.0)
        out = self.LayerNorm(residual_states + self.act(self.dropout(out)))
        return out if real is None else out * real.to(out.dtype)


class DebertaV2Block(EncoderBlock):
    """BERT's block, of which the first may have a link to a convolution beside it."""

    def whole(self, x: Tensor, ctx: Context) -> Tensor:
        out, conv = super().whole(x, ctx), getattr(self, "conv", None)
        return out if conv is None else conv(x, out, ctx.padding)


_DISTANCES: Table = {
    "attention.self.query_proj": "self_attn.q_proj",
    "attention.self.key_proj": "self_attn.k_proj",
    "attention.self.value_proj": "self_attn.v_proj",
    "attention.self.pos_key_proj": "self_attn.pos_k_proj",
    "attention.self.pos_query_proj": "self_attn.pos_q_proj",
}


class DebertaV2Model(DebertaModel):
    """DeBERTa-v2 and -v3 without a head."""

    config_class, attention_class, block_class = DebertaV2Config, DebertaV2Attention, DebertaV2Block
    base_model_prefix, qkv_bias = "deberta", True
    names = Names(
        {
            "embeddings": ("", DEBERTA_EMBEDDINGS),
            "encoder.layer.*": ("layers.*", block_names(_DISTANCES)),
            "encoder.rel_embeddings": "distances",
            "encoder.LayerNorm": "distances_norm",
            "encoder.conv": "conv",
        },
        legacy=DebertaModel.names.legacy,
        ignore=DebertaModel.names.ignore,
    )
    config: DebertaV2Config

    def __init__(self, config: DebertaV2Config) -> None:
        super().__init__(config)
        c = config
        normed = "layer_norm" in [part.strip() for part in c.norm_rel_ebd.lower().split("|")]
        self.distances_norm = nn.LayerNorm(c.hidden_size, c.layer_norm_eps) if normed else None
        self.conv = ConvLayer(c) if c.conv_kernel_size else None
        if c.conv_kernel_size and c.num_hidden_layers:
            self.layers[0].link("conv", self, "conv")  # type: ignore[operator]

    @property
    def ragged(self) -> bool:  # type: ignore[override]
        """Texts that stand behind one another would be seen by the convolution."""
        return not self.config.conv_kernel_size

    def buckets(self, distance: Tensor) -> Tensor:
        """As near ones they are, farther ones in buckets by their logarithm; of float32, as in training."""
        middle = self.config.span // 2
        if self.config.position_buckets <= 0:
            return distance
        far = (distance.abs().clamp(min=1) / middle).log() / torch.tensor((self.config.furthest - 1) / middle).log()
        bucket = (far * (middle - 1)).ceil() + middle
        return torch.where(distance.abs() <= middle, distance, (bucket * distance.sign()).long())

    def bounds(self, length: int) -> tuple[int, int]:
        span = self.config.span
        if self.config.position_buckets <= 0 or length <= span // 2:
            return super().bounds(length)
        return 0, 2 * span

    def distance_table(self) -> Tensor:
        table, norm = super().distance_table(), self.distances_norm
        return table if norm is None else norm(table)


class DebertaV2ForMaskedLM(PredictsWords[DebertaV2Model]): ...


class DebertaV2ForSequenceClassification(PoolsContext[DebertaV2Model], classify.ForSequenceClassification[DebertaV2Model]): ...


class DebertaV2ForTokenClassification(classify.ForTokenClassification[DebertaV2Model]): ...


class DebertaV2ForQuestionAnswering(span.ForQuestionAnswering[DebertaV2Model]): ...


class DebertaV2ForMultipleChoice(PoolsContext[DebertaV2Model], classify.ForMultipleChoice[DebertaV2Model]): ...
