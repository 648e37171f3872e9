"""Gemma 4's model of texts (Google 2026): Gemma 3 with values that are normed, too, and embeddings for each layer.

Layers that see all have larger heads; the last layers may read the keys and values of an earlier one, and feed-forward layers
may have experts beside them.
Shapes: B batch, T positions, D hidden size, L layers, P size of a layer's embeddings, N tokens, E experts, K experts a token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.gguf import Layout
from transept.checkpoint.keys import Stacked, Table
from transept.checkpoint.names import Names
from transept.core.inputs import check_tensor
from transept.errors import InputError
from transept.heads.language import ForCausalLM
from transept.kinds.decoder import FULL, SLIDING
from transept.layers import Attention, Block, Context, GatedMLP, Pattern, SandwichNorm, moe
from transept.layers.caches.cache import Kinds
from transept.layers.caches.layer import KeyValues
from transept.layers.context import Attended, Rows, mask_for
from transept.layers.mlp import activation
from transept.layers.norm import WideRMSNorm
from transept.layers.rotary import Rotary, RotaryTables
from transept.models.gemma2 import GEMMA2_BLOCK, Gemma2ForCausalLM, ScaledEmbedding
from transept.models.gemma4_text.config import Gemma4TextConfig
from transept.models.llama import LlamaModel


@dataclass
class Shared:
    """What layers share: the inputs (B, T, L, P) for each, and the keys and values of the last layer of each kind."""

    inputs: Tensor | None = None
    states: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)


class Gemma4Attention(Attention):
    """Attention whose values are normed, without weights; with ``one`` keys are values, too, before both are normed."""

    is_prepared, heads_apart = True, False  # later layers read its keys

    def __init__(self, *sizes: int, one: bool, eps: float, **options: Any) -> None:
        self.one, self.eps = one, eps
        super().__init__(*sizes, **options)

    def make_projections(self, dim: int, queries: int, keys: int, bias: bool) -> None:
        self.q_proj, self.k_proj = self.linear(dim, queries, bias), self.linear(dim, keys, bias)
        if not self.one:
            self.v_proj = self.linear(dim, keys, bias)

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        q, k = self.split(self.q_proj(x)), self.split(self.k_proj(x))
        v = moe.wide(k if self.one else self.split(self.v_proj(x)))
        return q, k, F.rms_norm(v, v.shape[-1:], eps=self.eps).to(k.dtype)

    def by_row(self, q: Tensor, k: Tensor, v: Tensor, rows: Rows, ctx: Context[Shared]) -> Tensor:
        ctx.own.states[self.kind or ""] = k, v
        return super().by_row(q, k, v, rows, ctx)

    def self_keys(self, q: Tensor, k: Tensor, v: Tensor, ctx: Context[Shared]) -> tuple[Tensor, Tensor, Tensor | None, bool]:
        k, v, mask, causal = super().self_keys(q, k, v, ctx)
        ctx.own.states[self.kind or ""] = k, v
        return k, v, mask, causal


class BorrowingAttention(Attention):
    """Attention that has queries alone: keys and values are those of an earlier layer of its kind."""

    is_prepared, heads_apart = True, False

    def make_projections(self, dim: int, queries: int, keys: int, bias: bool) -> None:
        self.q_proj = self.linear(dim, queries, bias)

    def side_by_side(self) -> None:
        """Nothing: queries are alone."""

    def gathered(self, x: Tensor, ctx: Context[Shared]) -> Attended:
        q = self.q_norm(self.split(self.q_proj(x)))
        k, v = ctx.own.states[self.kind or ""]
        q, _ = self.turned(q, q, ctx)
        if ctx.rows is not None:
            return ctx.keep(self.by_row(q, k, v, ctx.rows, ctx)), None
        mask, causal = mask_for(ctx, self.pattern, q.shape[2], k.shape[2], q)
        out, weights = self.attend(q, k, v, mask, causal, ctx)
        if ctx.attentions is not None and weights is not None:
            ctx.attentions.append(weights)
        return ctx.keep(out.transpose(1, 2).flatten(2)), weights


class Gemma4Router(nn.Module):
    """Chooses K of E experts by a softmax over scaled, normed states; the weights are scaled for each expert."""

    def __init__(self, c: Gemma4TextConfig) -> None:
        super().__init__()
        self.proj = nn.Linear(c.hidden_size, c.num_experts or 0, bias=False)
        self.scale = nn.Parameter(torch.ones(c.hidden_size))
        self.per_expert_scale = nn.Parameter(torch.ones(c.num_experts or 0))
        self.top, self.eps = c.top_k_experts or 0, c.rms_norm_eps

    def reset_parameters(self) -> None:
        nn.init.ones_(self.scale)
        nn.init.ones_(self.per_expert_scale)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(N, D) -> weights and experts (N, K)."""
        normed = F.rms_norm(moe.wide(x), x.shape[-1:], eps=self.eps).to(x.dtype)
        scores = self.proj(normed * self.scale * x.shape[-1] ** -0.5)
        weights, experts = torch.topk(F.softmax(moe.wide(scores), dim=-1), self.top, dim=-1)
        return weights / weights.sum(dim=-1, keepdim=True) * self.per_expert_scale[experts], experts


