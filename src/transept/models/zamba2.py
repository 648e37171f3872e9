"""Zamba2 (Zyphra 2024): mixers of Mamba-2, some with a shared block of attention before, which reads the embeddings, too.

Shapes: B batch, T positions, D hidden size.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Count, Layers, PaddingId, derived
from transept.heads import classify, language
from transept.kinds.decoder import DecoderConfig
from transept.kinds.hybrid import BOTH, LINEAR, HybridBackbone, spread_steps
from transept.layers import Attention, Context, Pattern, RMSNorm
from transept.layers.links import Layer, Linked
from transept.layers.mlp import activation
from transept.layers.recurrent import STATE_SPACE, StateSizes, StateSpaceMixer
from transept.models.llama import ATTENTION, LlamaModel
from transept.models.mamba import OLDER_KINDS

_USUAL = [LINEAR] + ([LINEAR] * 5 + [BOTH]) * 7 + [LINEAR] * 4 + [BOTH] + [LINEAR] * 3 + [BOTH] + [LINEAR] * 2


class Zamba2Config(DecoderConfig):
    """Settings of Zamba2; the defaults are those of the model with 2.7 billion parameters.

    Layers whose type is ``hybrid`` have one of ``num_mem_blocks`` shared blocks, in turns, each time with adapters of
    ``adapter_rank`` of its own: for the feed-forward layer, and with ``use_shared_attention_adapter`` for queries, keys and
    values. Its heads turn with ``use_mem_rope``. Without ``tie_word_embeddings`` each such layer has a block of its own, too.
    ``use_conv_bias``, ``use_mem_eff_path``, ``chunk_size`` and ``use_mamba_kernels`` have no effect.
    """

    model_type = "zamba2"
    aliases = {"layer_types": "layers_block_type", "attention_head_dim": "head_dim"}

    vocab_size: int = 32000
    max_position_embeddings: int = 4096
    hidden_size: int = 2560
    num_hidden_layers: Layers = 54
    layers_block_type: list[str] = derived(lambda c: list(_USUAL))
    mamba_d_state: Count = 64
    mamba_d_conv: Count = 4
    mamba_expand: int = 2
    mamba_ngroups: Count = 1
    time_step_min: float = 0.001
    time_step_max: float = 0.1
    time_step_floor: float = 1e-4
    n_mamba_heads: Count = 8
    use_mamba_kernels: bool = True
    use_conv_bias: bool = True
    chunk_size: Count = 256
    use_mem_eff_path: bool = False
    add_bias_linear: bool = False
    intermediate_size: int = derived(lambda c: 4 * c.hidden_size)
    hidden_act: str = "gelu"
    num_mem_blocks: Count = 1
    use_shared_attention_adapter: bool = False
    adapter_rank: Count = 128
    use_mem_rope: bool = False
    rms_norm_eps: float = 1e-5
    num_logits_to_keep: int | None = 1
    pad_token_id: PaddingId | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    use_long_context: bool = False
    tie_word_embeddings: bool = True
    attention_hidden_size: int = derived(lambda c: 2 * c.hidden_size, fixed=True)
    head_dim: int = derived(lambda c: 2 * c.hidden_size // c.num_attention_heads, fixed=True)
    mamba_headdim: int = derived(lambda c: c.mamba_expand * c.hidden_size // c.n_mamba_heads, fixed=True)
    hybrid_layer_ids: list[int] = derived(
        lambda c: [layer for layer, kind in enumerate(c.layers_block_type) if kind == BOTH], fixed=True
    )
    kv_channels: int = derived(lambda c: c.hidden_size // c.num_attention_heads, fixed=True)
    num_query_groups: int = derived(lambda c: c.num_attention_heads, fixed=True)

    def validate(self) -> None:
        self.layers_block_type = [OLDER_KINDS.get(kind, kind) for kind in self.layers_block_type]
        super().validate()
        if len(self.layers_block_type) != self.num_hidden_layers or set(self.layers_block_type) - {LINEAR, BOTH}:
            self.fail("layers_block_type", f"must name {LINEAR} or {BOTH} for each of {self.num_hidden_layers} layers")
        if self.use_long_context:
            self.max_position_embeddings = 16384
        if self.n_mamba_heads * self.mamba_headdim != self.mamba_expand * self.hidden_size:
            self.fail("n_mamba_heads", "must divide `mamba_expand` times `hidden_size`, the channels of all heads")
        self.divided("n_mamba_heads", "mamba_ngroups")


def _adapters(c: Zamba2Config, block: int, size: int, out: int) -> nn.ModuleList:
    """An adapter for each turn of a shared block; turns of others have nothing."""
    rank, blocks = c.adapter_rank, [turn % c.num_mem_blocks for turn in range(len(c.hybrid_layer_ids))]
    made = (nn.Sequential(nn.Linear(size, rank, bias=False), nn.Linear(rank, out, bias=False)) for _ in blocks)
    return nn.ModuleList(each if other == block else nn.Identity() for other, each in zip(blocks, made, strict=True))


class SharedAttention(Attention):
    """Attention over states beside embeddings, (B, T, 2 * D) -> (B, T, D), whose projections have an adapter for each turn."""

    is_prepared = True

    def share(self, c: Zamba2Config, block: int) -> None:
        """Take the output projection and the adapters of the config."""
        self.o_proj = nn.Linear(self.gathered_size, c.hidden_size, bias=False)
        if c.use_shared_attention_adapter:
            for name in "qkv":
                adapters = _adapters(c, block, c.attention_hidden_size, c.attention_hidden_size)
                self.add_module(f"linear_{name}_adapter_list", adapters)

    def forward(self, x: Tensor, ctx: Any = None, turn: int = 0, **given: Any) -> Any:
        q, k, v = (projection(x) for projection in (self.q_proj, self.k_proj, self.v_proj))
        if "linear_q_adapter_list" in self._modules:
            adapters: Any = [self._modules[f"linear_{name}_adapter_list"] for name in "qkv"]
            q, k, v = (part + each[turn](x) for part, each in zip((q, k, v), adapters, strict=True))
        q, k = self.turned(self.split(q), self.split(k), ctx)
        k, v, mask, causal = self.self_keys(q, k, self.split(v), ctx)
        out, weights = self.attend(q, k, v, mask, causal, ctx)
        if ctx.attentions is not None and weights is not None:
            ctx.attentions.append(weights)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class SharedMLP(Linked):
    """A gated feed-forward layer with an adapter for each turn: (B, T, D) -> (B, T, D)."""

    def __init__(self, c: Zamba2Config, block: int) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(c.hidden_size, 2 * c.intermediate_size, c.add_bias_linear)
        self.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, c.add_bias_linear)
        self.act = activation(c.hidden_act)
        self.gate_up_proj_adapter_list = _adapters(c, block, c.hidden_size, 2 * c.intermediate_size)

    def forward(self, x: Tensor, turn: int) -> Tensor:
        gate, up = (self.gate_up_proj(x) + self.gate_up_proj_adapter_list[turn](x)).chunk(2, dim=-1)
        return self.down_proj(self.act(gate) * up)


class SharedBlock(Linked):
    """Attention and a feed-forward layer, one behind the other, over states beside the embeddings: (B, T, D) -> (B, T, D)."""

    def __init__(self, c: Zamba2Config, block: int) -> None:
        super().__init__()
        attention = SharedAttention(
            c.attention_hidden_size,
            c.num_attention_heads,
            kv_heads=c.num_key_value_heads,
            head_dim=c.head_dim,
            bias=False,
            pattern=Pattern(causal=True),
            dropout=c.attention_dropout,
            scale=(c.head_dim / 2) ** -0.5,
            rotary=c.rope_kind(0) if c.use_mem_rope else None,
        )
        attention.share(c, block)
        self.self_attn, self.mlp = attention, SharedMLP(c, block)
        self.self_attn_norm = RMSNorm(c.attention_hidden_size, c.rms_norm_eps)
        self.mlp_norm = RMSNorm(c.hidden_size, c.rms_norm_eps)

    def forward(self, x: Tensor, ctx: Context[Tensor], turn: int) -> Tensor:
        x = self.self_attn(self.self_attn_norm(torch.cat([x, ctx.own], dim=-1)), ctx, turn)
        return self.mlp(self.mlp_norm(x), turn)


class Zamba2Block(Layer):
    """A mixer that reads the normed input, to which ``more`` may be added before, and is added to the input."""

    def __init__(self, c: Zamba2Config) -> None:
        super().__init__()
        sizes = StateSizes(c.n_mamba_heads, c.mamba_headdim, c.mamba_ngroups, c.mamba_d_state, c.mamba_d_conv)
        limit = (c.time_step_min, math.inf)
        self.mixer = StateSpaceMixer(c.hidden_size, sizes, "silu", eps=1e-5, bias=c.add_bias_linear, limit=limit)
        self.mixer_norm = RMSNorm(c.hidden_size, c.rms_norm_eps)

    def forward(self, x: Tensor, ctx: Context, more: Tensor | float = 0.0) -> Tensor:
        return x + self.mixer(self.mixer_norm(x + more), ctx)


class SharingBlock(Layer):
    """The same, where a shared block gives what is added before, through a projection."""

    def __init__(self, c: Zamba2Config, turn: int) -> None:
        super().__init__()
        self.linear, self.decoder = nn.Linear(c.hidden_size, c.hidden_size, bias=False), Zamba2Block(c)
        self.shared = SharedBlock(c, turn % c.num_mem_blocks)
        self.turn = turn

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        return self.decoder(x, ctx, self.linear(self.shared(x, ctx, self.turn)))


ADAPTED = {name: name for name in ("linear_q_adapter_list", "linear_k_adapter_list", "linear_v_adapter_list")}
ZAMBA_BLOCK: Table = {"mamba": ("mixer", STATE_SPACE), "input_layernorm": "mixer_norm"}
SHARED: Table = {
    "self_attn": ("self_attn", {**ATTENTION, **ADAPTED}),
    "feed_forward": "mlp",
    "input_layernorm": "self_attn_norm",
    "pre_ff_layernorm": "mlp_norm",
}
SHARING: Table = {"linear": "linear", "mamba_decoder": ("decoder", ZAMBA_BLOCK), "shared_transformer": ("shared", SHARED)}


class Zamba2Model(HybridBackbone, LlamaModel):
    config_class = Zamba2Config
    names = LlamaModel.names | Names({"layers.*": ("layers.*", {**ZAMBA_BLOCK, **SHARING}), "final_layernorm": "norm"})
    config: Zamba2Config

    def block(self, layer: int, **more: Any) -> Any:
        c = self.config
        return SharingBlock(c, c.hybrid_layer_ids.index(layer)) if layer in c.hybrid_layer_ids else Zamba2Block(c)

    @classmethod
    def names_of(cls, config: Any) -> Names:
        """With ties of shared blocks, each of which stands in every layer that has it."""
        ties: dict[str, str] = {}
        for number, first in enumerate(config.hybrid_layer_ids[: config.num_mem_blocks]):
            with torch.device("meta"):
                parts = SharedBlock(config, number).state_dict()
            for layer in config.hybrid_layer_ids[number :: config.num_mem_blocks][1:]:
                ties |= {f"layers.{layer}.shared.{part}": f"layers.{first}.shared.{part}" for part in parts}
        return super().names_of(config) | Names(ties=ties if config.tie_word_embeddings else {})

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context[Tensor]) -> Tensor:
        ctx.own = x
        return super().embed(x, types, positions, ctx)

    @torch.no_grad()
    def initialize_module(self, module: nn.Module) -> None:
        super().initialize_module(module)
        if isinstance(module, StateSpaceMixer):
            spread_steps(module.dt_bias, self.config)


class Zamba2ForCausalLM(language.ForCausalLM[Zamba2Model]): ...


class Zamba2ForSequenceClassification(classify.ForLastTokenClassification[Zamba2Model]): ...
