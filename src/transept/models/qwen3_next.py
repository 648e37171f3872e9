"""Qwen3-Next (Qwen Team 2025): layers of the gated delta rule, and every fourth one of attention whose outputs are gated.

Shapes: B batch, T positions, D hidden size, H heads of values, G heads of keys, N and P their sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.gguf import NORMS, PLUS_ONE, STATES, Joined, Layout
from transept.checkpoint.keys import Table
from transept.config.fields import Count, Experts, Layers, derived
from transept.config.gguf import by_layers
from transept.heads.language import ForSparseCausalLM
from transept.kinds.decoder import FULL, DecoderConfig
from transept.kinds.experts import BalancedConfig, sparse_mlp
from transept.kinds.hybrid import LINEAR, HybridBackbone, KindsConfig
from transept.layers import Attention, Context
from transept.layers.caches.layer import States
from transept.layers.context import Attended
from transept.layers.links import Linked
from transept.layers.mlp import activation
from transept.layers.moe import Router, wide
from transept.layers.norm import CenteredRMSNorm, RMSNorm
from transept.layers.recurrent import causal_conv, gated_delta_scan, real_positions
from transept.models.llama import (
    LLAMA_BLOCK,
    LlamaForQuestionAnswering,
    LlamaForSequenceClassification,
    LlamaForTokenClassification,
)
from transept.models.mixtral import MixtralModel, sparse_names
from transept.models.qwen2_moe import SharedExpert
from transept.storage.gguf import GGUF


class DeltaConfig(DecoderConfig, KindsConfig):
    """What decoders with layers of the gated delta rule have in common; a quarter of each head of attention turns.

    Without ``layer_types`` every layer of ``full_attention_interval`` has attention. ``linear_...`` are the sizes of the
    others: heads of keys, each for as many heads of values, and the width of the convolution.
    """

    default_share = 0.25

    hidden_size: int = 2048
    num_key_value_heads: int = 2
    hidden_act: str = "silu"
    max_position_embeddings: int = 32768
    attention_bias: bool = False
    head_dim: int = 256
    linear_conv_kernel_dim: Count = 4
    linear_key_head_dim: Count = 128
    linear_value_head_dim: Count = 128
    linear_num_key_heads: Count = 16
    linear_num_value_heads: Count = 32
    full_attention_interval: Count = 4
    layer_types: list[str] = derived(
        lambda c: [LINEAR if (i + 1) % c.full_attention_interval else FULL for i in range(c.num_hidden_layers)]
    )

    gguf_keys = {
        "ssm.conv_kernel": "linear_conv_kernel_dim",
        "ssm.state_size": "linear_key_head_dim",
        "ssm.group_count": "linear_num_key_heads",
        "ssm.time_step_rank": "linear_num_value_heads",
        "full_attention_interval": "full_attention_interval",
    }

    @classmethod
    def from_gguf(cls, gguf: GGUF, values: dict[str, Any]) -> dict[str, Any]:
        inner = gguf.get(f"{gguf.architecture}.ssm.inner_size", int, 0)
        heads, count = values.get("linear_num_value_heads"), values.get("num_hidden_layers")
        found: dict[str, Any] = {}
        if isinstance(heads, int) and heads > 0 < inner:
            found["linear_value_head_dim"] = inner // heads
        kinds = by_layers(gguf, "attention.recurrent_layers")
        if isinstance(count, int) and kinds is not None and len(kinds) >= count:
            found["layer_types"] = [LINEAR if kind else FULL for kind in kinds[:count]]
        return values | found

    def to_gguf(self) -> dict[str, Any]:
        own: dict[str, Any] = {"ssm.inner_size": self.linear_num_value_heads * self.linear_value_head_dim}
        own["attention.recurrent_layers"] = [kind == LINEAR for kind in self.layer_types]
        own["rope.dimension_sections"] = [11, 11, 10, 0]  # of pictures, which programs ask for
        return super().to_gguf() | own

    def validate(self) -> None:
        super().validate()
        self.divided("linear_num_value_heads", "linear_num_key_heads")


class Qwen3NextConfig(DeltaConfig, BalancedConfig):
    """Settings of Qwen3-Next; every ``decoder_sparse_step``-th layer has experts, but for those of ``mlp_only_layers``."""

    model_type = "qwen3_next"
    aliases = {"num_local_experts": "num_experts"}

    vocab_size: int = 151936
    intermediate_size: int = 5632
    num_hidden_layers: Layers = 48
    num_attention_heads: int = 16
    decoder_sparse_step: Count = 1
    moe_intermediate_size: int = 512
    shared_expert_intermediate_size: int = 512
    num_experts_per_tok: int = 10
    num_experts: Experts = 512
    norm_topk_prob: bool = True
    mlp_only_layers: list[int] = derived(lambda c: [])

    def is_sparse(self, layer: int) -> bool:
        dense = layer in self.mlp_only_layers or self.num_experts == 0
        return not dense and (layer + 1) % self.decoder_sparse_step == 0


class GatedAttention(Attention):
    """Attention whose outputs are gated by the inputs; each head's gate stands behind its query in ``q_proj``."""

    def make_projections(self, dim: int, queries: int, keys: int, bias: bool) -> None:
        super().make_projections(dim, 2 * queries, keys, bias)

    def placed(self, q: Tensor, k: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        q, gate = q[:, ::2], q[:, 1::2]
        q, k = super().placed(q, k, ctx)
        return torch.cat([q, gate], dim=-1), k

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, ctx: Context) -> Attended:
        q, gate = q.chunk(2, dim=-1)
        out, weights = super().attend(q, k, v, mask, causal, ctx)
        return out * torch.sigmoid(gate), weights


