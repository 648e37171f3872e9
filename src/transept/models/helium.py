"""Helium (Kyutai 2025): Llama in which neighbouring elements of a head turn together."""

from __future__ import annotations

from typing import Any

from transept.config.fields import Layers, PaddingId
from transept.heads.language import ForCausalLM
from transept.kinds.decoder import DecoderConfig
from transept.layers import Attention, InterleavedAttention
from transept.layers.norm import WideRMSNorm
from transept.models import llama


class HeliumConfig(DecoderConfig):
    """Settings of Helium; the defaults are those of Helium 1 with 2 billion parameters."""

    model_type = "helium"
    default_theta = 1e5

    vocab_size: int = 48000
    hidden_size: int = 2560
    intermediate_size: int = 7040
    num_hidden_layers: Layers = 24
    num_attention_heads: int = 20
    head_dim: int = 128
    hidden_act: str = "silu"
    max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-8
    pad_token_id: PaddingId | None = 3
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    attention_bias: bool = False
    mlp_bias: bool = False


class HeliumModel(llama.LlamaModel):
    config_class = HeliumConfig
    attention_class, norm_class = InterleavedAttention, WideRMSNorm

    def attention(self, layer: int, **more: Any) -> Attention:
        return super().attention(layer, out_bias=False, **more)


class HeliumForCausalLM(ForCausalLM[HeliumModel]): ...


class HeliumForSequenceClassification(llama.LlamaForSequenceClassification, backbone=HeliumModel): ...


class HeliumForTokenClassification(llama.LlamaForTokenClassification, backbone=HeliumModel): ...
