"""Kimi Linear (Kimi Team 2025): layers of a delta rule that forgets by channels, and latent attention without positions.

Shapes: B batch, T positions, D hidden size, H heads of states, N their size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.gguf import Change, Joined
from transept.checkpoint.keys import Cut, Table
from transept.checkpoint.names import Names
from transept.config.fields import Count, Experts, Layers, PaddingId, derived
from transept.config.gguf import by_layers
from transept.config.model import Config
from transept.heads.language import ForSparseCausalLM
from transept.kinds.decoder import FULL, LatentConfig, latent_attention
from transept.kinds.experts import SharedExpertsConfig
from transept.kinds.hybrid import LINEAR, HybridBackbone, KindsConfig, spread_steps
from transept.layers import Attention, Context
from transept.layers.caches.layer import States
from transept.layers.links import Layer, Linked
from transept.layers.mlp import activation
from transept.layers.moe import wide
from transept.layers.norm import WideRMSNorm
from transept.layers.recurrent import causal_conv, gated_delta_scan, real_positions
from transept.models.deepseek_v3 import LATENT_ATTENTION, LATENT_FILES, SHARED_EXPERTS, DeepseekV3Model
from transept.models.llama import LLAMA_BLOCK, LlamaModel
from transept.models.mixtral import experts_files
from transept.models.qwen3_next import unit
from transept.storage.gguf import GGUF

SIZES = {"head_dim": "linear_head_dim", "num_heads": "linear_num_heads", "short_conv_kernel_size": "linear_conv_kernel_dim"}


class KimiLinearConfig(LatentConfig, SharedExpertsConfig, KindsConfig):
    """Settings of Kimi Linear; the defaults are those of its checkpoint with 48 billion parameters.

    ``linear_...`` are the sizes of layers with states, which older files have in ``linear_attn_config``, with the numbers of
    layers of each kind from 1 on. ``mlp_layer_types`` names each layer's experts ``sparse``, or is ``dense``; when absent, the
    first ``first_k_dense_replace`` are dense. ``pretraining_tp`` has no effect.
    """

    model_type = "kimi_linear"
    aliases = {
        "num_experts": "num_local_experts",
        "num_experts_per_token": "num_experts_per_tok",
        "num_shared_experts": "n_shared_experts",
        "num_expert_group": "n_group",
        "moe_renormalize": "norm_topk_prob",
        "model_max_length": "max_position_embeddings",
    }
    unwritten = Config.unwritten | {"rope_parameters", "first_k_dense_replace", "n_routed_experts"}

    vocab_size: int = 163840
    hidden_size: int = 2304
    intermediate_size: int = 9216
    moe_intermediate_size: int = 1024
    num_hidden_layers: Layers = 27
    q_lora_rank: int | None = None
    num_local_experts: Experts = 256
    n_routed_experts: Experts | None = derived(lambda c: c.num_local_experts, fixed=True)
    first_k_dense_replace: int = 1
    routed_scaling_factor: float = 2.446
    max_position_embeddings: int = 1048576
    rms_norm_eps: float = 1e-5
    pad_token_id: PaddingId | None = 163839
    bos_token_id: int | None = 163584
    eos_token_id: int | list[int] | None = 163586
    attention_bias: bool = False
    pretraining_tp: int | None = 1
    linear_head_dim: Count = 128
    linear_num_heads: Count = 32
    linear_conv_kernel_dim: Count = 4
    layer_types: list[str] = derived(lambda c: [LINEAR if i % 4 or not i else FULL for i in range(c.num_hidden_layers)])
    mlp_layer_types: list[str] = derived(
        lambda c: ["dense" if i < c.first_k_dense_replace else "sparse" for i in range(c.num_hidden_layers)]
    )

    @classmethod
    def upgrade(cls, values: dict[str, Any]) -> dict[str, Any]:
        values = super().upgrade(values)
        if not isinstance(older := values.pop("linear_attn_config", None), dict):
            return values
        values |= {new: older[old] for old, new in SIZES.items() if old in older}
        if values.get("layer_types") is None and isinstance(attends := older.get("full_attn_layers"), list):
            count = values.get("num_hidden_layers") or cls.num_hidden_layers
            values["layer_types"] = [FULL if layer + 1 in attends else LINEAR for layer in range(count)]
        return values

    gguf_head = "attention.key_length_mla"
    gguf_keys = {
        "attention.value_length_mla": "v_head_dim",
        "kda.head_dim": "linear_head_dim",
        "ssm.conv_kernel": "linear_conv_kernel_dim",
    }

    @classmethod
    def from_gguf(cls, gguf: GGUF, values: dict[str, Any]) -> dict[str, Any]:
        kinds = [FULL if attends else LINEAR for attends in by_layers(gguf, "attention.head_count_kv") or ()]
        heads = dict.fromkeys(("num_key_value_heads", "linear_num_heads"), values.get("num_attention_heads"))
        return super().from_gguf(gguf, values) | heads | {"layer_types": kinds}

    def in_gguf(self) -> Self:
        """With the number of dense layers, which come first."""
        dense = [*self.mlp_layer_types, "sparse"].index("sparse")
        return self.with_settings(first_k_dense_replace=dense, mlp_layer_types=self.mlp_layer_types)

    def to_gguf(self) -> dict[str, Any]:
        rank, kinds = self.kv_lora_rank, self.layer_types
        keys: dict[str, Any] = {"key_length": rank + self.qk_rope_head_dim, "value_length": rank}
        keys |= {"head_count_kv": [int(kind == FULL) for kind in kinds]}
        return super().to_gguf() | {f"attention.{key}": value for key, value in keys.items()}

    def validate(self) -> None:
        super().validate()
        if len(self.mlp_layer_types) != self.num_hidden_layers or set(self.mlp_layer_types) - {"dense", "sparse"}:
            self.fail("mlp_layer_types", f"must name dense or sparse for each of {self.num_hidden_layers} layers")

    def is_sparse(self, layer: int) -> bool:
        return self.mlp_layer_types[layer] == "sparse"

    def rope_kind(self, layer: int) -> str | None:
        return None


class SigmoidHeadNorm(WideRMSNorm):
    """A root-mean-square norm of each head, whose outputs a sigmoid lets through."""

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:  # type: ignore[override]
        return (super().forward(wide(x)) * wide(gate).sigmoid()).to(x.dtype)


class KimiDeltaMixer(Linked):
    """Mixes positions by a convolution and the gated delta rule, in which each channel of a key forgets by itself."""

    time_step_min, time_step_max, time_step_floor = 1e-3, 0.1, 1e-4

    def __init__(self, c: KimiLinearConfig) -> None:
        super().__init__()
        self.heads, self.size, dim = c.linear_num_heads, c.linear_head_dim, c.hidden_size
        inner = self.heads * self.size
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(dim, inner, bias=False) for _ in range(3))
        self.conv1d = nn.Conv1d(3 * inner, 3 * inner, c.linear_conv_kernel_dim, groups=3 * inner, bias=False)
        self.act = activation(c.hidden_act)
        self.dt_bias, self.A_log = nn.Parameter(torch.empty(inner)), nn.Parameter(torch.empty(1, 1, self.heads, 1))
        self.f_a_proj, self.f_b_proj = nn.Linear(dim, self.size, bias=False), nn.Linear(self.size, inner, bias=False)
        self.b_proj = nn.Linear(dim, self.heads, bias=False)
        self.g_a_proj, self.g_b_proj = nn.Linear(dim, self.size, bias=False), nn.Linear(self.size, inner, bias=False)
        self.o_norm = SigmoidHeadNorm(self.size, c.rms_norm_eps)
        self.o_proj = nn.Linear(inner, dim, bias=False)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.A_log.copy_(torch.empty_like(self.A_log).uniform_(1, 16).log())
        spread_steps(self.dt_bias, self)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D); padding on the left leaves states as they are."""
        real, kept, shape = real_positions(x, ctx), ctx.kept(States), (*x.shape[:2], self.heads, self.size)
        x = x if real is None else x * real
        mixed = torch.cat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], dim=-1).mT
        mixed, last = causal_conv(mixed, self.conv1d.weight, None, kept.get("conv") if kept else None)
        q, k, v = (part.reshape(shape) for part in self.act(mixed.mT).chunk(3, dim=-1))
        step = F.softplus(wide(self.f_b_proj(self.f_a_proj(x))) + wide(self.dt_bias)).view(shape)
        logs, share = -wide(self.A_log).exp() * step, self.b_proj(x).sigmoid()
        state = kept.get("recurrent") if kept else None
        y, state = gated_delta_scan(unit(q) * self.size**-0.5, unit(k), v, logs, share, state)
        if kept is not None:
            kept.keep(x.shape[1], conv=last, recurrent=state)
        gate = self.g_b_proj(self.g_a_proj(x)).view(shape)
        return self.o_proj(self.o_norm(y.to(x.dtype), gate).flatten(2))


