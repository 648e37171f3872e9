"""FSMT (Ng et al. 2019), which won WMT19: a Transformer that translates; each of two languages has a vocabulary.

Positions are sines and cosines that count real tokens. The output layer is the decoder's, so that a model without a head gives
logits for its last states, too.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config.fields import PaddingId
from transept.config.model import Config
from transept.errors import refuse
from transept.heads.seq2seq import ForConditionalGeneration
from transept.kinds.seq2seq import Seq2SeqBackbone, shift_tokens_right
from transept.layers import Context
from transept.layers.positions import CountedWaves
from transept.models.bart import BartConfig, BartDecoder, BartEncoder, BartModel, BartStack


class FSMTConfig(BartConfig):
    """Settings of FSMT: ``src_vocab_size`` is for what is read, ``tgt_vocab_size`` (``vocab_size``) for what is written."""

    model_type = "fsmt"
    aliases = BartConfig.aliases | {"vocab_size": "tgt_vocab_size"}

    vocab_size: ClassVar[property] = property(lambda self: self.tgt_vocab_size)  # type: ignore[misc]
    langs: list[str] = field(default_factory=lambda: ["en", "de"])
    src_vocab_size: int = 42024
    tgt_vocab_size: int = 42024
    activation_function: str = "relu"
    scale_embedding: bool = True
    max_length: int = 200
    num_beams: int = 5
    length_penalty: float = 1.0
    early_stopping: bool = False
    tie_word_embeddings: bool = False
    num_labels: int = 2
    pad_token_id: PaddingId | None = 1

    def set_vocab_size(self, size: int) -> None:
        self.src_vocab_size = self.tgt_vocab_size = size


class FSMTPositions(CountedWaves):
    """The same waves for a text of any length, and a table of them, which is not trained."""

    def __init__(self, positions: int, dim: int, padding_idx: int) -> None:
        super().__init__(dim, padding_idx)
        self.weight = nn.Parameter(torch.empty(positions + padding_idx + 1, dim), requires_grad=False)

    def reset_parameters(self) -> None:
        self.weight.copy_(self(torch.arange(len(self.weight), device=self.weight.device)))


class FSMTStack(BartStack):
    config_class = FSMTConfig
    names = BartStack.names | Names(ignore=("embed_positions",), fixed=("embed_positions.weight",))

    def make_embeddings(self, c: Config) -> None:
        self.embed_tokens = nn.Embedding(self.vocab_size, c.d_model, c.pad_token_id)
        self.embed_positions, self.embed_norm = FSMTPositions(c.max_position_embeddings, c.d_model, c.pad_token_id or 0), None

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        """Embeddings that are given are scaled too."""
        return super().embed(x * self.config.embed_scale, types, positions, ctx)


class FSMTEncoder(FSMTStack, BartEncoder):
    vocab_size = property(lambda self: self.config.src_vocab_size)


class FSMTDecoder(FSMTStack, BartDecoder):
    names = BartDecoder.names | FSMTStack.names | Names({"output_projection": "output_projection"})

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.output_projection = nn.Linear(config.d_model, self.vocab_size, bias=False)

    def end(self, x: Tensor, ctx: Context) -> Any:
        """The states of the layers, and logits (B, T, V) in place of the last one."""
        output: Any = super().end(x, ctx)
        output.last_hidden_state = self.output_projection(output.last_hidden_state)
        return output


class FSMTModel(BartModel):
    """FSMT, whose ``last_hidden_state`` (B, T, V) are logits; ``embed_tokens`` is the encoder's."""

    config_class = FSMTConfig
    encoder_class, decoder_class = FSMTEncoder, FSMTDecoder
    reads = (
        *("input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask", "encoder_outputs", "past_key_values"),
        *("use_cache", "output_attentions", "output_hidden_states", "inputs_embeds", "decoder_inputs_embeds"),
    )
    names = Names(
        ties=dict.fromkeys(("encoder.embed_tokens.weight", "decoder.output_projection.weight"), "decoder.embed_tokens.weight"),
    )

    def vocabulary_layers(self) -> list[nn.Module]:
        """All tables, as a vocabulary that is grown alone would have ids that the other lacks."""
        read, written = self.config.src_vocab_size, self.config.tgt_vocab_size
        what = f"the vocabularies have {read} and {written} tokens, and no new size fits both."
        refuse(read != written, what, "Vocabularies of one size can be resized.")
        return [*super().vocabulary_layers(), self.decoder.output_projection]

    def shifted(self, ids: Tensor) -> Tensor:
        """What the decoder reads to write these ids, (B, T): each row's last token, its end, before the others."""
        return shift_tokens_right(ids, self.config.pad_token_id)


class FSMTForConditionalGeneration(ForConditionalGeneration[FSMTModel]):
    """FSMT that writes; its output layer is ``model.decoder.output_projection``."""

    reads = Seq2SeqBackbone.reads
    names = Names()

    def __init__(self, config: FSMTConfig) -> None:
        super().__init__(config)
        del self.lm_head
        self.link("lm_head", self.backbone.decoder, "output_projection")

    def score(self, hidden: Tensor) -> Tensor:
        return hidden
