"""RemBERT (Chung et al. 2020): BERT for many languages, with small embeddings of words and a larger layer that gives words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config.fields import PaddingId, Share
from transept.config.model import Config
from transept.core.inputs import ENCODER, PER_TOKEN
from transept.heads import language
from transept.layers import Context
from transept.layers.links import Step
from transept.models.bert import (
    BERT_EMBEDDINGS,
    BERT_LAYERS,
    BertConfig,
    BertEmbeddings,
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
)


class RemBertConfig(BertConfig):
    """Settings of RemBERT. ``input_embedding_size`` and ``output_embedding_size`` are those of the words read and given."""

    model_type = "rembert"

    vocab_size: int = 250300
    hidden_size: int = 1152
    num_hidden_layers: int = 32
    num_attention_heads: int = 18
    input_embedding_size: int = 256
    output_embedding_size: int = 1664
    intermediate_size: int = 4608
    hidden_dropout_prob: Share = 0.0
    attention_probs_dropout_prob: Share = 0.0
    classifier_dropout_prob: Share | None = 0.1
    pad_token_id: PaddingId | None = 0
    bos_token_id: int | None = 312
    eos_token_id: int | list[int] | None = 313
    tie_word_embeddings: bool = False


class RemBertEmbeddings(BertEmbeddings):
    """BERT's, of ``input_embedding_size``."""

    def size_of(self, config: Any) -> int:
        return config.input_embedding_size


class RemBertModel(BertModel):
    config_class, embeddings_class = RemBertConfig, RemBertEmbeddings
    base_model_prefix = "rembert"
    head_dropouts = ("classifier_dropout_prob", "hidden_dropout_prob")
    names = Names(
        {
            "embeddings": ("", BERT_EMBEDDINGS),
            "encoder.embedding_hidden_mapping_in": "embed_proj",
            **BERT_LAYERS,
        },
        legacy=BertModel.names.legacy,
        ignore=BertModel.names.ignore,
    )
    config: RemBertConfig

    def __init__(self, config: RemBertConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config, add_pooling_layer)
        self.embed_proj = nn.Linear(config.input_embedding_size, config.hidden_size)

    @property
    def embed_dim(self) -> int:
        return self.config.input_embedding_size

    def step_classes(self) -> Mapping[str, type[Step]]:
        return {}

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        return self.embed_proj(super().embed(x, types, positions, ctx))


class _Predicts(language.LanguageTask[RemBertModel]):
    names = Names({"cls.predictions": ("lm_head", {"dense": "dense", "decoder": "decoder", "LayerNorm": "norm"})})

    def make_head(self, config: Config) -> nn.Module:
        options: dict[str, Any] = {"act": config.hidden_act, "eps": config.layer_norm_eps}
        return language.VocabularyHead(self.backbone.dim, config.output_embedding_size, config.vocab_size, **options)


class RemBertForMaskedLM(_Predicts, language.ForMaskedLM[RemBertModel]): ...


class RemBertForCausalLM(_Predicts, language.ForCausalLM[RemBertModel]):
    """RemBERT that predicts the next token; set ``is_decoder``."""

    reads = ("input_ids", "attention_mask", *PER_TOKEN, *ENCODER, "past_key_values", "labels", "use_cache")


class RemBertForSequenceClassification(BertForSequenceClassification, backbone=RemBertModel): ...


class RemBertForTokenClassification(BertForTokenClassification, backbone=RemBertModel): ...


class RemBertForQuestionAnswering(BertForQuestionAnswering, backbone=RemBertModel): ...


class RemBertForMultipleChoice(BertForMultipleChoice, backbone=RemBertModel): ...
