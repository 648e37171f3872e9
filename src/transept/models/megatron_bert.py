"""Megatron-BERT (Shoeybi et al. 2019): BERT with a norm before each sublayer and after the last layer, for larger models."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.layers import PreNorm
from transept.layers.links import Step
from transept.models.bert import (
    BERT_EMBEDDINGS,
    BertConfig,
    BertEmbeddings,
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertLMHeadModel,
    BertModel,
)


class MegatronBertConfig(BertConfig):
    """Settings of Megatron-BERT; the defaults are those of the model of 345 million parameters."""

    model_type = "megatron-bert"

    vocab_size: int = 29056
    hidden_size: int = 1024
    num_hidden_layers: int = 24
    num_attention_heads: int = 16
    intermediate_size: int = 4096


def attention_names(own: str, **norm: str) -> Table:
    """The names of an attention layer's parts below those of BERT, with what the norm before it is called."""
    parts = {"self.query": "q_proj", "self.key": "k_proj", "self.value": "v_proj", "output.dense": "o_proj"}
    norms = dict.fromkeys(norm.values(), f"{own}_norm")
    inner = {stored: f"{own}.{name}" for stored, name in parts.items()}
    return {**norms, **inner} if "before" in norm else {**inner, **norms}


MEGATRON_BLOCK: Table = {
    "attention": ("", attention_names("self_attn", before="ln")),
    "crossattention": ("", attention_names("cross_attn", before="ln")),
    "ln": "mlp_norm",
    "intermediate.dense": "mlp.up_proj",
    "output.dense": "mlp.down_proj",
}


class UnnormedEmbeddings(BertEmbeddings):
    """The sum of the embeddings of words, of token types and of positions: (B, T) ids -> (B, T, D)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.LayerNorm = nn.Identity()  # type: ignore[assignment]


class MegatronBertModel(BertModel):
    config_class, embeddings_class, block_class = MegatronBertConfig, UnnormedEmbeddings, PreNorm
    base_model_prefix = "bert"
    head_dropouts = ("hidden_dropout_prob",)
    names = Names(
        {
            "embeddings": ("", BERT_EMBEDDINGS),
            "encoder.layer.*": ("layers.*", MEGATRON_BLOCK),
            "encoder.ln": "norm",
            "pooler": "pooler",
        },
        legacy=BertModel.names.legacy,
        ignore=BertModel.names.ignore,
    )

    def __init__(self, config: MegatronBertConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config, add_pooling_layer)
        self.norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)

    def step_classes(self) -> Mapping[str, type[Step]]:
        return {}


class MegatronBertForMaskedLM(BertForMaskedLM, backbone=MegatronBertModel): ...


class MegatronBertForCausalLM(BertLMHeadModel, backbone=MegatronBertModel):
    """Megatron-BERT that predicts the next token; set ``is_decoder``."""


class MegatronBertForNextSentencePrediction(BertForNextSentencePrediction, backbone=MegatronBertModel): ...


class MegatronBertForPreTraining(BertForPreTraining, backbone=MegatronBertModel): ...


class MegatronBertForSequenceClassification(BertForSequenceClassification, backbone=MegatronBertModel): ...


class MegatronBertForTokenClassification(BertForTokenClassification, backbone=MegatronBertModel): ...


class MegatronBertForQuestionAnswering(BertForQuestionAnswering, backbone=MegatronBertModel): ...


class MegatronBertForMultipleChoice(BertForMultipleChoice, backbone=MegatronBertModel): ...
