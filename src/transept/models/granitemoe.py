"""Granite with experts (Granite Team, IBM 2024), and PowerMoE: the multipliers of Granite, and layers like those of Mixtral."""

from __future__ import annotations

from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Experts
from transept.heads.language import ForSparseCausalLM
from transept.kinds.experts import BalancedConfig, sparse_mlp
from transept.layers.moe import TopRouter
from transept.models.granite import GraniteConfig, GraniteModel
from transept.models.llama import ATTENTION, NORMS, LlamaModel
from transept.models.mixtral import MixtralModel


class GraniteMoeConfig(GraniteConfig, BalancedConfig):
    """Settings of Granite with experts; the multipliers are those of Granite."""

    model_type = "granitemoe"
    aliases = {"num_experts": "num_local_experts"}

    num_local_experts: Experts = 8
    num_experts_per_tok: int = 2


SPARSE_BLOCK: Table = {
    "self_attn": ("self_attn", ATTENTION),
    **NORMS,
    "block_sparse_moe": ("mlp", {"router": "router", "experts": "experts"}),
}
FILES: Table = {
    "input_linear.weight": "experts.gate_up_proj",
    "output_linear.weight": "experts.down_proj",
    "router.layer.weight": "router.weight",
}


class GraniteMoeModel(GraniteModel, MixtralModel):
    config_class = GraniteMoeConfig
    names = LlamaModel.names | Names(
        {"layers.*": ("layers.*", SPARSE_BLOCK)},
        files={"layers.*.block_sparse_moe": ("layers.*.block_sparse_moe", FILES)},
    )
    gguf = LlamaModel.gguf
    config: GraniteMoeConfig

    def experts(self) -> nn.Module:
        return sparse_mlp(self.config, self.config.intermediate_size, TopRouter)


class GraniteMoeForCausalLM(ForSparseCausalLM[GraniteMoeModel]):
    def score(self, hidden: Tensor) -> Tensor:
        return super().score(hidden) / self.config.logits_scaling
