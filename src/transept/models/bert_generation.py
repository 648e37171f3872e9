"""BERT for generation (Rothe et al. 2020): BERT without token types, as an encoder or a decoder of a pair."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config.fields import PaddingId
from transept.config.model import Config
from transept.core.inputs import ENCODER
from transept.heads import language
from transept.kinds.encoder import EncoderConfig, LayersStep, encoder_layers
from transept.kinds.text import TextBackbone
from transept.layers import Context
from transept.layers.links import Linked, Step
from transept.models.bert import BERT_BLOCK, BertModel


class BertGenerationConfig(EncoderConfig):
    """Settings of BERT for generation; the defaults are those of the large one."""

    model_type = "bert-generation"

    vocab_size: int = 50358
    hidden_size: int = 1024
    num_hidden_layers: int = 24
    num_attention_heads: int = 16
    intermediate_size: int = 4096
    max_position_embeddings: int = 512
    pad_token_id: PaddingId | None = 0
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 1
    is_decoder: bool = False
    add_cross_attention: bool = False

    def validate(self) -> None:
        super().validate()
        if self.add_cross_attention and not self.is_decoder:
            self.fail("add_cross_attention", "needs `is_decoder`")


EMBEDDINGS = {"word_embeddings": "embed_tokens", "position_embeddings": "embed_positions", "LayerNorm": "embed_norm"}


class BertGenerationEmbeddings(nn.Module):
    """The sum of the embeddings of words and of positions, normed: (B, T) ids -> (B, T, D)."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        c = config
        self.word_embeddings = nn.Embedding(c.vocab_size, c.hidden_size, padding_idx=c.pad_token_id)
        self.position_embeddings = nn.Embedding(c.max_position_embeddings, c.hidden_size)
        self.LayerNorm, self.dropout = nn.LayerNorm(c.hidden_size, c.layer_norm_eps), nn.Dropout(c.hidden_dropout_prob)

    def forward(
        self,
        input_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values_length: int = 0,
    ) -> Tensor:
        words: Any = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        past = past_key_values_length
        places = torch.arange(past, past + words.shape[1], device=words.device)[None] if position_ids is None else position_ids
        return self.dropout(self.LayerNorm(words + self.position_embeddings(places)))


class BertGenerationEncoder(TextBackbone):
    """BERT without token types and without a head."""

    config_class = BertGenerationConfig
    base_model_prefix = "bert"
    head_dropouts = ("hidden_dropout_prob",)
    reads = (
        *("input_ids", "attention_mask", "position_ids", "inputs_embeds"),
        *(*ENCODER, "labels", "past_key_values", "use_cache"),
    )
    names = Names(
        {"embeddings": ("", EMBEDDINGS), "encoder.layer.*": ("layers.*", BERT_BLOCK)},
        legacy=BertModel.names.legacy,
        ignore=BertModel.names.ignore,
    )
    config: BertGenerationConfig

    def __init__(self, config: BertGenerationConfig) -> None:
        super().__init__(config)
        self.embeddings = BertGenerationEmbeddings(config)
        for stored, own in EMBEDDINGS.items():
            self.alias(own, f"embeddings.{stored}")
        self.layers = encoder_layers(config, causal=config.is_decoder, cross=config.add_cross_attention)

    def step_classes(self) -> Mapping[str, type[Step]]:
        return {"encoder": LayersStep}

    @property
    def causal(self) -> bool:
        return self.config.is_decoder

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        return self.embeddings(inputs_embeds=x, position_ids=positions)


class DecoderHead(Linked):
    """A layer over the vocabulary that is tied to the embeddings, (..., D) -> (..., V), whose bias is stored apart."""

    def __init__(self, dim: int, vocab: int) -> None:
        super().__init__()
        self.decoder, self.bias = nn.Linear(dim, vocab), nn.Parameter(torch.zeros(vocab))

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(x)


class BertGenerationDecoder(language.VocabularyTask[BertGenerationEncoder], language.ForCausalLM[BertGenerationEncoder]):
    """BERT that predicts the next token; set ``is_decoder``."""

    tied_bias = True
    names = language.VocabularyTask.names | Names({"lm_head": ("lm_head", {"bias": "bias", "decoder": "decoder"})})

    def make_head(self, config: Config) -> nn.Module:
        return DecoderHead(self.backbone.dim, config.vocab_size)
