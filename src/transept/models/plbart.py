"""PLBART (Ahmad et al. 2021): BART of programs and texts about them; the language of what is written ends it, as in mBART."""

from __future__ import annotations

from typing import Annotated

from transept.config.fields import Layers, Multiple, Share
from transept.heads.seq2seq import ForBiasedGeneration, ForSequenceClassification, StackForCausalLM
from transept.models.bart import BartDecoder, BartEncoder
from transept.models.mbart import MBartConfig, MBartModel


class PLBartConfig(MBartConfig):
    """Settings of PLBART; the defaults are those of plbart-base."""

    model_type = "plbart"

    vocab_size: int = 50005
    encoder_layers: Layers = 6
    encoder_ffn_dim: int = 3072
    encoder_attention_heads: int = 12
    decoder_layers: Layers = 6
    decoder_ffn_dim: int = 3072
    decoder_attention_heads: int = 12
    d_model: Annotated[int, Multiple("encoder_attention_heads"), Multiple("decoder_attention_heads")] = 768
    attention_dropout: Share = 0.1
    scale_embedding: bool = True


class PLBartEncoder(BartEncoder):
    config_class = PLBartConfig


class PLBartDecoder(BartDecoder):
    config_class = PLBartConfig


class PLBartModel(MBartModel):
    config_class = PLBartConfig
    encoder_class, decoder_class = PLBartEncoder, PLBartDecoder


class PLBartForConditionalGeneration(ForBiasedGeneration[PLBartModel]): ...


class PLBartForSequenceClassification(ForSequenceClassification[PLBartModel]): ...


class PLBartForCausalLM(StackForCausalLM[PLBartDecoder]): ...
