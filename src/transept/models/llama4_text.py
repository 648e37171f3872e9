"""Llama 4's model of texts (Meta 2025): Llama with experts, in chunks of positions; each fourth layer sees all, and turns none.

Each token passes through a shared expert and a few that a router chooses, which read it multiplied by a sigmoid.
Shapes: B batch, T positions, D hidden size, H heads, E head size; N tokens, K experts a token, G experts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.gguf import Joined, Layout
from transept.checkpoint.keys import Stacked, Table
from transept.checkpoint.names import Names
from transept.config.fields import Count, Experts, Layers, derived
from transept.heads.language import ForSparseCausalLM
from transept.kinds.decoder import FULL
from transept.kinds.experts import BalancedConfig
from transept.layers import Attention, Context, GatedMLP, InterleavedAttention
from transept.layers.mlp import activation
from transept.layers.moe import Router, SortedExperts, SparseMLP, wide
from transept.models.llama import ATTENTION, NORMS, LlamaModel
from transept.models.mixtral import MixtralModel
from transept.storage.gguf import GGUF

CHUNKED = "chunked_attention"


class Llama4TextConfig(BalancedConfig):
    """Settings of Llama 4's model of texts; the defaults are those of Llama 4 Scout.

    Layers that ``layer_types`` calls ``chunked_attention`` see ``attention_chunk_size`` positions at most. Those with a 0 in
    ``no_rope_layers`` (by default every ``no_rope_layer_interval``-th) do not turn queries and keys; with
    ``attn_temperature_tuning`` their queries grow by ``attn_scale`` times the logarithm of how often ``floor_scale`` positions
    have passed. With ``use_qk_norm`` the others norm what has turned. Dense layers have the inner size
    ``intermediate_size_mlp``; ``moe_layers``, by default every ``interleave_moe_layer_step``-th, have experts.
    ``router_aux_loss_coef`` and ``router_jitter_noise`` have no effect.
    """

    model_type = "llama4_text"
    aliases = {"num_experts": "num_local_experts"}
    default_theta = 5e5
    is_chunked = True

    vocab_size: int = 202048
    hidden_size: int = 5120
    intermediate_size: int = 8192
    intermediate_size_mlp: int = 16384
    num_hidden_layers: Layers = 48
    num_attention_heads: int = 40
    num_key_value_heads: int = 8
    head_dim: int = 128
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1e-5
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    attention_bias: bool = False
    num_local_experts: Experts = 16
    num_experts_per_tok: int = 1
    interleave_moe_layer_step: Count = 1
    moe_layers: list[int] = derived(
        lambda c: list(range(c.interleave_moe_layer_step - 1, c.num_hidden_layers, c.interleave_moe_layer_step))
    )
    router_jitter_noise: float = 0.0
    use_qk_norm: bool = True
    no_rope_layer_interval: Count = 4
    no_rope_layers: list[int] = derived(
        lambda c: [int((i + 1) % c.no_rope_layer_interval != 0) for i in range(c.num_hidden_layers)], absent=[]
    )
    attention_chunk_size: Count | None = 8192
    layer_types: list[str] = derived(lambda c: [CHUNKED if turns else FULL for turns in c.no_rope_layers])
    attn_temperature_tuning: bool = True
    floor_scale: Count = 8192
    attn_scale: float = 0.1

    gguf_keys = {
        "feed_forward_length": "intermediate_size_mlp",
        "expert_feed_forward_length": "intermediate_size",
        "interleave_moe_layer_step": "interleave_moe_layer_step",
    }

    @classmethod
    def from_gguf(cls, gguf: GGUF, values: dict[str, Any]) -> dict[str, Any]:
        return values | {"use_qk_norm": values.get("num_local_experts") != 128}  # as the released models

    def validate(self) -> None:
        super().validate()
        for name in ("no_rope_layers", "layer_types"):
            if len(getattr(self, name)) < self.num_hidden_layers:
                self.fail(name, f"must have an entry for each of {self.num_hidden_layers} layers")
        if {*self.layer_types} - {FULL, CHUNKED}:
            self.fail("layer_types", f"must name {FULL!r} or {CHUNKED!r} for each layer")

    def window(self, layer: int) -> int | None:
        return self.attention_chunk_size if self.layer_types[layer] == CHUNKED else None

    def is_sparse(self, layer: int) -> bool:
        return layer in self.moe_layers

    def rope_kind(self, layer: int) -> str | None:
        return super().rope_kind(layer) if self.no_rope_layers[layer] else None


class Llama4Attention(InterleavedAttention):
    """Attention that norms queries and keys once they have turned, or lets queries grow with their positions."""

    eps: float | None = None

    def placed(self, q: Tensor, k: Tensor, ctx: Context[Tensor | None]) -> tuple[Tensor, Tensor]:
        if self.kind is None:
            return (q if ctx.own is None else (q * ctx.own).to(q.dtype)), k
        q, k = self.turned(q, k, ctx)
        return self.normed(q), self.normed(k)

    def normed(self, x: Tensor) -> Tensor:
        return x if self.eps is None else F.rms_norm(wide(x), x.shape[-1:], eps=self.eps).to(x.dtype)


class Llama4Router(Router):
    """Chooses the experts with the largest logits; each weight is the sigmoid of one."""

    def choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        best, experts = torch.topk(logits, self.top, dim=-1)
        return torch.sigmoid(wide(best)), experts


class Llama4Experts(SortedExperts):
    """Gated experts whose matrices are stored (G, in, out), and which read tokens times their weights."""

    inputs_first = True

    def __init__(self, count: int, dim: int, hidden: int, act: str) -> None:
        super().__init__(count, dim, hidden)
        self.act = activation(act)

    def make_weights(self, dim: int, hidden: int) -> None:
        self.gate_up_proj = nn.Parameter(torch.empty(self.count, dim, 2 * hidden))
        self.down_proj = nn.Parameter(torch.empty(self.count, hidden, dim))

    def forward(self, x: Tensor, weights: Tensor, experts: Tensor) -> Tensor:
        read = (x[:, None] * weights[..., None].to(x.dtype)).flatten(0, 1)
        out = super().forward(read, torch.ones_like(weights).view(-1, 1), experts.view(-1, 1))
        return out.view(*weights.shape, -1).sum(dim=1)

    def apply_sorted(self, rows: Tensor, chosen: Tensor, ends: Tensor) -> Tensor:
        gate, up = self.multiply("gate_up_proj", rows, ends).chunk(2, dim=-1)
        return self.multiply("down_proj", self.act(gate) * up, ends)


LLAMA4_EXPERTS: Table = {"experts": "experts", "router": "router", "shared_expert": "shared"}
LLAMA4_BLOCK: Table = {"self_attn": ("self_attn", ATTENTION), "feed_forward": ("mlp", LLAMA4_EXPERTS), **NORMS}


# Matrices of experts are transposed, and those of gates apart.
_DOWN = replace(Stacked("mlp.experts.down_proj"), transposed=True)
FILES = Layout(
    {
        "ffn_gate_exps.*.weight": None,
        "ffn_up_exps.*.weight": None,
        "ffn_gate_up_exps.weight": "mlp.experts.gate_up_proj",
        "ffn_down_exps.*.weight": _DOWN,
    },
    joined={
        "ffn_gate_up_exps.weight": Joined(
            ("ffn_gate_exps.weight", "ffn_up_exps.weight"),
            lambda parts, config: torch.cat([*parts], dim=1).mT,
            lambda tensor, config: tensor.mT.chunk(2, dim=1),
        )
    },
)


class Llama4TextModel(MixtralModel):
    config_class = Llama4TextConfig
    names = LlamaModel.names | Names({"layers.*": ("layers.*", LLAMA4_BLOCK)})
    gguf = FILES
    attention_class = Llama4Attention
    balances: ClassVar[bool] = False
    config: Llama4TextConfig

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        c = self.config
        if c.attn_temperature_tuning:
            passed = torch.floor((positions[:, None, :, None].float() + 1.0) / c.floor_scale)
            ctx.own = torch.log1p(passed) * c.attn_scale + 1.0
        return super().embed(x, types, positions, ctx)

    def attention(self, layer: int, **more: Any) -> Attention:
        made: Any = super().attention(layer, **more)
        made.eps = self.config.rms_norm_eps if self.config.use_qk_norm else None
        return made

    def feed_forward(self, layer: int) -> nn.Module:
        c = self.config
        options: dict[str, Any] = {"chunk_size": c.chunk_size_feed_forward}
        if not c.is_sparse(layer):
            return GatedMLP(c.hidden_size, c.intermediate_size_mlp, c.hidden_act, **options)
        router = Llama4Router(c.hidden_size, c.num_local_experts, c.num_experts_per_tok)
        experts = Llama4Experts(c.num_local_experts, c.hidden_size, c.intermediate_size, c.hidden_act)
        return SparseMLP(
            router, experts, shared=GatedMLP(c.hidden_size, c.intermediate_size, c.hidden_act, **options), **options
        )


class Llama4ForCausalLM(ForSparseCausalLM[Llama4TextModel]): ...
