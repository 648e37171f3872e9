"""Persimmon (Adept 2023): a decoder with fused projections, layer norms and the square of ReLU; half of each head turns."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Layers, Share
from transept.heads.language import ForCausalLM
from transept.kinds.decoder import GroupedConfig
from transept.layers import MLP, Attention, Block, ByHeadAttention
from transept.models import llama


class PersimmonConfig(GroupedConfig):
    """Settings of Persimmon; the defaults are those of Persimmon with 8 billion parameters."""

    model_type = "persimmon"
    default_share = 0.5

    vocab_size: int = 262144
    intermediate_size: int = 16384
    num_hidden_layers: Layers = 36
    num_attention_heads: int = 64
    hidden_act: str = "relu2"
    max_position_embeddings: int = 16384
    layer_norm_eps: float = 1e-5
    qk_layernorm: bool = True
    hidden_dropout: Share = 0.0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2

    attention_bias = mlp_bias = True


PERSIMMON_BLOCK: Table = {
    "self_attn": (
        "self_attn",
        {"query_key_value": "qkv_proj", "dense": "o_proj", "q_layernorm": "q_norm", "k_layernorm": "k_norm"},
    ),
    "mlp": ("mlp", {"dense_h_to_4h": "up_proj", "dense_4h_to_h": "down_proj"}),
    "input_layernorm": "self_attn_norm",
    "post_attention_layernorm": "mlp_norm",
}


class PersimmonModel(llama.LlamaModel):
    config_class = PersimmonConfig
    names = Names({"layers.*": ("layers.*", PERSIMMON_BLOCK), "final_layernorm": "norm"}, ignore=("rotary_emb.inv_freq",))
    attention_class, mlp_class = ByHeadAttention, MLP
    config: PersimmonConfig

    def block(self, layer: int, **more: Any) -> Block:
        return super().block(layer, mlp_dropout=self.config.hidden_dropout, **more)

    def make_norm(self) -> nn.Module:
        return nn.LayerNorm(self.config.hidden_size, self.config.layer_norm_eps)

    def attention(self, layer: int, **more: Any) -> Attention:
        norm = partial(nn.LayerNorm, eps=self.config.layer_norm_eps) if self.config.qk_layernorm else None
        return super().attention(layer, qk_norm=norm, **more)


class PersimmonForCausalLM(ForCausalLM[PersimmonModel]): ...


class PersimmonForSequenceClassification(llama.LlamaForSequenceClassification, backbone=PersimmonModel): ...


class PersimmonForTokenClassification(llama.LlamaForTokenClassification, backbone=PersimmonModel): ...
