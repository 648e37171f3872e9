"""BERT (Devlin et al. 2019): a post-norm bidirectional encoder with learned positions and segments.

With ``is_decoder`` it attends causally and caches; with ``add_cross_attention`` it also reads an encoder's states.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from transept.checkpoint.gguf import POST_NORM
from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import PaddingId, Share
from transept.core.inputs import ENCODER, PER_TOKEN
from transept.heads import classify, language, span
from transept.kinds.encoder import EncoderBlock, EncoderConfig, LayersStep, encoder_layers
from transept.kinds.text import TextBackbone
from transept.layers import Block, Context, Pooler
from transept.layers.links import Step


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

    def to_gguf(self) -> dict[str, Any]:
        return {"attention.causal": self.is_decoder}


def _attention(stored: str, ours: str) -> Table:
    parts = {"self.query": "q_proj", "self.key": "k_proj", "self.value": "v_proj", "output.dense": "o_proj"}
    # What the reference calls attention ends with the sum and the norm: a step of the layer, see `EncoderBlock`.
    inner = {f"{stored}.{name}": f"{ours}.{own}" for name, own in parts.items()}
    return {**inner, f"{stored}.output.LayerNorm": f"{ours}_norm"}


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


class BertEmbeddings(nn.Module):
    """The sum of the embeddings of words, of token types and of positions, normed: (B, T) ids -> (B, T, D)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        c, size = config, self.size_of(config)
        self.word_embeddings = nn.Embedding(c.vocab_size, size, padding_idx=c.pad_token_id)
        self.position_embeddings = self.make_positions(c, size)
        self.make_types(c, size)
        self.LayerNorm, self.dropout = nn.LayerNorm(size, c.layer_norm_eps), nn.Dropout(c.hidden_dropout_prob)

    def size_of(self, config: Any) -> int:
        """D, which is the hidden size, but where embeddings are smaller."""
        return config.hidden_size

    def make_positions(self, config: BertConfig, size: int) -> nn.Embedding:
        return nn.Embedding(config.max_position_embeddings, size)

    def make_types(self, config: BertConfig, size: int) -> None:
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, size)

    def words(self, ids: Tensor | None, embeds: Tensor | None) -> Tensor:
        words: Any = self.word_embeddings(ids) if embeds is None else embeds
        return words

    def segments(self, types: Tensor | None, words: Tensor) -> Tensor:
        """(1 or B, T, D): the embeddings of token types, the first where the caller gives none."""
        table = self.token_type_embeddings
        return table.weight[0].expand(1, words.shape[1], -1) if types is None else table(types)

    def end(self, x: Tensor) -> Tensor:
        """What becomes of the sum."""
        return self.dropout(self.LayerNorm(x))

    def positions(self, ids: Tensor | None, x: Tensor, past: int) -> Tensor:
        """(1 or B, T): positions where the caller gives none."""
        return torch.arange(past, past + x.shape[1], device=x.device)[None]

    def forward(
        self,
        input_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values_length: int = 0,
    ) -> Tensor:
        words = self.words(input_ids, inputs_embeds)
        positions = self.positions(input_ids, words, past_key_values_length) if position_ids is None else position_ids
        return self.end(words + self.segments(token_type_ids, words) + self.position_embeddings(positions))


class BertModel(TextBackbone):
    """BERT without a head; the pooler of ``add_pooling_layer`` makes ``pooler_output``."""

    config_class = BertConfig
    embeddings_class: ClassVar[type[BertEmbeddings]] = BertEmbeddings
    block_class: ClassVar[type[Block]] = EncoderBlock
    head_dropouts: ClassVar[tuple[str | float, ...]] = ("classifier_dropout", "hidden_dropout_prob")
    pooling = "pooler"
    reads: ClassVar[tuple[str, ...]] = (
        "input_ids",
        "attention_mask",
        *PER_TOKEN,
        *ENCODER,
        "labels",
        "past_key_values",
        "use_cache",
    )
    names = Names(
        {"embeddings": ("", BERT_EMBEDDINGS), **BERT_LAYERS},
        legacy={"**.LayerNorm.gamma": "LayerNorm.weight", "**.LayerNorm.beta": "LayerNorm.bias"},
        ignore=("embeddings.position_ids", "embeddings.token_type_ids"),
    )
    gguf = POST_NORM

    def __init__(self, config: BertConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        c = config
        self.embeddings = self.embeddings_class(c)
        for stored, own in BERT_EMBEDDINGS.items():
            self.alias(str(own), f"embeddings.{stored}")
        self.layers = self.make_layers(c)
        self.pooler = self.make_pooler(c) if add_pooling_layer else None

    def make_layers(self, config: Any) -> nn.ModuleList:
        return encoder_layers(config, self.block_class, causal=config.is_decoder, cross=config.add_cross_attention)

    def make_pooler(self, config: Any) -> nn.Module:
        return Pooler(config.hidden_size)

    def step_classes(self) -> Mapping[str, type[Step]]:
        return {"encoder": LayersStep}

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        if types is not None:
            self.check_types(types, x, self.embed_types)
        return self.embeddings(inputs_embeds=x, token_type_ids=types, position_ids=positions)

    @property
    def causal(self) -> bool:
        return self.config.is_decoder


class BertForMaskedLM(language.PredictionsTask[BertModel], language.ForMaskedLM[BertModel]): ...


class BertLMHeadModel(language.PredictionsTask[BertModel], language.ForCausalLM[BertModel]):
    """BERT that predicts the next token; set ``is_decoder``."""


class BertForNextSentencePrediction(language.ForNextSentencePrediction[BertModel]):
    names = Names({"cls.seq_relationship": "head.out_proj"})


class BertForPreTraining(language.PredictionsTask[BertModel], language.ForPreTraining[BertModel]):
    """BERT as it is pretrained: masked tokens and next sentences."""

    names = language.PredictionsTask.names | BertForNextSentencePrediction.names


class BertForSequenceClassification(classify.ForSequenceClassification[BertModel]): ...


class BertForTokenClassification(classify.ForTokenClassification[BertModel]): ...


class BertForQuestionAnswering(span.ForQuestionAnswering[BertModel]): ...


class BertForMultipleChoice(classify.ForMultipleChoice[BertModel]): ...
