"""ELECTRA (Clark et al. 2020): BERT's blocks, trained to find the tokens that a small generator has replaced.

Token embeddings may be smaller than the hidden size and are then projected up. There is no pooler. The generator, a model
that fills masks, is of the same class.

Shapes: B batch, T positions, D hidden size, E embedding size.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.core.text import TextBackbone
from transept.fields import Share
from transept.heads.classify import (
    ForMultipleChoice,
    ForReplacedTokenDetection,
    ForSequenceClassification,
    ForTokenClassification,
    SummaryTask,
)
from transept.heads.language import ForCausalLM, ForMaskedLM, LanguageTask
from transept.heads.span import ForQuestionAnswering
from transept.layers.context import Context
from transept.models.bert import BertConfig, BertModel, block


class ElectraConfig(BertConfig):
    """Settings of ELECTRA; the defaults are those of the small discriminator.

    ``summary_...`` are the head of multiple choice: which state it reads (``cls_index`` is the last one), whether a dense
    layer follows, its activation, and the dropout after it.
    """

    model_type = "electra"

    embedding_size: int = 128
    hidden_size: int = 256
    num_attention_heads: int = 4
    intermediate_size: int = 1024
    summary_type: Literal["first", "last", "mean", "cls_index"] = "first"
    summary_use_proj: bool = True
    summary_activation: str | None = "gelu"
    summary_last_dropout: Share = 0.1


class ElectraModel(TextBackbone):
    """ELECTRA without a head: discriminator or generator."""

    config_class = ElectraConfig
    base_model_prefix = "electra"
    head_dropouts = BertModel.head_dropouts
    reads = BertModel.reads
    names = BertModel.names | Names({"embeddings_project": "embed_proj"})
    config: ElectraConfig

    def __init__(self, config: ElectraConfig) -> None:
        super().__init__(config)
        c, size = config, config.embedding_size
        self.embed_tokens = nn.Embedding(c.vocab_size, size, padding_idx=c.pad_token_id)
        self.embed_positions = nn.Embedding(c.max_position_embeddings, size)
        self.embed_types = nn.Embedding(c.type_vocab_size, size)
        self.embed_norm = nn.LayerNorm(size, c.layer_norm_eps)
        self.dropout = nn.Dropout(c.hidden_dropout_prob)
        self.embed_proj = nn.Identity() if size == c.hidden_size else nn.Linear(size, c.hidden_size)
        self.layers = nn.ModuleList(block(c) for _ in range(c.num_hidden_layers))

    @property
    def causal(self) -> bool:
        return self.config.is_decoder

    @property
    def embed_dim(self) -> int:
        return self.config.embedding_size

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        x = x + self.segments(types, x, self.embed_types) + self.embed_positions(positions)
        out: Tensor = self.embed_proj(self.dropout(self.embed_norm(x)))
        return out


class _Predicts(LanguageTask[ElectraModel]):
    """The generator's head over the vocabulary."""

    act = "gelu"
    names = Names(
        {"generator_predictions": ("lm_head", {"LayerNorm": "norm"}), "generator_lm_head": "lm_head.decoder"},
        ties=ForMaskedLM.names.ties,
    )
    make_head = LanguageTask.make_head


class ElectraForMaskedLM(_Predicts, ForMaskedLM[ElectraModel]):
    """ELECTRA's generator: fills masks."""

    omits = (*ForMaskedLM.omits, "encoder_hidden_states", "encoder_attention_mask")


class ElectraForCausalLM(_Predicts, ForCausalLM[ElectraModel]):
    """ELECTRA that predicts the next token; set ``is_decoder``."""


class ElectraForPreTraining(ForReplacedTokenDetection[ElectraModel]):
    """ELECTRA's discriminator: finds replaced tokens."""

    names = Names({"discriminator_predictions": ("head", {"dense_prediction": "out_proj"})})


class ElectraForSequenceClassification(ForSequenceClassification[ElectraModel]):
    act = "gelu"
    names = Names({"classifier": "head"})


class ElectraForTokenClassification(ForTokenClassification[ElectraModel]): ...


class ElectraForQuestionAnswering(ForQuestionAnswering[ElectraModel]): ...


class ElectraForMultipleChoice(SummaryTask[ElectraModel], ForMultipleChoice[ElectraModel]):
    """ELECTRA that chooses, by a summary of each sequence."""

    names = Names({"sequence_summary.summary": "head.dense", "classifier": "head.out_proj"})
