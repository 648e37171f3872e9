"""dots.llm1 (rednote-hilab 2025): the experts of DeepSeek-V3 with the attention of Qwen3, and windows in its upper layers."""

from __future__ import annotations

from typing import Any

from transept.checkpoint.gguf import Layout
from transept.config.fields import Experts, Layers
from transept.heads.language import ForSparseCausalLM
from transept.kinds.decoder import LayeredConfig
from transept.kinds.experts import SharedExpertsConfig
from transept.layers import Attention, RMSNorm
from transept.models.deepseek_v3 import SHARED_EXPERTS, DeepseekV3Model
from transept.models.llama import LlamaModel
from transept.models.mixtral import sparse_names


class Dots1Config(SharedExpertsConfig, LayeredConfig):
    """Settings of dots.llm1; a checkpoint states its experts. Layers from ``max_window_layers`` on have windows."""

    model_type = "dots1"

    vocab_size: int = 152064
    hidden_size: int = 4608
    intermediate_size: int = 10944
    num_hidden_layers: Layers = 62
    attention_bias: bool = False
    max_window_layers: Layers = 62
    n_shared_experts: int | None = None
    n_routed_experts: Experts | None = None
    num_experts_per_tok: int | None = None
    moe_intermediate_size: int = 1408
    norm_topk_prob: bool = False

    def slides(self, layer: int) -> bool:
        return self.sliding_window is not None and layer >= self.max_window_layers


class Dots1Model(DeepseekV3Model):
    config_class = Dots1Config
    names = sparse_names(SHARED_EXPERTS, exact=("correction_bias",))
    gguf = Layout()
    qk_norm_class = RMSNorm

    def attention(self, layer: int, **more: Any) -> Attention:
        return LlamaModel.attention(self, layer, **more)


class Dots1ForCausalLM(ForSparseCausalLM[Dots1Model]): ...