class Gemma4Block(SandwichNorm):
    """Gemma 2's block, then what the embeddings for this layer let through; all is multiplied by a number."""

    is_prepared = True
    layer_scalar: Tensor

    def __init__(self, c: Gemma4TextConfig, layer: int, attention: Attention, mlp: nn.Module, norm: Any) -> None:
        super().__init__(attention, mlp, norm)
        self.number, self.size, self.act = layer, c.hidden_size_per_layer_input, activation(c.hidden_activation)
        self.register_buffer("layer_scalar", torch.ones(1))
        if self.size:
            self.per_layer_input_gate = nn.Linear(c.hidden_size, self.size, bias=False)
            self.per_layer_projection = nn.Linear(self.size, c.hidden_size, bias=False)
            self.per_layer_norm = norm()
        if c.enable_moe_block:
            self.router = Gemma4Router(c)
            sizes = (c.num_experts or 0, c.hidden_size, c.moe_intermediate_size or 0)
            self.experts = moe.Experts(*sizes, c.hidden_activation)
            self.dense_post_norm, self.experts_post_norm, self.experts_norm = norm(), norm(), norm()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.layer_scalar)

    def whole(self, x: Tensor, ctx: Context[Shared]) -> Tensor:
        x = ctx.keep(x) + self.self_attn_post_norm(self.self_attn(self.self_attn_norm(x), ctx)[0])
        found = self.mlp(self.mlp_norm(x), ctx)
        if hasattr(self, "router"):
            rows = x.flatten(0, 1)
            chosen = self.experts(self.experts_norm(rows), *self.router(rows)).view_as(x)
            found = self.dense_post_norm(found) + self.experts_post_norm(chosen)
        x = x + self.mlp_post_norm(found)
        if self.size and ctx.own.inputs is not None:
            gate = self.act(self.per_layer_input_gate(x)) * ctx.keep(ctx.own.inputs[:, :, self.number])
            x = x + self.per_layer_norm(self.per_layer_projection(gate))
        return x * self.layer_scalar


class LayerEmbedding(ScaledEmbedding):
    """The embeddings for all layers of a token, one behind the other, scaled by the root of the size of one."""

    def __init__(self, count: int, layers: int, size: int, padding: int | None) -> None:
        super().__init__(count, layers * size, padding_idx=padding)
        self.scale = math.sqrt(size)


