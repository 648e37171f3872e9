"""Granite with experts, beside a feed-forward layer for all tokens."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from transept.checkpoint.gguf import Layout, side_by_side
from transept.checkpoint.names import Names
from transept.heads.language import ForSparseCausalLM
from transept.kinds.experts import sparse_mlp
from transept.layers import FusedGatedMLP
from transept.layers.moe import TopRouter
from transept.models.granitemoe import GraniteMoeConfig, GraniteMoeForCausalLM, GraniteMoeModel
from transept.models.llama import LlamaModel


class GraniteMoeSharedConfig(GraniteMoeConfig):
    """Settings; ``shared_intermediate_size`` is the inner size of the layer for all tokens, 0 where there is none."""

    model_type = "granitemoeshared"

    shared_intermediate_size: int = 0
    gguf_keys = GraniteMoeConfig.gguf_keys | {"expert_shared_feed_forward_length": "shared_intermediate_size"}


class GraniteMoeSharedModel(GraniteMoeModel):
    config_class: ClassVar[type[GraniteMoeSharedConfig]] = GraniteMoeSharedConfig
    names = GraniteMoeModel.names | Names(
        {"layers.*.shared_mlp": ("layers.*.mlp.shared", {"input_linear": "gate_up_proj", "output_linear": "down_proj"})}
    )
    gguf = Layout(
        {"ffn_gate_shexp": None, "ffn_up_shexp": None, "ffn_gate_up_shexp": "mlp.shared.gate_up_proj"},
        changes=LlamaModel.gguf.changes,
        joined={"ffn_gate_up_shexp.weight": side_by_side("ffn_gate_shexp.weight", "ffn_up_shexp.weight")},
    )
    config: GraniteMoeSharedConfig

    def experts(self) -> nn.Module:
        c, inner = self.config, self.config.shared_intermediate_size
        shared = FusedGatedMLP(c.hidden_size, inner, c.hidden_act, chunk_size=c.chunk_size_feed_forward) if inner else None
        return sparse_mlp(c, c.intermediate_size, TopRouter, shared=shared)


class GraniteMoeSharedForCausalLM(GraniteMoeForCausalLM, ForSparseCausalLM[GraniteMoeSharedModel]): ...
