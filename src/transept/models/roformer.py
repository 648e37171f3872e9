"""RoFormer (Su et al. 2021): BERT's blocks with rotary positions, which it introduced; elements turn with their neighbours."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config.fields import Share, derived
from transept.config.rotary import FOR_ALL
from transept.core.inputs import ENCODER
from transept.heads import classify, language, span
from transept.kinds.encoder import encoder_layers
from transept.kinds.text import TextBackbone
from transept.layers import Attention, Context
from transept.layers.context import Rows
from transept.layers.rotary import rotate_interleaved
from transept.models.bert import BERT_BLOCK, BertConfig, BertModel
from transept.models.marian import SinusoidalPositions
from transept.models.nomic_bert import EMBEDDINGS, TypedEmbeddings


class RoFormerConfig(BertConfig):
    """Settings of RoFormer; ``rotary_value`` lets values turn, too. ``summary_...`` are the head of multiple choice."""

    model_type = "roformer"

    vocab_size: int = 50000
    embedding_size: int = derived(lambda c: c.hidden_size)
    max_position_embeddings: int = 1536
    rotary_value: bool = False
    summary_type: Literal["first", "last", "mean", "cls_index"] = "last"
    summary_use_proj: bool = False
    summary_activation: str | None = None
    summary_last_dropout: Share = 0.0


class RoFormerAttention(Attention):
    """Attention whose neighbouring elements turn with each other, those of values where ``turns_values``."""

    rotate = staticmethod(rotate_interleaved)

    def __init__(self, *args: Any, turns_values: bool, **options: Any) -> None:
        super().__init__(*args, **options)
        self.turns_values = turns_values

    def self_keys(self, q: Tensor, k: Tensor, v: Tensor, ctx: Context) -> tuple[Tensor, Tensor, Tensor | None, bool]:
        return super().self_keys(q, k, self.turn_values(v, ctx), ctx)

    def by_row(self, q: Tensor, k: Tensor, v: Tensor, rows: Rows, ctx: Context) -> Tensor:
        return super().by_row(q, k, self.turn_values(v, ctx), rows, ctx)

    def turn_values(self, v: Tensor, ctx: Context) -> Tensor:
        """Values (B, H, T, E) as they are, or turned."""
        return self.rotate(v, *ctx.rotary[FOR_ALL]) if self.turns_values else v


class RoFormerModel(TextBackbone):
    """RoFormer without a head."""

    config_class = RoFormerConfig
    head_dropouts = ("hidden_dropout_prob",)
    reads = (
        "input_ids",
        "attention_mask",
        "token_type_ids",
        "inputs_embeds",
        *ENCODER,
        "labels",
        "past_key_values",
        "use_cache",
    )
    names = Names(
        {
            "embeddings": ("", EMBEDDINGS),
            "embeddings_project": "embed_proj",
            "encoder.embed_positions": "sines",
            "encoder.layer.*": ("layers.*", BERT_BLOCK),
        },
        legacy=BertModel.names.legacy,
        ignore=BertModel.names.ignore,
        fixed=("sines.weight",),
    )
    config: RoFormerConfig

    def __init__(self, config: RoFormerConfig) -> None:
        super().__init__(config)
        c = config
        self.embeddings = TypedEmbeddings(c, c.embedding_size)
        for stored, own in EMBEDDINGS.items():
            self.alias(str(own), f"embeddings.{stored}")
        same = c.embedding_size == c.hidden_size
        self.embed_proj = nn.Identity() if same else nn.Linear(c.embedding_size, c.hidden_size)
        self.sines = SinusoidalPositions(c.max_position_embeddings, c.hidden_size // c.num_attention_heads)
        attention = partial(RoFormerAttention, rotary=FOR_ALL, turns_values=c.rotary_value)
        self.layers = encoder_layers(c, attention=attention, causal=c.is_decoder, cross=c.add_cross_attention)

    @property
    def embed_dim(self) -> int:
        return self.config.embedding_size

    @property
    def causal(self) -> bool:
        return self.config.is_decoder

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        sin, cos = self.sines(positions)[:, None].to(x.dtype).chunk(2, dim=-1)
        ctx.rotary = {FOR_ALL: (torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1))}
        if types is not None:
            self.check_types(types, x, self.embed_types)
        return self.embed_proj(self.embeddings(inputs_embeds=x, token_type_ids=types))


class RoFormerForMaskedLM(language.PredictionsTask[RoFormerModel], language.ForMaskedLM[RoFormerModel]): ...


class RoFormerForCausalLM(language.PredictionsTask[RoFormerModel], language.ForCausalLM[RoFormerModel]):
    """RoFormer that predicts the next token; set ``is_decoder``."""

    reads = (
        *("input_ids", "attention_mask", "token_type_ids", "inputs_embeds"),
        *(*ENCODER, "past_key_values", "labels", "use_cache"),
    )


class RoFormerForSequenceClassification(classify.ForSequenceClassification[RoFormerModel]):
    head_class = classify.FirstClassifier
    act = "hidden_act"
    names = Names({"classifier": "head"})


class RoFormerForTokenClassification(classify.ForTokenClassification[RoFormerModel]): ...


class RoFormerForQuestionAnswering(span.ForQuestionAnswering[RoFormerModel]): ...


class RoFormerForMultipleChoice(classify.SummaryTask[RoFormerModel], classify.ForMultipleChoice[RoFormerModel]):
    names = Names({"sequence_summary.summary": "head.dense", "classifier": "head.out_proj"})