ATTENTION: Table = {name: name for name in ("q_proj", "q_norm", "k_norm", "k_proj", "v_proj", "o_proj")}
GEMMA4_BLOCK: Table = {
    **GEMMA2_BLOCK,
    "self_attn": ("self_attn", ATTENTION),
    "per_layer_input_gate": "per_layer_input_gate",
    "per_layer_projection": "per_layer_projection",
    "post_per_layer_input_norm": "per_layer_norm",
    "router": "router",
    "experts": "experts",
    "post_feedforward_layernorm_1": "dense_post_norm",
    "post_feedforward_layernorm_2": "experts_post_norm",
    "pre_feedforward_layernorm_2": "experts_norm",
}


FILES = Layout(
    {
        "layer_output_scale.weight": "layer_scalar",
        "inp_gate": "per_layer_input_gate",
        "proj": "per_layer_projection",
        "post_norm": "per_layer_norm",
        "ffn_gate_inp": "router.proj",
        "ffn_gate_inp.scale": "router.scale",
        "ffn_down_exps.scale": "router.per_expert_scale",
        **dict.fromkeys(("ffn_gate_exps.*.weight", "ffn_up_exps.*.weight")),
        "ffn_gate_up_exps.*.weight": Stacked("experts.gate_up_proj"),
        "ffn_down_exps.*.weight": Stacked("experts.down_proj"),
        "pre_ffw_norm_2": "experts_norm",
        "post_ffw_norm_1": "dense_post_norm",
        "post_ffw_norm_2": "experts_post_norm",
    },
    whole={
        "per_layer_token_embd": "embed_tokens_per_layer",
        "per_layer_model_proj": "per_layer_model_projection",
        "per_layer_proj_norm": "per_layer_projection_norm",
    },
)


