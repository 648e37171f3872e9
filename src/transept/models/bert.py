"""BERT (Devlin et al. 2019): a post-norm bidirectional encoder with learned positions and segments.

With ``is_decoder`` it attends causally and caches; with ``add_cross_attention`` it also reads an encoder's states.
"""

from __future__ import annotations

from torch import nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import PaddingId, Share
from transept.core.inputs import ENCODER, PER_TOKEN
from transept.heads import classify, language, span
from transept.kinds.encoder import EncoderConfig, encoder_layers
from transept.kinds.text import TextBackbone
from transept.layers import Pooler


class BertConfig(EncoderConfig):
    """Settings of BERT; the defaults are those of bert-base-uncased."""

    model_type = "bert"

    vocab_size: int = 30522
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    pad_token_id: PaddingId | None = 0
    classifier_dropout: Share | None = None
    is_decoder: bool = False
    add_cross_attention: bool = False

    def validate(self) -> None:
        super().validate()
        if self.add_cross_attention and not self.is_decoder:
            self.fail("add_cross_attention", "needs `is_decoder`")


def _attention(stored: str, ours: str) -> Table:
    parts = {"self.query": "q_proj", "self.key": "k_proj", "self.value": "v_proj", "output.dense": "o_proj"}
    return {stored: (ours, parts), f"{stored}.output.LayerNorm": f"{ours}_norm"}


BERT_EMBEDDINGS: Table = {
    "word_embeddings": "embed_tokens",
    "position_embeddings": "embed_positions",
    "token_type_embeddings": "embed_types",
    "LayerNorm": "embed_norm",
}
BERT_BLOCK: Table = {
    **_attention("attention", "self_attn"),
    **_attention("crossattention", "cross_attn"),
    "intermediate.dense": "mlp.up_proj",
    "output.dense": "mlp.down_proj",
    "output.LayerNorm": "mlp_norm",
}
BERT_LAYERS: Table = {"encoder.layer.*": ("layers.*", BERT_BLOCK), "pooler": "pooler"}


class BertModel(TextBackbone):
    """BERT without a head; the pooler of ``add_pooling_layer`` makes ``pooler_output``."""

    config_class = BertConfig
    head_dropouts = ("classifier_dropout", "hidden_dropout_prob")
    pooling = "pooler"
    reads = ("input_ids", "attention_mask", *PER_TOKEN, *ENCODER, "labels", "past_key_values", "use_cache")
    names = Names(
        {"embeddings": ("", BERT_EMBEDDINGS), **BERT_LAYERS},
        legacy={"**.LayerNorm.gamma": "LayerNorm.weight", "**.LayerNorm.beta": "LayerNorm.bias"},
        ignore=("embeddings.position_ids", "embeddings.token_type_ids"),
    )

    def __init__(self, config: BertConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        c = config
        self.embed_tokens = nn.Embedding(c.vocab_size, self.embed_dim, padding_idx=c.pad_token_id)
        self.embed_positions = nn.Embedding(c.max_position_embeddings, self.embed_dim)
        self.embed_types = nn.Embedding(c.type_vocab_size, self.embed_dim)
        self.embed_norm = nn.LayerNorm(self.embed_dim, c.layer_norm_eps)
        self.dropout = nn.Dropout(c.hidden_dropout_prob)
        self.layers = encoder_layers(c, causal=c.is_decoder, cross=c.add_cross_attention)
        self.pooler = Pooler(c.hidden_size) if add_pooling_layer else None

    @property
    def causal(self) -> bool:
        return self.config.is_decoder


class _Predicts(language.VocabularyTask[BertModel]):
    tied_bias = True
    names = language.VocabularyTask.names | Names(
        {
            "cls.predictions": (
                "lm_head",
                {"bias": "bias", "transform.dense": "dense", "transform.LayerNorm": "norm", "decoder": "decoder"},
            )
        }
    )


class BertForMaskedLM(_Predicts, language.ForMaskedLM[BertModel]): ...


class BertLMHeadModel(_Predicts, language.ForCausalLM[BertModel]):
    """BERT that predicts the next token; set ``is_decoder``."""


class BertForNextSentencePrediction(language.ForNextSentencePrediction[BertModel]):
    names = Names({"cls.seq_relationship": "head.out_proj"})


class BertForPreTraining(_Predicts, language.ForPreTraining[BertModel]):
    """BERT as it is pretrained: masked tokens and next sentences."""

    names = _Predicts.names | BertForNextSentencePrediction.names


class BertForSequenceClassification(classify.ForSequenceClassification[BertModel]): ...


class BertForTokenClassification(classify.ForTokenClassification[BertModel]): ...


class BertForQuestionAnswering(span.ForQuestionAnswering[BertModel]): ...


class BertForMultipleChoice(classify.ForMultipleChoice[BertModel]): ...
