"""Granite (Granite Team, IBM 2024): Llama with multipliers for embeddings, scores, what is added, and logits."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn

from transept.heads.language import ForCausalLM
from transept.kinds.decoder import DecoderConfig
from transept.layers import Attention, Block, Context
from transept.models import llama


class GraniteConfig(DecoderConfig):
    """Settings of Granite; without the multipliers, which a checkpoint states, it is Llama.

    ``attention_multiplier`` stands in the place of 1 / sqrt(E), ``residual_multiplier`` is for what a sublayer adds, and logits
    are divided by ``logits_scaling``.
    """

    model_type = "granite"
    gguf_keys = {"attention.scale": "attention_multiplier", "embedding_scale": "embedding_multiplier"}
    gguf_keys |= {"residual_scale": "residual_multiplier", "logit_scale": "logits_scaling"}

    hidden_act: str = "silu"
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    attention_bias: bool = False
    mlp_bias: bool = False
    embedding_multiplier: float = 1.0
    logits_scaling: float = 1.0
    residual_multiplier: float = 1.0
    attention_multiplier: float = 1.0


class Multiplier(nn.Module):
    """Multiplies by a number."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class GraniteModel(llama.LlamaModel):
    config_class = GraniteConfig
    gguf = llama.LlamaModel.gguf
    config: GraniteConfig

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        return super().embed(x * self.config.embedding_multiplier, types, positions, ctx)

    def block(self, layer: int, **more: Any) -> Block:
        return super().block(layer, branch=partial(Multiplier, self.config.residual_multiplier), **more)

    def attention(self, layer: int, **more: Any) -> Attention:
        return super().attention(layer, scale=self.config.attention_multiplier, **more)


class GraniteForCausalLM(ForCausalLM[GraniteModel]):
    def score(self, hidden: Tensor) -> Tensor:
        return super().score(hidden) / self.config.logits_scaling
