"""TrOCR (Li et al. 2021): BART's decoder by itself, which writes the text that it is shown as the states of an image.

It is the decoder of a vision encoder–decoder. Positions are learned, or fixed sinusoids that count real tokens.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated

from torch import nn

from transept.checkpoint.names import Names
from transept.config.fields import Count, Deviation, Layers, Multiple, PaddingId, Share
from transept.config.model import Config
from transept.heads.seq2seq import StackForCausalLM
from transept.layers import OffsetPositions
from transept.layers.positions import CountedWaves
from transept.models.bart import BART_BLOCK, BartDecoder, ScaledEmbedding


class TrOCRConfig(Config):
    """Settings of TrOCR; the defaults are those of trocr-base-handwritten's decoder.

    ``cross_attention_hidden_size`` is the size of the states that it reads, ``d_model`` when absent.
    """

    model_type = "trocr"
    aliases = {"hidden_size": "d_model", "num_attention_heads": "decoder_attention_heads"}
    aliases |= {"num_hidden_layers": "decoder_layers", "initializer_range": "init_std"}

    vocab_size: int = 50265
    d_model: Annotated[int, Multiple("decoder_attention_heads")] = 1024
    decoder_layers: Layers = 12
    decoder_attention_heads: int = 16
    decoder_ffn_dim: int = 4096
    activation_function: str = "gelu"
    max_position_embeddings: int = 512
    dropout: Share = 0.1
    attention_dropout: Share = 0.0
    activation_dropout: Share = 0.0
    decoder_start_token_id: int | None = 2
    init_std: Deviation = 0.02
    decoder_layerdrop: Share = 0.0
    scale_embedding: bool = False
    use_learned_position_embeddings: bool = True
    layernorm_embedding: bool = True
    pad_token_id: PaddingId | None = 1
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 2
    cross_attention_hidden_size: Count | None = None
    is_decoder: bool = False

    @property
    def embed_scale(self) -> float:
        return math.sqrt(self.d_model) if self.scale_embedding else 1.0

    def validate(self) -> None:
        super().validate()
        if not self.use_learned_position_embeddings and (self.d_model < 4 or self.pad_token_id is None):
            self.fail("use_learned_position_embeddings", "may be false where `d_model` is at least 4 and `pad_token_id` is set")


class TrOCRDecoder(BartDecoder):
    """BART's decoder, whose norm of the embeddings may be absent and whose positions may be fixed."""

    config_class = TrOCRConfig  # type: ignore[assignment]
    names = replace(
        BartDecoder.names | Names(ignore=("embed_positions._float_tensor", "embed_positions.weights")),
        table={
            "embed_tokens": "embed_tokens",
            "embed_positions": "embed_positions",
            "layernorm_embedding": "embed_norm",
            "layers.*": ("layers.*", BART_BLOCK),
        },
    )

    @property
    def cross(self) -> bool | int:
        return self.config.cross_attention_hidden_size or True

    def make_embeddings(self, c: Config) -> None:
        self.embed_tokens = ScaledEmbedding(c)
        if c.use_learned_position_embeddings:
            self.embed_positions = OffsetPositions(c.max_position_embeddings, c.d_model)
        else:
            assert c.pad_token_id is not None
            self.embed_positions = CountedWaves(c.d_model, c.pad_token_id)
        self.embed_norm = nn.LayerNorm(c.d_model) if c.layernorm_embedding else None


class TrOCRForCausalLM(StackForCausalLM[TrOCRDecoder]):
    """TrOCR; labels are not moved: position t is to predict label t."""

    names = Names({"output_projection": "lm_head"}, ties={"lm_head.weight": "backbone.embed_tokens.weight"})
