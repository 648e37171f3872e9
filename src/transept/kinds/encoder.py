"""Settings of encoders of BERT's kind, and the layers that follow from them."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from torch import nn

from transept.config.fields import Deviation, Layers, Multiple, Share
from transept.config.model import Config
from transept.layers import MLP, Attention, Block, Pattern, PostNorm, standard_layers


class EncoderConfig(Config):
    """What these families have in common; each adds the settings of its own."""

    hidden_size: Annotated[int, Multiple("num_attention_heads")] = 768
    num_hidden_layers: Layers = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: Share = 0.1
    attention_probs_dropout_prob: Share = 0.1
    initializer_range: Deviation = 0.02
    layer_norm_eps: float = 1e-12


def encoder_layers(
    c: EncoderConfig,
    kind: type[Block] = PostNorm,
    *,
    qkv_bias: bool = True,
    causal: bool = False,
    cross: bool | int = False,
) -> nn.ModuleList:
    """All layers; ``cross`` adds attention to an encoder's states, of that size where it is a number."""
    attention = partial(
        Attention,
        c.hidden_size,
        c.num_attention_heads,
        dropout=c.attention_probs_dropout_prob,
        bias=qkv_bias,
        out_bias=True,
    )
    return standard_layers(
        c,
        partial(kind, dropout=c.hidden_dropout_prob),
        partial(attention, pattern=Pattern(causal=causal)),
        partial(MLP, c.hidden_size, c.intermediate_size, c.hidden_act),
        partial(nn.LayerNorm, c.hidden_size, c.layer_norm_eps),
        cross=partial(attention, cross=cross) if cross else None,
    )
