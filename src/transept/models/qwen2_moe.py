"""Qwen1.5-MoE and Qwen2 with experts (Yang et al. 2024): Qwen2 with many small experts, beside a shared one that has a gate."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from transept.checkpoint.gguf import Layout
from transept.config.fields import Count, Experts, Layers, derived
from transept.heads.language import ForSparseCausalLM
from transept.heads.span import ForQuestionAnswering
from transept.kinds.decoder import LayeredConfig, SwitchedConfig
from transept.kinds.experts import BalancedConfig, sparse_mlp
from transept.layers import Attention, GatedMLP
from transept.layers.moe import Router
from transept.models import llama
from transept.models.mixtral import MixtralModel, sparse_names


class Qwen2MoeConfig(BalancedConfig, SwitchedConfig, LayeredConfig):
    """Settings; the defaults are those of Qwen1.5-MoE-A2.7B.

    Every ``decoder_sparse_step``-th layer has experts, of the inner size ``moe_intermediate_size``, and one of the inner size
    ``shared_expert_intermediate_size`` for all tokens. With ``use_sliding_window``, every other one of the first
    ``max_window_layers`` layers sees ``sliding_window`` positions, or those that ``layer_types`` names do.
    """

    model_type = "qwen2_moe"
    aliases = {"num_local_experts": "num_experts"}

    vocab_size: int = 151936
    hidden_size: int = 2048
    intermediate_size: int = 5632
    num_hidden_layers: Layers = 24
    num_attention_heads: int = 16
    max_position_embeddings: int = 32768
    max_window_layers: Layers = 28
    decoder_sparse_step: Count = 1
    moe_intermediate_size: int = 1408
    shared_expert_intermediate_size: int = 5632
    num_experts_per_tok: int = 4
    num_experts: Experts = 60
    norm_topk_prob: bool = False  # whether the weights of those chosen sum to one
    mlp_only_layers: list[int] = derived(lambda c: [])  # which have no experts
    qkv_bias: bool = True

    def slides(self, layer: int) -> bool:
        return self.use_sliding_window and layer % 2 == 0 and layer < self.max_window_layers

    def is_sparse(self, layer: int) -> bool:
        dense = layer in self.mlp_only_layers or self.num_experts == 0
        return not dense and (layer + 1) % self.decoder_sparse_step == 0


class SharedExpert(GatedMLP):
    """A feed-forward layer whose output is multiplied by a share, which a gate finds for each token."""

    def __init__(self, dim: int, hidden: int, act: str, *, chunk_size: int = 0) -> None:
        super().__init__(dim, hidden, act, chunk_size=chunk_size)
        self.share = nn.Linear(dim, 1, bias=False)

    def whole(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.share(x)) * super().whole(x)


class Qwen2MoeModel(MixtralModel):
    config_class = Qwen2MoeConfig
    names = sparse_names(
        {"gate": "router", "experts": "experts", "shared_expert": "shared", "shared_expert_gate": "shared.share"}
    )
    gguf = Layout()
    config: Qwen2MoeConfig

    def attention(self, layer: int, **more: Any) -> Attention:
        return super().attention(layer, bias=self.config.qkv_bias, out_bias=False, **more)

    def experts(self) -> nn.Module:
        c = self.config
        sizes = c.hidden_size, c.shared_expert_intermediate_size
        shared = SharedExpert(*sizes, c.hidden_act, chunk_size=c.chunk_size_feed_forward)
        return sparse_mlp(c, c.moe_intermediate_size, partial(Router, normalize=c.norm_topk_prob), shared=shared)


class Qwen2MoeForCausalLM(ForSparseCausalLM[Qwen2MoeModel]): ...


class Qwen2MoeForSequenceClassification(llama.LlamaForSequenceClassification, backbone=Qwen2MoeModel): ...


class Qwen2MoeForTokenClassification(llama.LlamaForTokenClassification, backbone=Qwen2MoeModel): ...


class Qwen2MoeForQuestionAnswering(ForQuestionAnswering[Qwen2MoeModel]): ...
