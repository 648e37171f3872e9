"""M2M-100 (Fan et al. 2020) and NLLB (NLLB Team 2022): pre-norm stacks that translate between any two of many languages.

Positions are sines and cosines that count real tokens; a text begins with the token of its language.
"""

from __future__ import annotations

from torch import nn

from transept.checkpoint.names import Names
from transept.config.fields import Share
from transept.config.model import Config
from transept.heads.seq2seq import ForConditionalGeneration
from transept.kinds.seq2seq import Seq2SeqBackbone
from transept.layers import PreNorm
from transept.layers.positions import CountedWaves
from transept.models.bart import BartConfig, BartDecoder, BartEncoder, BartStack


class M2M100Config(BartConfig):
    """Settings of M2M-100; the defaults are those of its checkpoint with 418 million parameters."""

    model_type = "m2m_100"

    vocab_size: int = 128112
    encoder_layerdrop: Share = 0.05
    decoder_layerdrop: Share = 0.05
    activation_function: str = "relu"
    attention_dropout: Share = 0.1
    scale_embedding: bool = True
    num_labels: int = 2
    forced_eos_token_id: int | list[int] | None = None


class M2M100Stack(BartStack):
    config_class = M2M100Config
    block_class, norms_embeddings = PreNorm, False
    names = BartStack.names | Names(ignore=("embed_positions",))

    def make_positions(self, c: Config) -> nn.Module:
        return CountedWaves(c.d_model, 0 if c.pad_token_id is None else c.pad_token_id)

    @property
    def max_positions(self) -> int | None:
        return None


class M2M100Encoder(M2M100Stack, BartEncoder): ...


class M2M100Decoder(M2M100Stack, BartDecoder):
    names = BartDecoder.names | M2M100Stack.names


class M2M100Model(Seq2SeqBackbone):
    config_class = M2M100Config
    encoder_class, decoder_class = M2M100Encoder, M2M100Decoder
    base_model_prefix = "model"


class M2M100ForConditionalGeneration(ForConditionalGeneration[M2M100Model]): ...
