"""Qwen2 (Yang et al. 2024): Llama with biases for queries, keys and values, and windows in its upper layers on request."""

from __future__ import annotations

from typing import Any

from transept.checkpoint.gguf import Layout
from transept.config.fields import Layers
from transept.heads.language import ForCausalLM
from transept.kinds.decoder import LayeredConfig, SwitchedConfig
from transept.layers import Attention
from transept.models import llama


class Qwen2Config(SwitchedConfig, LayeredConfig):
    """Settings of Qwen2; the defaults are those of Qwen2 with 7 billion parameters.

    With ``use_sliding_window``, layers from ``max_window_layers`` on see ``sliding_window`` positions, or those that
    ``layer_types`` names; without it no layer does.
    """

    model_type = "qwen2"

    vocab_size: int = 151936
    intermediate_size: int = 22016
    num_key_value_heads: int = 32
    hidden_act: str = "silu"
    max_position_embeddings: int = 32768
    max_window_layers: Layers = 28

    def slides(self, layer: int) -> bool:
        return self.sliding_window is not None and layer >= self.max_window_layers


class Qwen2Model(llama.LlamaModel):
    config_class = Qwen2Config
    gguf = Layout()

    def attention(self, layer: int, **more: Any) -> Attention:
        return super().attention(layer, bias=True, out_bias=False, **more)


class Qwen2ForCausalLM(ForCausalLM[Qwen2Model]): ...


class Qwen2ForSequenceClassification(llama.LlamaForSequenceClassification, backbone=Qwen2Model): ...


class Qwen2ForTokenClassification(llama.LlamaForTokenClassification, backbone=Qwen2Model): ...


class Qwen2ForQuestionAnswering(llama.LlamaForQuestionAnswering, backbone=Qwen2Model): ...
