"""LFM2 with experts (Liquid AI 2025), of which sigmoids choose with a bias that balances them."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Experts, derived
from transept.config.gguf import SIGMOID
from transept.config.model import Config
from transept.heads.language import ForSparseCausalLM
from transept.kinds.decoder import FULL
from transept.kinds.experts import SparseConfig, sparse_mlp
from transept.layers import GatedMLP
from transept.layers.moe import SigmoidRouter
from transept.models.lfm2 import CONV_BLOCK, ConvConfig, Lfm2Model
from transept.models.mixtral import MixtralModel, experts_files


class Lfm2MoeConfig(ConvConfig, SparseConfig):
    """Settings of LFM2 with experts; the first ``num_dense_layers`` have none.

    With ``use_expert_bias`` a bias is added to the scores when experts are chosen, and is no part of the weights, which are
    multiplied by ``routed_scaling_factor``.
    """

    model_type = "lfm2_moe"
    aliases = {"num_local_experts": "num_experts"}
    unwritten = Config.unwritten | {"rms_norm_eps"}

    hidden_size: int = 2048
    intermediate_size: int = 7168
    moe_intermediate_size: int = 1792
    num_dense_layers: int = 2
    num_experts_per_tok: int = 4
    num_experts: Experts = 32
    use_expert_bias: bool = True
    routed_scaling_factor: float = 1.0
    norm_topk_prob: bool = True
    layer_types: list[str] = derived(lambda c: [FULL] * c.num_hidden_layers)
    rms_norm_eps: float = derived(lambda c: c.norm_eps, fixed=True)

    def to_gguf(self) -> dict[str, Any]:
        return super().to_gguf() | {"expert_gating_func": SIGMOID}

    def is_sparse(self, layer: int) -> bool:
        return layer >= self.num_dense_layers


class Lfm2Router(SigmoidRouter):
    """Sigmoids whose weights sum to a little less than one; if not ``biased``, no bias is stored."""

    def __init__(self, dim: int, count: int, top: int, *, biased: bool, **options: Any) -> None:
        super().__init__(dim, count, top, **options)
        self.biased = biased
        if not biased:
            del self.correction_bias

    def choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        if self.biased:
            return super().choose(logits)
        weights, experts = torch.topk(logits.sigmoid(), self.top, dim=-1)
        return self.weigh(weights), experts

    def weigh(self, scores: Tensor) -> Tensor:
        return (scores / (scores.sum(dim=-1, keepdim=True) + 1e-6) if self.normalize else scores) * self.scale


SPARSE_BLOCK: Table = {
    **CONV_BLOCK,
    "feed_forward": (
        "mlp",
        {
            "expert_bias": "router.correction_bias",
            "experts": "experts",
            "gate": "router",
            "w1": "gate_proj",
            "w3": "up_proj",
            "w2": "down_proj",
        },
    ),
}
FILES: Table = {
    "layers.*.feed_forward": ("layers.*.feed_forward", {**experts_files("w1", "w3", "w2"), "expert_bias": "expert_bias"})
}


class Lfm2MoeModel(Lfm2Model, MixtralModel):
    config_class = Lfm2MoeConfig
    names = Lfm2Model.names | Names({"layers.*": ("layers.*", SPARSE_BLOCK)}, files=FILES)
    gguf = Lfm2Model.gguf
    balances = False
    config: Lfm2MoeConfig

    def feed_forward(self, layer: int) -> nn.Module:
        c = self.config
        if c.is_sparse(layer):
            return self.experts()
        return GatedMLP(c.hidden_size, c.intermediate_size, "silu", chunk_size=c.chunk_size_feed_forward)

    def experts(self) -> nn.Module:
        c = self.config
        options: dict[str, Any] = {"normalize": c.norm_topk_prob, "scale": c.routed_scaling_factor, "biased": c.use_expert_bias}
        return sparse_mlp(c, c.moe_intermediate_size, partial(Lfm2Router, **options))


class Lfm2MoeForCausalLM(ForSparseCausalLM[Lfm2MoeModel]): ...
