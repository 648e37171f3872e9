"""ERNIE 4.5 with experts (Baidu 2025): some layers have many, beside shared ones; a bias balances what a softmax chooses."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.gguf import Layout
from transept.checkpoint.keys import Table
from transept.config.fields import Count, Experts, Layers, derived
from transept.config.model import Config
from transept.heads.language import ForSparseCausalLM
from transept.kinds.experts import BalancedConfig, sparse_mlp
from transept.layers import GatedMLP, InterleavedAttention
from transept.layers.moe import Router, wide
from transept.models.ernie4_5 import Ernie4_5Config
from transept.models.mixtral import MixtralModel, sparse_names


class Ernie4_5_MoeConfig(Ernie4_5Config, BalancedConfig):  # noqa: N801 (the reference's name)
    """Settings of ERNIE 4.5 with experts; the defaults are those of ERNIE-4.5-21B-A3B.

    Layers from ``moe_layer_start_index`` to ``moe_layer_end_index``, every ``moe_layer_interval``-th, have
    ``moe_num_experts``, of which ``moe_k`` work on a token, and ``moe_num_shared_experts`` for all. The weights of those chosen
    are divided by their sum, or by ``moe_norm_min`` where that is more.
    """

    model_type = "ernie4_5_moe"
    aliases = {"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_k", "num_local_experts": "moe_num_experts"}

    hidden_size: int = 2560
    intermediate_size: int = 12288
    num_hidden_layers: Layers = 28
    num_attention_heads: int = 20
    num_key_value_heads: int = 4
    head_dim: int = derived(lambda c: c.divided("hidden_size", "num_attention_heads"))
    moe_intermediate_size: int = 1536
    moe_k: int = 6
    moe_num_experts: Experts = 64
    moe_num_shared_experts: int = 2
    moe_layer_start_index: int = 1
    moe_layer_end_index: int = derived(lambda c: c.num_hidden_layers - 1, absent=-1)
    moe_layer_interval: Count = 1
    moe_norm_min: float = 1e-12
    gguf_keys = {"interleave_moe_layer_step": "moe_layer_interval"}

    def to_gguf(self) -> dict[str, Any]:
        inner = self.moe_intermediate_size * self.moe_num_shared_experts
        return super().to_gguf() | {"expert_shared_feed_forward_length": inner}

    def is_sparse(self, layer: int) -> bool:
        inside = self.moe_layer_start_index <= layer <= self.moe_layer_end_index
        return inside and (layer + 1) % self.moe_layer_interval == 0


class CorrectedRouter(Router):
    """Chooses by probabilities to which ``correction_bias`` (1, E), which is not trained, is added.

    It is no part of the weights, which are divided by their sum, or by ``least`` where that is more.
    """

    def __init__(self, *sizes: int, least: float) -> None:
        super().__init__(*sizes)
        self.correction_bias = nn.Parameter(torch.zeros(1, sizes[1]), requires_grad=False)
        self.least = least

    def reset_parameters(self, std: float = 0.02) -> None:
        super().reset_parameters(std)
        if "correction_bias" in self.__dict__.get("_parameters", {}):  # is made behind the weights
            nn.init.zeros_(self.correction_bias)

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(wide(x), wide(self.weight))

    def choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        scores = F.softmax(logits, dim=-1)
        experts = torch.topk(scores + self.correction_bias, self.top, dim=-1).indices
        weights = scores.gather(1, experts)
        return weights / weights.sum(dim=-1, keepdim=True).clamp(min=self.least), experts


ERNIE_EXPERTS: Table = {
    "gate": ("router", {"weight": "weight", "moe_statics.e_score_correction_bias": "correction_bias"}),
    "experts": "experts",
    "shared_experts": "shared",
}


class Ernie4_5_MoeModel(MixtralModel):  # noqa: N801
    config_class = Ernie4_5_MoeConfig
    names = sparse_names(
        ERNIE_EXPERTS,
        files={"moe_statics": "gate.moe_statics"},
        ignore=("mtp_block", "mtp_emb_norm", "mtp_hidden_norm", "mtp_linear_proj"),  # layers that predict more tokens
        exact=("router",),
    )
    gguf = Layout()
    attention_class = InterleavedAttention
    config: Ernie4_5_MoeConfig

    def experts(self) -> nn.Module:
        c, inner = self.config, self.config.moe_intermediate_size
        options: dict[str, Any] = {"bias": c.mlp_bias, "chunk_size": c.chunk_size_feed_forward}
        count = c.moe_num_shared_experts
        shared = GatedMLP(c.hidden_size, inner * count, c.hidden_act, **options) if count > 0 else None
        return sparse_mlp(c, inner, partial(CorrectedRouter, least=c.moe_norm_min), shared=shared)


class Ernie4_5_MoeForCausalLM(ForSparseCausalLM[Ernie4_5_MoeModel]):  # noqa: N801
    def make_head(self, config: Config) -> nn.Module:
        return nn.Linear(self.backbone.dim, self.backbone.vocab_size, bool(config.use_bias))
