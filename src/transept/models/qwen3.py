"""Qwen3 (Yang et al. 2025): Qwen2 without biases, whose queries and keys are normed before they are rotated."""

from __future__ import annotations

from transept.checkpoint.gguf import Layout
from transept.heads.language import ForCausalLM
from transept.layers import RMSNorm
from transept.models import llama
from transept.models.qwen2 import Qwen2Config


class Qwen3Config(Qwen2Config):
    """Settings of Qwen3; the defaults are those of Qwen3 with 8 billion parameters. Windows are as in Qwen2."""

    model_type = "qwen3"

    head_dim: int = 128
    attention_bias: bool = False


class Qwen3Model(llama.LlamaModel):
    config_class = Qwen3Config
    gguf = Layout()
    qk_norm_class = RMSNorm


class Qwen3ForCausalLM(ForCausalLM[Qwen3Model]): ...


class Qwen3ForSequenceClassification(llama.LlamaForSequenceClassification, backbone=Qwen3Model): ...


class Qwen3ForTokenClassification(llama.LlamaForTokenClassification, backbone=Qwen3Model): ...


class Qwen3ForQuestionAnswering(llama.LlamaForQuestionAnswering, backbone=Qwen3Model): ...