class DeltaBlock(Layer):
    """A pre-norm block whose mixer stands where others have attention, as files name it."""

    def __init__(self, mixer: nn.Module, mlp: nn.Module, norm: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.self_attn, self.self_attn_norm, self.mlp, self.mlp_norm = mixer, norm(), mlp, norm()

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        x = x + self.self_attn(self.self_attn_norm(x), ctx)
        return x + self.mlp(self.mlp_norm(x), ctx)


GATE = ("dt_bias", "A_log", "f_a_proj", "f_b_proj")
MIXER: Table = {
    **{name: name for name in ("q_proj", "k_proj", "v_proj", "conv1d")},
    **{f"forget_gate.{name}": name for name in GATE},
    **{name: name for name in ("b_proj", "g_a_proj", "g_b_proj", "o_norm")},
}
KIMI_BLOCK: Table = {**LLAMA_BLOCK, "self_attn": ("self_attn", {**MIXER, **LATENT_ATTENTION}), "mlp": ("mlp", SHARED_EXPERTS)}
MIXER_FILES: Table = {
    **{name: f"forget_gate.{name}" for name in GATE},
    **{f"{name}_conv1d.weight": Cut("conv1d.weight", part, 3) for part, name in enumerate("qkv")},
}
KIMI_FILES = replace(
    LATENT_FILES,
    layer={
        **LATENT_FILES.layer,
        **{f"ssm_{name}": f"self_attn.{name}_proj" for name in ("f_a", "f_b", "g_a", "g_b")},
        "ssm_beta": "self_attn.b_proj",
        "ssm_dt.bias": "self_attn.dt_bias",
        "ssm_a": "self_attn.A_log",
        "ssm_norm": "self_attn.o_norm",
        "ssm_conv1d": "self_attn.conv1d",
    },
    changes={
        **LATENT_FILES.changes,
        "ssm_a": Change(lambda tensor, c: (-tensor).log().view(1, 1, -1, 1), lambda tensor, c: -tensor.exp()),
    },
    joined={
        **LATENT_FILES.joined,
        "ssm_conv1d.weight": Joined(
            tuple(f"ssm_conv1d_{name}.weight" for name in "qkv"),
            lambda parts, c: torch.cat([part.reshape(-1, 1, part.shape[-1]) for part in parts]),
            lambda tensor, c: [part.view(1, -1, 1, part.shape[-1]) for part in tensor.chunk(3)],
        ),
    },
)
EXPERT_FILES: Table = {**experts_files("w1", "w3", "w2"), "shared_experts": "shared_experts"}


class KimiLinearModel(HybridBackbone, DeepseekV3Model):
    config_class = KimiLinearConfig
    gguf = KIMI_FILES
    names = LlamaModel.names | Names(
        {"layers.*": ("layers.*", KIMI_BLOCK)},
        files={
            "layers.*.self_attn": ("layers.*.self_attn", MIXER_FILES),
            "layers.*.block_sparse_moe": ("layers.*.mlp", EXPERT_FILES),
        },
        legacy={"layers.*.mlp": "layers.*.block_sparse_moe"},
        exact=("correction_bias",),
    )
    config: KimiLinearConfig

    def block(self, layer: int, **more: Any) -> Any:
        if self.config.layer_types[layer] == FULL:
            return super().block(layer, **more)
        return DeltaBlock(KimiDeltaMixer(self.config), self.feed_forward(layer), self.make_norm)

    def attention(self, layer: int, **more: Any) -> Attention:
        return latent_attention(self.config, layer)


class KimiLinearForCausalLM(ForSparseCausalLM[KimiLinearModel]): ...
