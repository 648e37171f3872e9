"""BlenderBot (Roller et al. 2021): pre-norm stacks with learned positions, a deep decoder that answers what was said."""

from __future__ import annotations

from typing import Annotated

from torch import nn

from transept.config.fields import Layers, Multiple, PaddingId
from transept.config.model import Config
from transept.heads.seq2seq import ForBiasedGeneration, StackForCausalLM
from transept.kinds.seq2seq import Seq2SeqBackbone
from transept.layers import PreNorm
from transept.models.bart import BartConfig, BartDecoder, BartEncoder, BartStack


class BlenderbotConfig(BartConfig):
    """Settings of BlenderBot; the defaults are those of its checkpoint with three billion parameters."""

    model_type = "blenderbot"

    vocab_size: int = 8008
    max_position_embeddings: int = 128
    encoder_layers: Layers = 2
    encoder_ffn_dim: int = 10240
    encoder_attention_heads: int = 32
    decoder_layers: Layers = 24
    decoder_ffn_dim: int = 10240
    decoder_attention_heads: int = 32
    d_model: Annotated[int, Multiple("encoder_attention_heads"), Multiple("decoder_attention_heads")] = 2560
    num_labels: int = 2
    pad_token_id: PaddingId | None = 0
    bos_token_id: int | None = 1
    decoder_start_token_id: int | None = 1
    encoder_no_repeat_ngram_size: int = 3


class BlenderbotStack(BartStack):
    config_class = BlenderbotConfig
    block_class, norms_embeddings = PreNorm, False

    def make_positions(self, c: Config) -> nn.Module:
        return nn.Embedding(c.max_position_embeddings, c.d_model)


class BlenderbotEncoder(BlenderbotStack, BartEncoder): ...


class BlenderbotDecoder(BlenderbotStack, BartDecoder): ...


class BlenderbotModel(Seq2SeqBackbone):
    config_class = BlenderbotConfig
    encoder_class, decoder_class = BlenderbotEncoder, BlenderbotDecoder
    base_model_prefix = "model"


class BlenderbotForConditionalGeneration(ForBiasedGeneration[BlenderbotModel]): ...


class BlenderbotForCausalLM(StackForCausalLM[BlenderbotDecoder]): ...
