"""XGLM (Lin et al. 2021): a pre-norm decoder of many languages; positions are sines and cosines, counted from two on."""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated

from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Deviation, Layers, Multiple, PaddingId, Share
from transept.config.model import Config
from transept.core.inputs import ENCODER
from transept.heads import language
from transept.kinds.text import CausalBackbone
from transept.layers import MLP, Attention, Context, Pattern, PreNorm, standard_layers
from transept.layers.positions import waves
from transept.models.bart import ScaledEmbedding


class XGLMConfig(Config):
    """Settings of XGLM; the defaults are those of its checkpoint with 564 million parameters."""

    model_type = "xglm"
    aliases = {"num_attention_heads": "attention_heads", "hidden_size": "d_model", "num_hidden_layers": "num_layers"}

    vocab_size: int = 256008
    max_position_embeddings: int = 2048
    d_model: Annotated[int, Multiple("attention_heads")] = 1024
    ffn_dim: int = 4096
    num_layers: Layers = 24
    attention_heads: int = 16
    activation_function: str = "gelu"
    dropout: Share = 0.1
    attention_dropout: Share = 0.1
    activation_dropout: Share = 0.0
    layerdrop: Share = 0.0
    init_std: Deviation = 0.02
    scale_embedding: bool = True
    decoder_start_token_id: int | None = 2
    pad_token_id: PaddingId | None = 1
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 2
    add_cross_attention: bool = False

    @property
    def embed_scale(self) -> float:
        return math.sqrt(self.d_model) if self.scale_embedding else 1.0


ATTENTION: Table = {"k_proj": "k_proj", "v_proj": "v_proj", "q_proj": "q_proj", "out_proj": "o_proj"}
XGLM_BLOCK: Table = {
    "self_attn": ("self_attn", ATTENTION),
    "encoder_attn": ("cross_attn", ATTENTION),
    "encoder_attn_layer_norm": "cross_attn_norm",
    "self_attn_layer_norm": "self_attn_norm",
    "fc1": "mlp.up_proj",
    "fc2": "mlp.down_proj",
    "final_layer_norm": "mlp_norm",
}
OFFSET = 2


class XGLMModel(CausalBackbone):
    config_class = XGLMConfig
    base_model_prefix = "model"
    reads = ("input_ids", "attention_mask", "position_ids", *ENCODER, "past_key_values", "inputs_embeds", "labels", "use_cache")
    names = Names({"layers.*": ("layers.*", XGLM_BLOCK), "layer_norm": "norm"}, ignore=("embed_positions.weights",))

    def __init__(self, config: XGLMConfig) -> None:
        super().__init__(config)
        c = config
        self.embed_tokens = ScaledEmbedding(c)
        self.dropout = nn.Dropout(c.dropout)
        norm = partial(nn.LayerNorm, c.d_model)
        attention = partial(Attention, c.d_model, c.attention_heads, dropout=c.attention_dropout)
        block = partial(PreNorm, dropout=c.dropout, layerdrop=c.layerdrop)
        mlp = partial(MLP, c.d_model, c.ffn_dim, c.activation_function, dropout=c.activation_dropout)
        cross = partial(attention, cross=True) if c.add_cross_attention else None
        self.layers = standard_layers(c, block, partial(attention, pattern=Pattern(causal=True)), mlp, norm, cross=cross)
        self.norm = norm()

    @property
    def max_positions(self) -> int | None:
        return None

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        return self.dropout(x + waves(positions + OFFSET, self.config.d_model, self.config.pad_token_id).to(x.dtype))


class XGLMForCausalLM(language.ForCausalLM[XGLMModel]): ...
