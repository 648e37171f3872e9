"""Mixtral (Jiang et al. 2024): Mistral in which a router chooses two of eight feed-forward layers for each token."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from transept.checkpoint.keys import Stacked, Table
from transept.checkpoint.names import Names
from transept.config.fields import Count, Experts
from transept.heads.language import ForSparseCausalLM
from transept.heads.span import ForQuestionAnswering
from transept.kinds.experts import BalancedConfig, RoutedBackbone, SparseConfig, sparse_mlp
from transept.layers.moe import Router, SortedExperts
from transept.models.llama import LLAMA_BLOCK, LlamaForSequenceClassification, LlamaForTokenClassification, LlamaModel
from transept.objectives.classification import load_balance
from transept.objectives.terms import LossTerm


class MixtralConfig(BalancedConfig):
    """Settings of Mixtral; the defaults are those of Mixtral 8x7B.

    With ``router_jitter_noise`` tokens are multiplied, in training, by noise that is so far from one at most.
    """

    model_type = "mixtral"
    aliases = {"num_experts": "num_local_experts"}
    default_theta = 1e6

    intermediate_size: int = 14336
    num_key_value_heads: int = 8
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1e-5
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    num_local_experts: Experts = 8
    num_experts_per_tok: int = 2
    router_jitter_noise: float = 0.0
    sliding_window: Count | None = None

    def window(self, layer: int) -> int | None:
        return self.sliding_window


def experts_files(gate: str = "gate_proj", up: str = "up_proj", down: str = "down_proj") -> Table:
    """The names of a layer of experts in files, where each expert has matrices of these names; stacked ones are read too."""
    return {
        "gate": "gate",
        f"experts.*.{gate}.weight": Stacked("experts.gate_up_proj", 0, 2),
        f"experts.*.{up}.weight": Stacked("experts.gate_up_proj", 1, 2),
        f"experts.*.{down}.weight": Stacked("experts.down_proj"),
        "experts.gate_up_proj": "experts.gate_up_proj",
        "experts.down_proj": "experts.down_proj",
    }


def sparse_names(experts: Table, block: Table = LLAMA_BLOCK, *, files: Table | None = None, **more: Any) -> Names:
    """The names of Llama with these in the place of its feed-forward layers.

    In files each expert has matrices of its own; ``files`` are other names that are within these layers there.
    """
    table: Table = {"layers.*": ("layers.*", {**block, "mlp": ("mlp", experts)})}
    stored: Table = {"layers.*.mlp": ("layers.*.mlp", {**experts_files(), **(files or {})})}
    return LlamaModel.names | Names(table, files=stored, **more)


class MixtralModel(RoutedBackbone, LlamaModel):
    config_class: ClassVar[type[SparseConfig]] = MixtralConfig
    names = LlamaModel.names | Names(
        {"layers.*": ("layers.*", {**LLAMA_BLOCK, "mlp": ("mlp", {"gate": "router", "experts": "experts"})})},
        files={"layers.*.block_sparse_moe": ("layers.*.mlp", experts_files("w1", "w3", "w2"))},
        legacy={f"layers.*.mlp.{part}": f"layers.*.block_sparse_moe.{part}" for part in ("gate", "experts")},
    )
    gguf = LlamaModel.gguf
    balances: ClassVar[bool] = True  # whether a loss tells how even choices are, where the config has a weight for it
    config: SparseConfig

    def feed_forward(self, layer: int) -> nn.Module:
        return self.experts() if self.config.is_sparse(layer) else super().feed_forward(layer)

    def experts(self) -> nn.Module:
        return sparse_mlp(self.config, self.config.intermediate_size, jitter=self.config.router_jitter_noise)

    def initialize_module(self, module: nn.Module) -> None:
        super().initialize_module(module)
        if isinstance(module, SortedExperts | Router):
            module.reset_parameters(self.config.initializer_range)

    def balance(self, logits: tuple[Tensor, ...], real: Tensor | None) -> dict[str, LossTerm] | None:
        if not self.balances or (weight := self.config.router_aux_loss_coef) is None:
            return None
        return {"load_balance": load_balance(logits, self.config.num_experts_per_tok, real, weight)}


class MixtralForCausalLM(ForSparseCausalLM[MixtralModel]): ...


class MixtralForSequenceClassification(LlamaForSequenceClassification, backbone=MixtralModel): ...


class MixtralForTokenClassification(LlamaForTokenClassification, backbone=MixtralModel): ...


class MixtralForQuestionAnswering(ForQuestionAnswering[MixtralModel]): ...
