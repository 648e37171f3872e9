"""Marian (Junczys-Dowmunt et al. 2018): an encoder and a decoder as BART's, with sinusoids for positions, that translate.

The two languages share a table of embeddings, or each has a vocabulary of its own.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config.fields import derived
from transept.config.model import Config
from transept.errors import InputError
from transept.heads.seq2seq import ForBiasedGeneration, StackForCausalLM
from transept.kinds.seq2seq import EncoderStack, Seq2SeqBackbone
from transept.layers import Context
from transept.layers.linear import resize_rows
from transept.layers.positions import sinusoids
from transept.models.bart import BartConfig, BartDecoder, BartStack


class MarianConfig(BartConfig):
    """Settings of Marian. Without ``share_encoder_decoder_embeddings`` the decoder has ``decoder_vocab_size`` tokens."""

    model_type = "marian"

    vocab_size: int = 58101
    decoder_vocab_size: int = derived(lambda c: c.vocab_size)
    share_encoder_decoder_embeddings: bool = True
    num_labels: int = 2
    pad_token_id: int | None = 58100
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = 0
    decoder_start_token_id: int | None = 58100
    forced_eos_token_id: int | list[int] | None = 0

    def validate(self) -> None:
        super().validate()
        if not self.share_encoder_decoder_embeddings:
            self.decoder_vocab_size = self.decoder_vocab_size  # resizing one vocabulary leaves the other

    def set_vocab_size(self, size: int) -> None:
        super().set_vocab_size(size)
        if self.share_encoder_decoder_embeddings:
            self.decoder_vocab_size = size


class SinusoidalPositions(nn.Module):
    """A table of sines, and behind them cosines, of positions, which is not trained."""

    def __init__(self, positions: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(positions, dim), requires_grad=False)

    def reset_parameters(self) -> None:
        positions, dim = self.weight.shape
        self.weight.copy_(torch.cat(sinusoids(torch.arange(positions, device=self.weight.device), dim), dim=1))

    def forward(self, positions: Tensor) -> Tensor:
        """(1 or B, T) -> (1 or B, T, D)."""
        return F.embedding(positions, self.weight)


class MarianStack(BartStack):
    config_class = MarianConfig
    names = BartStack.names | Names(ignore=("embed_positions",), fixed=("embed_positions.weight",))

    def make_embeddings(self, c: Config) -> None:
        self.embed_tokens = nn.Embedding(self.vocab_size, c.d_model, padding_idx=c.pad_token_id)
        self.embed_positions, self.embed_norm = SinusoidalPositions(c.max_position_embeddings, c.d_model), None

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        return self.dropout(x + self.embed_positions(positions))


class MarianEncoder(MarianStack, EncoderStack):
    base_model_prefix = "model.encoder"

    def embed_ids(self, ids: Tensor) -> Tensor:
        return super().embed_ids(ids) * self.config.embed_scale


class MarianDecoder(MarianStack, BartDecoder):
    names = BartDecoder.names | MarianStack.names

    @property
    def vocab_size(self) -> int:
        c = self.config
        return c.vocab_size if c.share_encoder_decoder_embeddings else c.decoder_vocab_size or c.vocab_size

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        """Embeddings that are given are scaled too."""
        return super().embed(x * self.config.embed_scale, types, positions, ctx)


class MarianModel(Seq2SeqBackbone):
    """Marian without a head; where each language has a vocabulary of its own, ``embed_tokens`` is the encoder's."""

    config_class = MarianConfig
    encoder_class, decoder_class = MarianEncoder, MarianDecoder
    base_model_prefix = "model"

    @property
    def token_parts(self) -> tuple[str, ...]:
        return ("encoder", "decoder") if self.config.share_encoder_decoder_embeddings else ("encoder",)

    @classmethod
    def names_of(cls, config: Config) -> Names:
        """A table that is the encoder's alone is stored as the encoder's, and is so whatever the config says."""
        if config.share_encoder_decoder_embeddings:
            return super().names_of(config)
        names = super().names_of(config)
        return replace(names, table={name: place for name, place in names.table.items() if name != "shared"}, ties={})


class MarianMTModel(ForBiasedGeneration[MarianModel]):
    def resize_decoder_token_embeddings(self, new_num_tokens: int) -> nn.Embedding:
        """Grow or shrink the vocabulary of the language that is written, where the languages share none."""
        if "decoder" in self.backbone.token_parts:
            raise InputError("both languages share their embeddings.", hint="Use resize_token_embeddings().")
        if new_num_tokens < 1:
            raise InputError(f"the vocabulary cannot have {new_num_tokens} tokens.")
        table = self.backbone.decoder.embedding_table()
        assert isinstance(table, nn.Embedding)
        resize_rows([table, self.lm_head], new_num_tokens)
        self.resize_bias()
        self.config.decoder_vocab_size = new_num_tokens
        self.tie_weights()
        return table


class MarianForCausalLM(StackForCausalLM[MarianDecoder]): ...
