"""Phi (Gunasekar et al. 2023, Li et al. 2023): attention and feed-forward layer side by side, which read one norm.

A part of each head turns with its position. Phi-1.5 and Phi-2 are this too.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn

from transept.checkpoint.gguf import Layout
from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Layers, Share
from transept.heads.language import ForCausalLM
from transept.kinds.decoder import GroupedConfig
from transept.layers import MLP, Attention, Block, Context, SharedNormParallel
from transept.models import llama


class PhiConfig(GroupedConfig):
    """Settings of Phi; the defaults are those of Phi-1. With ``qk_layernorm`` queries and keys are normed, head by head."""

    model_type = "phi"
    default_share = 0.5

    vocab_size: int = 51200
    hidden_size: int = 2048
    intermediate_size: int = 8192
    num_hidden_layers: Layers = 24
    resid_pdrop: Share = 0.0
    embd_pdrop: Share = 0.0
    hidden_act: str = "gelu_new"
    layer_norm_eps: float = 1e-5
    qk_layernorm: bool = False
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2

    attention_bias = mlp_bias = True


PHI_ATTENTION: Table = {
    **{name: name for name in ("q_proj", "k_proj", "v_proj")},
    "dense": "o_proj",
    "q_layernorm": "q_norm",
    "k_layernorm": "k_norm",
}
PHI_BLOCK: Table = {
    "self_attn": ("self_attn", PHI_ATTENTION),
    "mlp": ("mlp", {"fc1": "up_proj", "fc2": "down_proj"}),
    "input_layernorm": "self_attn_norm",
}


class PhiModel(llama.LlamaModel):
    config_class = PhiConfig
    gguf = Layout()
    names = Names({"layers.*": ("layers.*", PHI_BLOCK), "final_layernorm": "norm"}, ignore=("rotary_emb.inv_freq",))
    block_class, mlp_class = SharedNormParallel, MLP
    adapter_targets = ("q_proj", "v_proj", "up_proj", "down_proj")  # peft's
    config: PhiConfig

    def __init__(self, config: PhiConfig) -> None:
        super().__init__(config)
        self.dropout = nn.Dropout(config.embd_pdrop)

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        return super().embed(self.dropout(x), types, positions, ctx)

    def block(self, layer: int, **more: Any) -> Block:
        return super().block(layer, dropout=self.config.resid_pdrop, **more)

    def make_norm(self) -> nn.Module:
        return nn.LayerNorm(self.config.hidden_size, self.config.layer_norm_eps)

    def attention(self, layer: int, **more: Any) -> Attention:
        norm = partial(nn.LayerNorm, eps=self.config.layer_norm_eps) if self.config.qk_layernorm else None
        return super().attention(layer, qk_norm=norm, **more)


class PhiForCausalLM(ForCausalLM[PhiModel]):
    bias = True


class PhiForSequenceClassification(llama.LlamaForSequenceClassification, backbone=PhiModel): ...


class PhiForTokenClassification(llama.LlamaForTokenClassification, backbone=PhiModel): ...