class GatedHeadNorm(RMSNorm):
    """A root-mean-square norm of each head, whose outputs a gate lets through."""

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:  # type: ignore[override]
        normed = super().forward(x).to(gate.dtype)
        return (normed * F.silu(wide(gate))).to(gate.dtype)


class DeltaMixer(Linked):
    """Mixes positions by a convolution and the gated delta rule; projections are grouped by the heads of keys."""

    def __init__(self, c: DeltaConfig) -> None:
        super().__init__()
        self.heads, self.groups = c.linear_num_value_heads, c.linear_num_key_heads
        self.size, self.inner = c.linear_key_head_dim, c.linear_value_head_dim
        self.keys, self.values = self.groups * self.size, self.heads * self.inner
        channels = 2 * self.keys + self.values
        self.conv1d = nn.Conv1d(channels, channels, c.linear_conv_kernel_dim, groups=channels, bias=False)
        self.act = activation(c.hidden_act)
        self.make_projections(c.hidden_size)
        self.dt_bias, self.A_log = nn.Parameter(torch.empty(self.heads)), nn.Parameter(torch.empty(self.heads))
        self.norm = GatedHeadNorm(self.inner, c.rms_norm_eps)
        self.out_proj = nn.Linear(self.values, c.hidden_size, bias=False)

    def make_projections(self, dim: int) -> None:
        """Make what gives queries, keys, values, gates, shares and steps."""
        self.in_proj_qkvz = nn.Linear(dim, 2 * self.keys + 2 * self.values, bias=False)
        self.in_proj_ba = nn.Linear(dim, 2 * self.heads, bias=False)

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.A_log.copy_(torch.empty_like(self.A_log).uniform_(0.01, 16).log())
        nn.init.ones_(self.dt_bias)

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        """Inputs of the convolution (B, T, 2 * G * N + H * P), gates (B, T, H * P), shares and steps (B, T, H)."""
        group = self.heads // self.groups
        sizes = [self.size, self.size, group * self.inner, group * self.inner]
        grouped = self.in_proj_qkvz(x).view(*x.shape[:2], self.groups, -1)
        q, k, v, gate = (part.flatten(2) for part in torch.split(grouped, sizes, dim=-1))
        share, step = self.in_proj_ba(x).view(*x.shape[:2], self.groups, 2, group).unbind(3)
        return torch.cat([q, k, v], dim=-1), gate, share.flatten(2), step.flatten(2)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D); padding on the left leaves states as they are."""
        real, kept, shape = real_positions(x, ctx), ctx.kept(States), x.shape[:2]
        mixed, gate, share, step = self.project(x if real is None else x * real)
        mixed, last = causal_conv(mixed.mT, self.conv1d.weight, None, kept.get("conv") if kept else None)
        q, k, v = torch.split(self.act(mixed.mT), [self.keys, self.keys, self.values], dim=-1)
        q, k = (unit(part.reshape(*shape, self.groups, self.size)) for part in (q, k))
        logs = -wide(self.A_log).exp() * F.softplus(wide(step) + wide(self.dt_bias))
        state = kept.get("recurrent") if kept else None
        y, state = gated_delta_scan(
            q * self.size**-0.5, k, v.reshape(*shape, self.heads, self.inner), logs, share.sigmoid(), state
        )
        if kept is not None:
            kept.keep(x.shape[1], conv=last, recurrent=state)
        return self.out_proj(self.norm(y.to(x.dtype), gate.view(*shape, self.heads, -1)).flatten(2))


def unit(x: Tensor) -> Tensor:
    """Vectors (..., N) of length one, in float32 at least; zeros stay what they are."""
    x = wide(x)
    return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()


DELTA: Table = {
    **{name: name for name in ("dt_bias", "A_log", "conv1d", "in_proj_qkvz", "in_proj_ba", "norm", "out_proj")},
    **{f"in_proj_{part}": f"in_proj_{part}" for part in ("qkv", "z", "b", "a")},
}
DELTA_BLOCK: Table = {"linear_attn": ("mixer", DELTA), **LLAMA_BLOCK}
SHARED: Table = {"gate": "router", "experts": "experts", "shared_expert": "shared", "shared_expert_gate": "shared.share"}


def _sizes(c: DeltaConfig) -> list[int]:
    """How many rows a head of keys has of queries, keys, values and gates."""
    values = c.linear_num_value_heads // c.linear_num_key_heads * c.linear_value_head_dim
    return [c.linear_key_head_dim] * 2 + [values] * 2


def _apart(tensor: Tensor, c: DeltaConfig) -> tuple[Tensor, Tensor]:
    grouped = tensor.unflatten(0, (c.linear_num_key_heads, -1))  # type: ignore[no-untyped-call]
    *mixed, gates = (part.flatten(0, 1) for part in torch.split(grouped, _sizes(c), dim=1))
    return torch.cat(mixed), gates


def _grouped(parts: Sequence[Tensor], c: DeltaConfig) -> Tensor:
    heads = c.linear_num_key_heads
    mixed = torch.split(parts[0], [heads * size for size in _sizes(c)[:3]])
    grouped = [part.unflatten(0, (heads, -1)) for part in (*mixed, parts[1])]  # type: ignore[no-untyped-call]
    return torch.cat(grouped, dim=1).flatten(0, 1)


# Files have queries, keys and values of all heads one after the other, and gates in a tensor of their own.
DELTA_PARTS: Mapping[str, Any] = {
    "ffn_norm": None,
    "post_attention_norm": "mlp_norm",
    "ssm_conv1d": "mixer.conv1d",
    "ssm_a": "mixer.A_log",
    "ssm_dt.bias": "mixer.dt_bias",
    "ssm_norm": "mixer.norm",
    "ssm_out": "mixer.out_proj",
}
GROUPED_FILES = Layout(
    {**DELTA_PARTS, "attn_qkv": None, "ssm_in": "mixer.in_proj_qkvz", "ssm_ba": "mixer.in_proj_ba"},
    changes={**dict.fromkeys(NORMS, PLUS_ONE), **STATES},
    joined={"ssm_in.weight": Joined(("attn_qkv.weight", "attn_gate.weight"), _grouped, _apart)},
)


class DeltaLayers:
    """Mixed into decoders: layers of the gated delta rule, and of gated attention."""

    norm_class: ClassVar[type[RMSNorm]] = CenteredRMSNorm
    qk_norm_class: ClassVar[type[RMSNorm] | None] = CenteredRMSNorm
    attention_class: ClassVar[type[Attention]] = GatedAttention
    mixer_class: ClassVar[type[DeltaMixer]] = DeltaMixer
    config: Any

    def mixer(self, layer: int) -> nn.Module:
        return self.mixer_class(self.config)


class Qwen3NextModel(DeltaLayers, HybridBackbone, MixtralModel):
    config_class: ClassVar[Any] = Qwen3NextConfig
    names = sparse_names(SHARED, DELTA_BLOCK, ignore=("mtp",))
    gguf = GROUPED_FILES
    config: Any

    def experts(self) -> nn.Module:
        c = self.config
        sizes = c.hidden_size, c.shared_expert_intermediate_size
        shared = SharedExpert(*sizes, c.hidden_act, chunk_size=c.chunk_size_feed_forward)
        router = partial(Router, normalize=getattr(c, "norm_topk_prob", True))
        return sparse_mlp(c, c.moe_intermediate_size, router, shared=shared)


class Qwen3NextForCausalLM(ForSparseCausalLM[Qwen3NextModel]): ...


class Qwen3NextForSequenceClassification(LlamaForSequenceClassification, backbone=Qwen3NextModel): ...


class Qwen3NextForTokenClassification(LlamaForTokenClassification, backbone=Qwen3NextModel): ...


class Qwen3NextForQuestionAnswering(LlamaForQuestionAnswering, backbone=Qwen3NextModel): ...
