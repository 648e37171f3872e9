"""Seed-OSS (ByteDance Seed 2025): Llama with biases for queries, keys and values, and dropout on the residual stream."""

from __future__ import annotations

from typing import Any

from transept.checkpoint.gguf import Layout
from transept.config.fields import Layers, PaddingId, Share
from transept.heads.language import ForCausalLM
from transept.kinds.decoder import DecoderConfig
from transept.layers import Attention, Block
from transept.models import llama


class SeedOssConfig(DecoderConfig):
    """Settings of Seed-OSS; the defaults are those of Seed-OSS with 36 billion parameters.

    ``attention_out_bias`` is for the output projection alone. ``pretraining_tp`` is kept and has no effect.
    """

    model_type = "seed_oss"

    vocab_size: int = 155136
    intermediate_size: int = 27648
    num_hidden_layers: Layers = 64
    num_attention_heads: int = 80
    num_key_value_heads: int = 8
    head_dim: int = 128
    hidden_act: str = "silu"
    max_position_embeddings: int = 524288
    pad_token_id: PaddingId | None = 1
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 2
    pretraining_tp: int = 1
    attention_bias: bool = True
    attention_out_bias: bool = False
    attention_dropout: Share = 0.1
    residual_dropout: Share = 0.1
    mlp_bias: bool = False


class SeedOssModel(llama.LlamaModel):
    config_class = SeedOssConfig
    gguf = Layout({"ffn_norm": None, "post_attention_norm": "mlp_norm"})
    config: SeedOssConfig

    def block(self, layer: int, **more: Any) -> Block:
        return super().block(layer, dropout=self.config.residual_dropout, **more)

    def attention(self, layer: int, **more: Any) -> Attention:
        return super().attention(layer, out_bias=self.config.attention_out_bias, **more)


class SeedOssForCausalLM(ForCausalLM[SeedOssModel]): ...


class SeedOssForSequenceClassification(llama.LlamaForSequenceClassification, backbone=SeedOssModel): ...


class SeedOssForTokenClassification(llama.LlamaForTokenClassification, backbone=SeedOssModel): ...


class SeedOssForQuestionAnswering(llama.LlamaForQuestionAnswering, backbone=SeedOssModel): ...