class Gemma4TextModel(LlamaModel):
    config_class = Gemma4TextConfig
    gguf = FILES
    names = Names({"embed_tokens": "embed_tokens", "layers.*": ("layers.*", GEMMA4_BLOCK), "norm": "norm"})
    reads = (
        *("input_ids", "attention_mask", "position_ids", "past_key_values", "inputs_embeds"),
        *("per_layer_inputs", "labels", "use_cache"),
    )
    norm_class, embedding_class, qk_norm_class = WideRMSNorm, ScaledEmbedding, WideRMSNorm
    config: Gemma4TextConfig

    @classmethod
    def names_of(cls, config: Any) -> Names:
        """Files may have keys and values of layers that read those of others."""
        places = ("layers.{}.self_attn.{}_proj", "layers.{}.self_attn.{}_norm", "blk.{}.attn_{}", "blk.{}.attn_{}_norm")
        layers = [layer for layer in range(config.num_hidden_layers) if config.shares(layer)]
        unread = (place.format(layer, name) for place in places for layer in layers for name in "kv")
        return super().names_of(config) | Names(ignore=tuple(unread))

    def __init__(self, config: Gemma4TextConfig) -> None:
        super().__init__(config)
        c = config
        if size := c.hidden_size_per_layer_input:
            table = LayerEmbedding(c.vocab_size_per_layer_input, c.num_hidden_layers, size, c.pad_token_id)
            self.embed_tokens_per_layer = table
            self.per_layer_model_projection = nn.Linear(c.hidden_size, c.num_hidden_layers * size, bias=False)
            self.per_layer_projection_norm = WideRMSNorm(size, c.rms_norm_eps)

    @property
    def causal(self) -> bool:  # type: ignore[override]
        return self.config.is_causal

    def vocabulary_layers(self) -> list[nn.Module]:
        """With the embeddings for layers, which have a row for each token, too."""
        more = [self.embed_tokens_per_layer] if self.config.hidden_size_per_layer_input else []
        return [*super().vocabulary_layers(), *more]

    def layer_kinds(self) -> Kinds:
        return [() if self.config.shares(layer) else (KeyValues,) for layer in range(len(self.layers))]

    def make_rotary(self) -> RotaryTables:
        c = self.config
        sizes = {FULL: c.global_head_dim, SLIDING: c.head_dim}
        return RotaryTables({kind: Rotary(sizes[kind], c.rope(kind)) for kind in c.rope_kinds()})

    def block(self, layer: int, **more: Any) -> Block:
        return Gemma4Block(self.config, layer, self.attention(layer), self.feed_forward(layer), self.make_norm)

    def attention(self, layer: int, **more: Any) -> Attention:
        c, (heads, size) = self.config, self.config.key_sizes(layer)
        options: dict[str, Any] = {"bias": c.attention_bias, "dropout": c.attention_dropout, "scale": 1.0}
        options |= {"pattern": Pattern(causal=c.is_causal, window=c.window(layer)), "rotary": c.rope_kind(layer)}
        options |= {"kv_heads": heads, "head_dim": size}
        if c.shares(layer):
            made: Attention = BorrowingAttention(c.hidden_size, c.num_attention_heads, **options)
            made.q_norm = WideRMSNorm(made.head_dim, c.rms_norm_eps)
            return made
        one = c.attention_k_eq_v and c.layer_types[layer] == FULL
        options |= {"one": one, "eps": c.rms_norm_eps, "qk_norm": lambda size: WideRMSNorm(size, c.rms_norm_eps)}
        return Gemma4Attention(c.hidden_size, c.num_attention_heads, **options)

    def feed_forward(self, layer: int) -> nn.Module:
        c = self.config
        return GatedMLP(c.hidden_size, c.width(layer), c.hidden_activation, chunk_size=c.chunk_size_feed_forward)

    def begin(
        self, input_ids: Tensor | None = None, *args: Any, per_layer_inputs: Tensor | None = None, **inputs: Any
    ) -> tuple[Tensor, Context]:
        """As in every model of texts; ``per_layer_inputs`` (B, T, L, P) are embeddings for layers, in place of the ids' own."""
        x, ctx = super().begin(input_ids, *args, **inputs)
        ctx.own = Shared()
        if self.config.hidden_size_per_layer_input:
            ctx.own.inputs = self.layer_inputs(input_ids, x, per_layer_inputs)
        return x, ctx

    def layer_inputs(self, ids: Tensor | None, x: Tensor, given: Tensor | None) -> Tensor:
        """(B, T, L, P) of ids (B, T), or of embeddings (B, T, D) of tokens: what the two say of each layer."""
        c, shape = self.config, (*x.shape[:2], self.config.num_hidden_layers, self.config.hidden_size_per_layer_input)
        if given is not None:
            own = check_tensor("per_layer_inputs", given, (x.dtype,), "(batch, positions, layers, size)")
            if own.shape != shape:
                raise InputError(f"`per_layer_inputs` has the shape {tuple(own.shape)}, but must be {shape}.")
        else:
            own = self.embed_tokens_per_layer(self.ids_of(x) if ids is None else ids).view(shape)
        projected = (self.per_layer_model_projection(x) * c.hidden_size**-0.5).view(shape)
        return (self.per_layer_projection_norm(projected) + own) * 2.0**-0.5

    @torch.no_grad()
    def ids_of(self, x: Tensor) -> Tensor:
        """The ids (B, T) whose embeddings are x (B, T, D) to the last bit (``InputError`` where there are none)."""
        table = self.embed_tokens(torch.arange(self.vocab_size, device=x.device))
        same = torch.stack([(table == vector).all(dim=-1) for vector in x.flatten(0, 1)])
        if not bool(same.any(dim=1).all()):
            hint = "Pass `input_ids`, or `per_layer_inputs` beside."
            raise InputError("`inputs_embeds` are of no tokens, and each layer has embeddings of these, too.", hint=hint)
        return same.int().argmax(dim=1).view(x.shape[:2])


class Gemma4ForCausalLM(Gemma2ForCausalLM, ForCausalLM[Gemma4TextModel]):
    reads = (
        *("input_ids", "attention_mask", "position_ids", "past_key_values", "inputs_embeds", "labels", "use_cache"),
        "per_layer_inputs",
    )
