"""Granite 4 (Granite Team, IBM 2025): Granite with experts most of whose layers have a mixer of Mamba-2."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from transept.checkpoint.gguf import Layout, side_by_side
from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import derived
from transept.heads.language import ForSparseCausalLM
from transept.kinds.hybrid import LINEAR, STATE_KEYS, HeadsByLayer, HybridBackbone, StateSpaceSettings, state_space
from transept.layers import FusedGatedMLP
from transept.layers.recurrent import STATE_SPACE
from transept.models.granite import Multiplier
from transept.models.granitemoe import FILES, GraniteMoeForCausalLM
from transept.models.granitemoeshared import GraniteMoeSharedConfig, GraniteMoeSharedModel
from transept.models.llama import ATTENTION, NORMS, LlamaModel
from transept.models.mamba import OLDER_KINDS, mixer_files
from transept.models.mamba2 import Mamba2Model
from transept.storage.gguf import GGUF


class GraniteMoeHybridConfig(GraniteMoeSharedConfig, HeadsByLayer, StateSpaceSettings):
    """Settings of Granite 4; ``layer_types`` names layers of attention and of states; without it all keep states.

    Without ``num_local_experts`` the layer for all tokens, of the inner size ``shared_intermediate_size``, is alone. Attention
    has rotary positions only where ``position_embedding_type`` is ``"rope"``.
    """

    model_type = "granitemoehybrid"
    older = OLDER_KINDS

    shared_intermediate_size: int = 1024
    position_embedding_type: str | None = None
    layer_types: list[str] = derived(lambda c: [LINEAR] * c.num_hidden_layers)

    gguf_keys = GraniteMoeSharedConfig.gguf_keys | STATE_KEYS

    @classmethod
    def from_gguf(cls, gguf: GGUF, values: dict[str, Any]) -> dict[str, Any]:
        turns = gguf.get("granitehybrid.rope.scaling.finetuned", bool, False)
        inner, size = gguf.get("granitehybrid.ssm.inner_size", int, 0), values.get("hidden_size")
        found: dict[str, Any] = {"position_embedding_type": "rope" if turns else "nope"}
        if isinstance(size, int) and size > 0 and inner:
            found["mamba_expand"] = inner // size
        return {"num_local_experts": 0} | super().from_gguf(gguf, values) | found

    def to_gguf(self) -> dict[str, Any]:
        own: dict[str, Any] = {"ssm.inner_size": self.mamba_inner}
        if not self.num_local_experts:
            own["feed_forward_length"] = self.shared_intermediate_size
        return super().to_gguf() | own | {"rope.scaling.finetuned": self.position_embedding_type == "rope"}

    def rope_kind(self, layer: int) -> str | None:
        return super().rope_kind(layer) if self.position_embedding_type == "rope" else None

    def is_sparse(self, layer: int) -> bool:
        return self.num_local_experts > 0


def hybrid_block(c: GraniteMoeHybridConfig) -> tuple[str, Table]:
    """The parts of a layer, in the reference's order; without experts the layer for all tokens is the only one."""
    everyone: Table = {"input_linear": "gate_up_proj", "output_linear": "down_proj"}
    sparse: Table = {"router": "router", "experts": "experts"}
    mlp: Table = {"block_sparse_moe": ("mlp", sparse)} if c.num_local_experts else {}
    shared: Table = {"shared_mlp": ("mlp.shared" if c.num_local_experts else "mlp", everyone)}
    return "layers.*", {**NORMS, **mlp, **shared, "self_attn": ("self_attn", ATTENTION), "mamba": ("mixer", STATE_SPACE)}


class GraniteMoeHybridModel(HybridBackbone, GraniteMoeSharedModel):
    config_class = GraniteMoeHybridConfig
    names = LlamaModel.names | Names(
        {"layers.*": hybrid_block}, files={"layers.*.block_sparse_moe": ("layers.*.block_sparse_moe", FILES)}
    )
    gguf = Layout(
        {
            **mixer_files(Mamba2Model.gguf),
            **GraniteMoeSharedModel.gguf.layer,
            "ffn_gate_up": "mlp.gate_up_proj",
        },
        changes={**Mamba2Model.gguf.changes, **LlamaModel.gguf.changes},
        joined={**GraniteMoeSharedModel.gguf.joined, "ffn_gate_up.weight": side_by_side("ffn_gate.weight", "ffn_up.weight")},
    )
    config: GraniteMoeHybridConfig

    def block(self, layer: int, **more: Any) -> Any:
        if self.config.layer_types[layer] == LINEAR:
            more["branch"] = partial(Multiplier, self.config.residual_multiplier)
        return super().block(layer, **more)

    def feed_forward(self, layer: int) -> nn.Module:
        c = self.config
        if c.is_sparse(layer):
            return super().feed_forward(layer)
        return FusedGatedMLP(c.hidden_size, c.shared_intermediate_size, c.hidden_act, chunk_size=c.chunk_size_feed_forward)

    def mixer(self, layer: int) -> nn.Module:
        return state_space(self.config)


class GraniteMoeHybridForCausalLM(GraniteMoeForCausalLM, ForSparseCausalLM[GraniteMoeHybridModel]): ...
