"""gpt-oss (OpenAI 2025): attention that may look at nothing, windows in every other layer, and experts with biases.

Each head has a sink, a number that stands among its scores without a value. Gates are bounded, and multiply what is gated
plus one.
Shapes: B batch, T queries, S keys, D hidden size, I inner size, H heads, K key-value heads, E head size; N rows of G experts.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.gguf import Joined, Layout
from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Count, Experts, Layers
from transept.heads.language import ForSparseCausalLM
from transept.kinds.decoder import LayeredConfig
from transept.kinds.experts import BalancedConfig
from transept.layers import Attention, Context
from transept.layers.context import Attended
from transept.layers.moe import SortedExperts, SparseMLP, TopRouter
from transept.layers.norm import WideRMSNorm
from transept.models.llama import ATTENTION, NORMS, LlamaForSequenceClassification, LlamaForTokenClassification, LlamaModel
from transept.models.mixtral import MixtralModel
from transept.storage.gguf import GGUF

_YARN = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}


class GptOssConfig(BalancedConfig, LayeredConfig):
    """Settings of gpt-oss; the defaults are those of its checkpoint with 120 billion parameters.

    Gates are bounded by ``swiglu_limit`` and pass through a sigmoid of ``swiglu_alpha`` times their values. Without
    ``layer_types`` every other layer sees ``sliding_window`` positions.
    """

    model_type = "gpt_oss"
    aliases = {"num_experts": "num_local_experts"}
    default_theta = 150000.0

    vocab_size: int = 201088
    hidden_size: int = 2880
    intermediate_size: int = 2880
    num_hidden_layers: Layers = 36
    num_attention_heads: int = 64
    num_key_value_heads: int = 8
    head_dim: int = 64
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1e-5
    sliding_window: Count | None = 128
    attention_bias: bool = True
    num_local_experts: Experts = 128
    num_experts_per_tok: int = 4
    swiglu_alpha: float = 1.702
    swiglu_limit: float = 7.0

    @classmethod
    def complete(cls, rope: dict[str, Any]) -> dict[str, Any]:
        return super().complete(rope or {**_YARN, "original_max_position_embeddings": 4096})

    @classmethod
    def from_gguf(cls, gguf: GGUF, values: dict[str, Any]) -> dict[str, Any]:
        rope = values.get("rope_scaling")
        return values | ({"rope_scaling": rope | {"truncate": False}} if rope else {})  # which files do not say

    def to_gguf(self) -> dict[str, Any]:
        return super().to_gguf() | {"expert_feed_forward_length": self.intermediate_size}

    def slides(self, layer: int) -> bool:
        return layer % 2 == 0


class SinkAttention(Attention):
    """Attention with a number (H) among each head's scores, ``sinks``, whose share of the weights is given to nothing.

    It is a key before all others, with zeros for a value. It meets the sink as one more element of the queries.
    """

    heads_apart = False

    def __init__(self, dim: int, heads: int, **options: Any) -> None:
        super().__init__(dim, heads, **options)
        self.sinks = nn.Parameter(torch.empty(heads))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, ctx: Context) -> Attended:
        first = F.pad(torch.zeros_like(k[:, :, :1]), (0, 1), value=1.0)
        k, v = torch.cat([first, F.pad(k, (0, 1))], dim=2), F.pad(v, (0, 1, 1, 0))
        q = torch.cat([q, (self.sinks / self.scale).to(q.dtype)[:, None, None].expand(len(q), -1, q.shape[2], 1)], dim=-1)
        if mask is not None:
            mask = F.pad(mask, (1, 0), value=0.0 if mask.is_floating_point() else True)
        if causal:  # as many queries as keys
            q = F.pad(q, (0, 0, 1, 0))
        out, weights = super().attend(q, k, v, mask, causal, ctx)
        out, rows = out[:, :, int(causal) :, :-1], slice(int(causal), None)
        return out, None if weights is None else weights[:, :, rows, 1:]


class GptOssExperts(SortedExperts):
    """Experts whose matrices are stored (G, in, out), with biases; gates and what they gate take turns in ``gate_up_proj``."""

    inputs_first = True

    def __init__(self, count: int, dim: int, hidden: int, alpha: float, limit: float) -> None:
        super().__init__(count, dim, hidden)
        self.alpha, self.limit = alpha, limit

    def make_weights(self, dim: int, hidden: int) -> None:
        self.gate_up_proj = nn.Parameter(torch.empty(self.count, dim, 2 * hidden))
        self.gate_up_proj_bias = nn.Parameter(torch.empty(self.count, 2 * hidden))
        self.down_proj = nn.Parameter(torch.empty(self.count, hidden, dim))
        self.down_proj_bias = nn.Parameter(torch.empty(self.count, dim))

    def reset_parameters(self, std: float = 0.02) -> None:
        super().reset_parameters(std)
        for bias in (self.gate_up_proj_bias, self.down_proj_bias):
            nn.init.zeros_(bias)

    def apply_sorted(self, rows: Tensor, chosen: Tensor, ends: Tensor) -> Tensor:
        both = self.multiply("gate_up_proj", rows, ends) + self.gate_up_proj_bias[chosen]
        gate, up = both[:, ::2].clamp(max=self.limit), both[:, 1::2].clamp(-self.limit, self.limit)
        inner = (up + 1) * gate * torch.sigmoid(gate * self.alpha)
        return self.multiply("down_proj", inner, ends) + self.down_proj_bias[chosen]


class GptOssRouter(TopRouter):
    """A router with a bias (G)."""

    def __init__(self, dim: int, count: int, top: int) -> None:
        super().__init__(dim, count, top)
        self.bias = nn.Parameter(torch.zeros(count))

    def reset_parameters(self, std: float = 0.02) -> None:
        super().reset_parameters(std)
        if "bias" in self._parameters:
            nn.init.normal_(self.bias, std=std)

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


GPT_OSS_BLOCK: Table = {
    "self_attn": ("self_attn", {**ATTENTION, "sinks": "sinks"}),
    "mlp": ("mlp", {"router": "router", "experts": "experts"}),
    **NORMS,
}


def _taking_turns(end: str) -> Joined:
    """Gates and what they gate, which take turns in ours; matrices are stored (G, out, in)."""
    return Joined(
        (f"ffn_gate_exps.{end}", f"ffn_up_exps.{end}"),
        lambda parts, config: _turned(torch.stack([*parts], dim=2).flatten(1, 2)),
        lambda tensor, config: (_turned(tensor)[:, ::2], _turned(tensor)[:, 1::2]),
        lambda parts: torch.stack([*parts], dim=1).flatten(0, 1),
    )


def _turned(tensor: Tensor) -> Tensor:
    return tensor.mT if tensor.ndim == 3 else tensor


_ENDS = {"weight": "", "bias": "_bias"}
_FILES: dict[str, Any] = {f"ffn_{name}_exps.*.weight": None for name in ("gate", "up", "down")} | {"ffn_norm": None}
_FILES |= {
    f"ffn_{name}_exps.{end}": f"mlp.experts.{name}_proj{more}" for name in ("gate_up", "down") for end, more in _ENDS.items()
}
_FILES |= {"post_attention_norm": "mlp_norm"}
_JOINED = {f"ffn_gate_up_exps.{end}": _taking_turns(end) for end in _ENDS}
_JOINED["ffn_down_exps.weight"] = Joined(
    ("ffn_down_exps.weight",),
    lambda parts, config: parts[0].mT,
    lambda tensor, config: (tensor.mT,),
    lambda parts: parts[0],
)


class GptOssModel(MixtralModel):
    config_class = GptOssConfig
    names = LlamaModel.names | Names({"layers.*": ("layers.*", GPT_OSS_BLOCK)}, wide=("self_attn_norm", "mlp_norm", "norm"))
    gguf = Layout(_FILES, joined=_JOINED)
    infers_texts = False
    norm_class = WideRMSNorm
    config: GptOssConfig

    def attention(self, layer: int, **more: Any) -> Attention:
        return super().attention(layer, kind=SinkAttention, **more)

    def experts(self) -> nn.Module:
        c = self.config
        make = partial(GptOssExperts, alpha=c.swiglu_alpha, limit=c.swiglu_limit)
        experts = make(c.num_local_experts, c.hidden_size, c.intermediate_size)
        router = GptOssRouter(c.hidden_size, c.num_local_experts, c.num_experts_per_tok)
        return SparseMLP(router, experts, chunk_size=c.chunk_size_feed_forward)

    def initialize_module(self, module: nn.Module) -> None:
        super().initialize_module(module)
        if isinstance(module, SinkAttention):
            nn.init.normal_(module.sinks, std=self.config.initializer_range)


class GptOssForCausalLM(ForSparseCausalLM[GptOssModel]): ...


class GptOssForSequenceClassification(LlamaForSequenceClassification, backbone=GptOssModel): ...


class GptOssForTokenClassification(LlamaForTokenClassification, backbone=GptOssModel): ...
