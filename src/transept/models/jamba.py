"""Jamba (Lieber et al. 2024): layers of attention among those of Mamba, and experts in every other feed-forward layer."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from torch import Tensor, nn

from transept.checkpoint.gguf import Layout
from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Count, Experts, Layers, PaddingId, derived
from transept.config.gguf import by_layers
from transept.config.model import Config
from transept.heads.language import ForSparseCausalLM
from transept.kinds.decoder import FULL
from transept.kinds.experts import BalancedConfig, sparse_mlp
from transept.kinds.hybrid import LINEAR, HybridBackbone, heads_by_layer
from transept.layers import RMSNorm
from transept.layers.moe import Router
from transept.models.llama import ATTENTION, LlamaForSequenceClassification, LlamaModel
from transept.models.mamba import STATE_FILES, MambaMixer, mixer_files
from transept.models.mixtral import MixtralModel, experts_files
from transept.storage.gguf import GGUF


class JambaConfig(BalancedConfig):
    """Settings of Jamba; the defaults are those of Jamba 1.

    One layer in ``attn_layer_period`` has attention, which knows no positions, and one in ``expert_layer_period`` has experts;
    the offsets tell which. ``mamba_dt_rank`` is a sixteenth of ``hidden_size`` when ``"auto"``. ``use_mamba_kernels``,
    ``use_mambapy`` and ``use_associative_scan`` have no effect: they choose between equal computations.
    """

    model_type = "jamba"
    aliases = {"num_local_experts": "num_experts"}
    unwritten = Config.unwritten | {"rope_parameters"}

    vocab_size: int = 65536
    intermediate_size: int = 14336
    num_hidden_layers: Layers = 32
    num_key_value_heads: int = 8
    pad_token_id: PaddingId | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    max_position_embeddings: int = 262144
    num_experts_per_tok: int = 2
    num_experts: Experts = 16
    expert_layer_period: Count = 2
    expert_layer_offset: int = 1
    attn_layer_period: Count = 8
    attn_layer_offset: int = 4
    use_mamba_kernels: bool = True
    mamba_d_state: Count = 16
    mamba_d_conv: Count = 4
    mamba_expand: Count = 2
    mamba_dt_rank: Count = derived(lambda c: math.ceil(c.hidden_size / 16), absent="auto")
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False
    use_mambapy: bool = False
    use_associative_scan: bool = True

    gguf_keys = {
        "ssm.conv_kernel": "mamba_d_conv",
        "ssm.state_size": "mamba_d_state",
        "ssm.time_step_rank": "mamba_dt_rank",
    }

    @classmethod
    def from_gguf(cls, gguf: GGUF, values: dict[str, Any]) -> dict[str, Any]:
        inner, size = gguf.get("jamba.ssm.inner_size", int, 0), values.get("hidden_size")
        found: dict[str, Any] = {"mamba_expand": inner // size} if isinstance(size, int) and 0 < size <= inner else {}
        attends = by_layers(gguf, "attention.head_count_kv") or []
        sparse = [f"blk.{layer}.ffn_gate_inp.weight" in gguf.tensors for layer in range(len(attends))]
        return values | found | cls.every("attn", attends) | cls.every("expert", sparse)

    @classmethod
    def every(cls, name: str, layers: list[bool]) -> dict[str, int]:
        """The period and the offset of the layers that have something; the usual ones, if these are as good as any."""
        period, offset = f"{name}_layer_period", f"{name}_layer_offset"
        usual: tuple[int, int] = getattr(cls, period), getattr(cls, offset)
        if not any(layers) or [layer % usual[0] == usual[1] for layer in range(len(layers))] == layers:
            return {}
        first, *others = (layer for layer, has in enumerate(layers) if has)
        return {period: others[0] - first if others else len(layers), offset: first}

    def to_gguf(self) -> dict[str, Any]:
        return super().to_gguf() | heads_by_layer(self) | {"ssm.inner_size": self.mamba_expand * self.hidden_size}

    @property
    def layer_types(self) -> list[str]:
        attends = (layer % self.attn_layer_period == self.attn_layer_offset for layer in range(self.num_hidden_layers))
        return [FULL if each else LINEAR for each in attends]

    @property
    def layers_block_type(self) -> list[str]:
        return ["attention" if kind == FULL else "mamba" for kind in self.layer_types]

    def rope_kind(self, layer: int) -> str | None:
        return None

    def is_sparse(self, layer: int) -> bool:
        return self.num_experts > 1 and layer % self.expert_layer_period == self.expert_layer_offset


class JambaMixer(MambaMixer):
    """A mixer with norms behind the projection that selects."""

    def __init__(self, c: JambaConfig) -> None:
        sizes = (c.mamba_expand * c.hidden_size, int(c.mamba_dt_rank), c.mamba_d_state, c.mamba_d_conv)
        super().__init__(c.hidden_size, *sizes, c.hidden_act, bias=c.mamba_proj_bias, conv_bias=c.mamba_conv_bias)
        self.dt_layernorm, self.b_layernorm, self.c_layernorm = (RMSNorm(size, c.rms_norm_eps) for size in self.sizes)

    def select(self, x: Tensor) -> tuple[Tensor, ...]:
        rank, write, read = super().select(x)
        return self.dt_layernorm(rank), self.b_layernorm(write), self.c_layernorm(read)


MIXER: Table = {
    **{name: name for name in ("A_log", "D", "conv1d", "in_proj", "x_proj", "dt_proj", "out_proj")},
    **{f"{name}_layernorm": f"{name}_layernorm" for name in ("dt", "b", "c")},
}
JAMBA_BLOCK: Table = {
    "mamba": ("mixer", MIXER),
    "self_attn": ("self_attn", ATTENTION),
    "feed_forward": ("mlp", {"router": "router", "experts": "experts"}),
    "input_layernorm": "self_attn_norm",
    "pre_ff_layernorm": "mlp_norm",
}
FILES: Table = {"layers.*.feed_forward": ("layers.*.feed_forward", {**experts_files(), "router": "router"})}


class JambaModel(HybridBackbone, MixtralModel):
    config_class = JambaConfig
    names = LlamaModel.names | Names({"layers.*": ("layers.*", JAMBA_BLOCK), "final_layernorm": "norm"}, files=FILES)
    gguf = Layout(
        mixer_files(STATE_FILES) | {f"ssm_{name}_norm": f"mixer.{name}_layernorm" for name in ("dt", "b", "c")},
        changes=STATE_FILES.changes,
    )
    config: JambaConfig

    def mixer(self, layer: int) -> nn.Module:
        return JambaMixer(self.config)

    def experts(self) -> nn.Module:
        return sparse_mlp(self.config, self.config.intermediate_size, partial(Router, normalize=False))


class JambaForCausalLM(ForSparseCausalLM[JambaModel]): ...


class JambaForSequenceClassification(LlamaForSequenceClassification, backbone=JambaModel): ...
