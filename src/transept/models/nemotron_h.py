"""Nemotron-H (NVIDIA 2025): each layer is one thing, a mixer of Mamba-2, attention, a feed-forward layer or one of experts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from transept.checkpoint.gguf import SAVE_PLAIN, Layout
from transept.checkpoint.keys import Stacked, Table
from transept.checkpoint.names import Names
from transept.config.fields import Count, Experts, Layers, PaddingId, derived
from transept.config.gguf import by_layers
from transept.config.model import Config
from transept.errors import UnsupportedError
from transept.heads.language import ForSparseCausalLM
from transept.kinds.decoder import FULL
from transept.kinds.experts import SharedExpertsConfig
from transept.kinds.hybrid import LINEAR, HybridBackbone, KindsConfig, LimitedSteps, heads_by_layer, spread_steps
from transept.layers import MLP, Context
from transept.layers.links import Layer, Linked
from transept.layers.mlp import activation
from transept.layers.moe import SigmoidRouter, SortedExperts, SparseMLP
from transept.layers.norm import WideRMSNorm
from transept.layers.recurrent import STATE_SPACE, StateSizes, StateSpaceMixer
from transept.models.mamba import OLDER_KINDS, mixer_files
from transept.models.mamba2 import Mamba2Model
from transept.models.mixtral import MixtralModel
from transept.storage.gguf import GGUF

LETTERS = {"M": LINEAR, "E": "moe", "*": FULL, "-": "mlp"}
# Settings of older files, behind `mamba_`.
OLDER = {"n_groups": "n_groups", "d_conv": "conv_kernel", "expand": "expand", "dt_min": "time_step_min"}
OLDER |= {"dt_max": "time_step_max", "dt_limit": "time_step_limit", "dt_init_floor": "time_step_floor"}
OLDER |= {"conv_bias": "use_conv_bias", "chunk_size": "chunk_size"}

# What says how experts are chosen, and its keys in GGUF files.
ROUTING, COUNTS = ("num_experts_per_tok", "n_group", "topk_group"), ("count", "used_count", "group_count", "group_used_count")


class NemotronHConfig(SharedExpertsConfig, KindsConfig, LimitedSteps):
    """Settings of Nemotron-H, as many layers as ``layer_types`` names; older files have a letter for each.

    Mixers have ``mamba_num_heads`` of ``mamba_head_dim`` channels, and steps of ``time_step_min`` at least. Experts have no
    gates, and work on ``moe_latent_size`` numbers of a token where that is given. ``attention_bias``, ``time_step_limit``,
    ``chunk_size``, ``use_mamba_kernels``, ``mamba_ssm_cache_dtype``, ``residual_in_fp32``, ``hidden_dropout`` and
    ``moe_shared_expert_overlap`` have no effect; layers that predict further tokens (``mtp_...``) are not read.
    """

    model_type = "nemotron_h"
    kinds, older = (LINEAR, FULL, "mlp", "moe"), OLDER_KINDS
    aliases = {f"mamba_{old}": new for old, new in OLDER.items()}
    unwritten = Config.unwritten | {"rope_parameters", "first_k_dense_replace", "num_hidden_layers", "rms_norm_eps"}

    vocab_size: int = 131072
    layer_types: list[str] = derived(lambda c: [LINEAR, "moe", FULL, "mlp"])
    num_hidden_layers: Layers = derived(lambda c: len(c.layer_types), fixed=True)
    num_logits_to_keep: int = 1
    pad_token_id: PaddingId | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    num_key_value_heads: int = 8
    head_dim: int = 128
    max_position_embeddings: int = 4096
    attention_bias: bool = False
    sliding_window: Count | None = None
    intermediate_size: int = 21504
    mlp_hidden_act: str = "relu2"
    mlp_bias: bool = False
    use_mamba_kernels: bool = True
    ssm_state_size: Count = 128
    mamba_num_heads: Count = 128
    mamba_head_dim: Count = 64
    mamba_hidden_act: str = "silu"
    n_groups: Count = 8
    conv_kernel: Count = 4
    expand: int = 2
    time_step_min: float = 0.001
    time_step_max: float = 0.1
    time_step_floor: float = 1e-4
    use_conv_bias: bool = True
    chunk_size: Count = 128
    mamba_proj_bias: bool = False
    mamba_ssm_cache_dtype: str = "float32"
    n_routed_experts: Experts | None = 8
    n_shared_experts: int | None = 1
    moe_intermediate_size: int = 7688
    moe_shared_expert_intermediate_size: int = 7688
    moe_latent_size: int | None = None
    moe_shared_expert_overlap: bool = True
    num_experts_per_tok: int | None = 2
    num_nextn_predict_layers: int = 0
    mtp_layers_block_type: list[str] = derived(lambda c: [FULL, "moe"])
    use_bias: bool = False
    layer_norm_epsilon: float = 1e-5
    rms_norm_eps: float = derived(lambda c: c.layer_norm_epsilon, fixed=True)
    residual_in_fp32: bool = False
    hidden_dropout: float = 0.0
    rescale_prenorm_residual: bool = True

    @classmethod
    def upgrade(cls, values: dict[str, Any]) -> dict[str, Any]:
        values = super().upgrade(values)
        names = {"hybrid_override_pattern": "layer_types", "mtp_hybrid_override_pattern": "mtp_layers_block_type"}
        for name, kinds in names.items():
            pattern = values.pop(name, None)
            if isinstance(pattern, str) and values.get(kinds) is None and values.get("layers_block_type") is None:
                values[kinds] = [LETTERS.get(letter, letter) for letter in pattern]
        return values

    gguf_keys = {
        "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
        "ssm.conv_kernel": "conv_kernel",
        "ssm.state_size": "ssm_state_size",
        "ssm.group_count": "n_groups",
        "ssm.time_step_rank": "mamba_num_heads",
        "expert_shared_feed_forward_length": "moe_shared_expert_intermediate_size",
        "moe_latent_size": "moe_latent_size",
    }

    @classmethod
    def from_gguf(cls, gguf: GGUF, values: dict[str, Any]) -> dict[str, Any]:
        attends, adds = (by_layers(gguf, key) or [] for key in ("attention.head_count_kv", "feed_forward_length"))
        count, inner = values.pop("num_hidden_layers", 0), gguf.get(f"{gguf.architecture}.ssm.inner_size", int, 0)
        last = "moe" if (sparse := any("ffn_gate_inp" in name for name in gguf.tensors)) else "mlp"
        kinds = [FULL if attend else last if add else LINEAR for attend, add in zip(attends, adds, strict=False)]
        found: dict[str, Any] = {"layer_types": kinds[:count]}
        parts = {"mlp_bias": "ffn_up.bias", "use_conv_bias": "ssm_conv1d.bias"}
        found |= {name: any(stored.endswith(part) for stored in gguf.tensors) for name, part in parts.items()}
        if heads := values.get("mamba_num_heads"):
            found["mamba_head_dim"] = inner // heads
        unused = () if sparse else ("num_local_experts", *ROUTING)
        return {name: value for name, value in values.items() if name not in unused} | found

    def in_gguf(self) -> Self:
        """Without what has no effect."""
        if self.time_step_min != (usual := type(self).time_step_min) or {"moe", "mlp"} <= {*self.layer_types}:
            what = f"GGUF files have Nemotron-H with `time_step_min` {usual} alone, and no plain layers among those of experts."
            raise UnsupportedError(what, hint=SAVE_PLAIN)
        names = ["expand", "attention_bias", "use_mamba_kernels", "mamba_ssm_cache_dtype", "residual_in_fp32", "sliding_window"]
        names += ["moe_shared_expert_overlap", "rescale_prenorm_residual", "num_logits_to_keep"]
        names += [] if "moe" in self.layer_types else ["n_routed_experts", *ROUTING]
        own: dict[str, Any] = {name: getattr(type(self), name) for name in names}
        own |= {"time_step_limit": [0.0, math.inf], "mtp_layers_block_type": [FULL, "moe"], "tie_word_embeddings": False}
        if "mlp" not in self.layer_types:
            own["intermediate_size"] = self.moe_intermediate_size if "moe" in self.layer_types else type(self).intermediate_size
        return self.with_settings(**own)

    def to_gguf(self) -> dict[str, Any]:
        inner = {"mlp": self.intermediate_size, "moe": self.moe_intermediate_size}
        own: dict[str, Any] = {"feed_forward_length": [inner.get(kind, 0) for kind in self.layer_types]}
        own |= {"ssm.inner_size": self.mamba_num_heads * self.mamba_head_dim}
        own |= {} if "moe" in self.layer_types else dict.fromkeys((f"expert_{name}" for name in COUNTS), 0)
        return super().to_gguf() | heads_by_layer(self) | own

    def rope_kind(self, layer: int) -> str | None:
        return None

    def is_sparse(self, layer: int) -> bool:
        return self.layer_types[layer] == "moe"


class PlainExperts(SortedExperts, Linked):
    """Experts without gates, between projections of tokens to fewer numbers and back where these are given."""

    up_proj: nn.Parameter

    def __init__(self, c: NemotronHConfig) -> None:
        dim, inner = c.hidden_size, c.moe_latent_size
        super().__init__(c.n_routed_experts or 0, inner or dim, c.moe_intermediate_size)
        self.act = activation(c.mlp_hidden_act)
        self.before: nn.Module = nn.Linear(dim, inner, c.mlp_bias) if inner else nn.Identity()
        self.behind: nn.Module = nn.Linear(inner, dim, c.mlp_bias) if inner else nn.Identity()

    def make_weights(self, dim: int, hidden: int) -> None:
        self.up_proj = nn.Parameter(torch.empty(self.count, hidden, dim))
        self.down_proj = nn.Parameter(torch.empty(self.count, dim, hidden))

    def reset_parameters(self, std: float = 0.02) -> None:
        self.fill(self.up_proj, self.down_proj, std=std)

    def forward(self, x: Tensor, weights: Tensor, experts: Tensor) -> Tensor:
        return self.behind(super().forward(self.before(x), weights, experts))

    def apply_sorted(self, rows: Tensor, chosen: Tensor, ends: Tensor) -> Tensor:
        return self.multiply("down_proj", self.act(self.multiply("up_proj", rows, ends)), ends)


class NemotronHBlock(Layer):
    """One part, which reads its normed input and is added to the input."""

    part: ClassVar[str]

    def __init__(self, module: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.part_norm = norm
        setattr(self, self.part, module)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        out = getattr(self, self.part)(self.part_norm(x), ctx)
        return x + (out[0] if isinstance(out, tuple) else out)


class MixerBlock(NemotronHBlock):
    part = "mixer"


class AttentionBlock(NemotronHBlock):
    part = "self_attn"


class MLPBlock(NemotronHBlock):
    part = "mlp"


PARTS: Table = {
    **{name: f"mixer.{name}" for name in STATE_SPACE},
    **{f"{name}_proj": f"self_attn.{name}_proj" for name in "qkvo"},
    "up_proj": "mlp.up_proj",
    "down_proj": "mlp.down_proj",
    "experts": "mlp.experts",
    "gate": ("mlp.router", {"e_score_correction_bias": "correction_bias"}),
    "shared_experts": "mlp.shared",
    "fc1_latent_proj": "mlp.experts.before",
    "fc2_latent_proj": "mlp.experts.behind",
}
STACKED: Table = {f"experts.*.{name}.weight": Stacked(f"experts.{name}") for name in ("up_proj", "down_proj")}
KEPT: Table = {"experts.up_proj": "experts.up_proj", "experts.down_proj": "experts.down_proj"}


FILES = Layout(
    {
        **mixer_files(Mamba2Model.gguf),
        "attn_norm": "part_norm",
        "ffn_gate_exps.*.weight": None,
        "ffn_up_exps.*.weight": Stacked("mlp.experts.up_proj"),
        "ffn_latent_down": "mlp.experts.before",
        "ffn_latent_up": "mlp.experts.behind",
    },
    changes=Mamba2Model.gguf.changes,
)


class NemotronHModel(HybridBackbone, MixtralModel):
    config_class = NemotronHConfig
    names = Names(
        {"embeddings": "embed_tokens", "layers.*": ("layers.*", {"norm": "part_norm", "mixer": ("", PARTS)}), "norm_f": "norm"},
        files={"layers.*.mixer": ("layers.*.mixer", {**STACKED, **KEPT})},
        ignore=("mtp",),
        exact=("correction_bias",),
    )
    stored_prefix = "backbone"
    norm_class = WideRMSNorm
    reads = ("input_ids", "inputs_embeds", "position_ids", "past_key_values", "use_cache", "labels", "attention_mask")
    adapter_targets = ("q_proj", "k_proj", "v_proj", "o_proj")  # peft's
    balances = False
    config: NemotronHConfig

    @property
    def gguf(self) -> Layout:  # type: ignore[override]
        return replace(FILES, architecture="nemotron_h" + ("_moe" if "moe" in self.config.layer_types else ""))

    def block(self, layer: int, **more: Any) -> Any:
        c, kind = self.config, self.config.layer_types[layer]
        if kind == LINEAR:
            return MixerBlock(self.mixer(layer), self.make_norm())
        if kind == FULL:
            return AttentionBlock(self.attention(layer, bias=False), self.make_norm())
        return MLPBlock(self.experts() if kind == "moe" else self.plain_mlp(c.intermediate_size), self.make_norm())

    def mixer(self, layer: int) -> nn.Module:
        c = self.config
        sizes = StateSizes(c.mamba_num_heads, c.mamba_head_dim, c.n_groups, c.ssm_state_size, c.conv_kernel)
        options: dict[str, Any] = {"eps": c.layer_norm_epsilon, "bias": c.use_bias, "conv_bias": c.use_conv_bias}
        return StateSpaceMixer(c.hidden_size, sizes, c.mamba_hidden_act, limit=(c.time_step_min, math.inf), **options)

    def plain_mlp(self, inner: int) -> MLP:
        c = self.config
        return MLP(c.hidden_size, inner, c.mlp_hidden_act, bias=c.mlp_bias, chunk_size=c.chunk_size_feed_forward)

    def experts(self) -> nn.Module:
        c = self.config
        options: dict[str, Any] = {"normalize": c.norm_topk_prob, "scale": c.routed_scaling_factor}
        groups = {"groups": c.n_group or 1, "top_groups": c.topk_group or 1}
        router = SigmoidRouter(c.hidden_size, c.n_routed_experts or 0, c.num_experts_per_tok or 0, **options, **groups)
        shared = self.plain_mlp(c.moe_shared_expert_intermediate_size)
        return SparseMLP(router, PlainExperts(c), shared=shared, chunk_size=c.chunk_size_feed_forward)

    @torch.no_grad()
    def initialize_module(self, module: nn.Module) -> None:
        super().initialize_module(module)
        part: Any = module
        mixers: list[Any] = [block.mixer for block in self.layers if isinstance(block, MixerBlock)]
        for mixer in mixers:
            if part is mixer:
                spread_steps(mixer.dt_bias, self.config)
            elif part is mixer.out_proj and self.config.rescale_prenorm_residual:
                nn.init.kaiming_uniform_(part.weight, a=math.sqrt(5))
                part.weight /= math.sqrt(self.config.num_hidden_layers)


class NemotronHForCausalLM(ForSparseCausalLM[NemotronHModel]):
    names = replace(ForSparseCausalLM.names, ties={})  # whatever the config says
    reads = MixtralModel.reads

    def score(self, hidden: Tensor) -> Tensor:
        logits = super().score(hidden)
        return logits.float() if logits.dtype.itemsize < 4 else logits
