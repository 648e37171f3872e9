"""Qwen3 with experts (Yang et al. 2025): Mixtral with normed queries and keys, many small experts, and dense layers between."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from transept.checkpoint.gguf import Layout
from transept.config.fields import Count, Experts, Layers, derived
from transept.heads.language import ForSparseCausalLM
from transept.kinds.decoder import SwitchedConfig
from transept.kinds.experts import BalancedConfig, sparse_mlp
from transept.layers import RMSNorm
from transept.layers.moe import Router
from transept.models import llama
from transept.models.mixtral import MixtralModel, sparse_names
from transept.storage.gguf import GGUF


class Qwen3MoeConfig(BalancedConfig, SwitchedConfig):
    """Settings; every ``decoder_sparse_step``-th layer has experts, of the inner size ``moe_intermediate_size``."""

    model_type = "qwen3_moe"
    aliases = {"num_experts": "num_local_experts"}

    vocab_size: int = 151936
    hidden_size: int = 2048
    intermediate_size: int = 6144
    num_hidden_layers: Layers = 24
    num_key_value_heads: int = 4
    max_position_embeddings: int = 32768
    attention_bias: bool = False
    decoder_sparse_step: Count = 1
    moe_intermediate_size: int = 768
    num_experts_per_tok: int = 8
    num_local_experts: Experts = 128
    norm_topk_prob: bool = False  # whether the weights of those chosen sum to one
    mlp_only_layers: list[int] = derived(lambda c: [])  # which have no experts

    @classmethod
    def from_gguf(cls, gguf: GGUF, values: dict[str, Any]) -> dict[str, Any]:
        return {"norm_topk_prob": True, **values}  # which such files do not say, and llama.cpp does

    def window(self, layer: int) -> int | None:
        return self.sliding_window

    def is_sparse(self, layer: int) -> bool:
        dense = layer in self.mlp_only_layers or self.num_local_experts == 0
        return not dense and (layer + 1) % self.decoder_sparse_step == 0


class Qwen3MoeModel(MixtralModel):
    config_class = Qwen3MoeConfig
    names = sparse_names({"experts": "experts", "gate": "router"})
    gguf = Layout()
    qk_norm_class = RMSNorm
    config: Qwen3MoeConfig

    def experts(self) -> nn.Module:
        router = partial(Router, normalize=self.config.norm_topk_prob)
        return sparse_mlp(self.config, self.config.moe_intermediate_size, router)


class Qwen3MoeForCausalLM(ForSparseCausalLM[Qwen3MoeModel]): ...


class Qwen3MoeForSequenceClassification(llama.LlamaForSequenceClassification, backbone=Qwen3MoeModel): ...


class Qwen3MoeForTokenClassification(llama.LlamaForTokenClassification, backbone=Qwen3MoeModel): ...


class Qwen3MoeForQuestionAnswering(llama.LlamaForQuestionAnswering, backbone=Qwen3MoeModel): ...
