"""Gemma 4's model of texts (Google 2026): Gemma 3 with values that are normed, too, and embeddings for each layer.

Layers that see all have larger heads; the last layers may read the keys and values of an earlier one, and feed-forward layers
may have experts beside them.
Shapes: B batch, T positions, D hidden size, L layers, P size of a layer's embeddings, N tokens, E experts, K experts a token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Count, Experts, Layers, PaddingId, Positive, derived
from transept.core.inputs import check_tensor
from transept.errors import InputError
from transept.heads.language import ForCausalLM
from transept.kinds.decoder import FULL, SLIDING, DecoderConfig, LayeredConfig
from transept.layers import Attention, Block, Context, GatedMLP, Pattern, SandwichNorm, moe
from transept.layers.caches.cache import Kinds
from transept.layers.caches.layer import KeyValues
from transept.layers.context import Attended, Rows, mask_for
from transept.layers.mlp import activation
from transept.layers.norm import WideRMSNorm
from transept.layers.rotary import Rotary, RotaryTables
from transept.models.gemma2 import GEMMA2_BLOCK, Gemma2ForCausalLM, ScaledEmbedding
from transept.models.llama import LlamaModel


class Gemma4TextConfig(LayeredConfig, DecoderConfig):
    """Settings of Gemma 4's model of texts.

    Without ``layer_types`` every sixth layer sees all, and the last one always does. Such layers have heads of
    ``global_head_dim`` and, with ``attention_k_eq_v``, ``num_global_key_value_heads`` keys that are values, too. The last
    ``num_kv_shared_layers`` read keys and values of the last layer of their kind before them; ``use_double_wide_mlp`` makes
    their feed-forward layers twice as wide. ``hidden_size_per_layer_input`` is the size of the embeddings for each layer, where
    it is not 0. With ``enable_moe_block`` each layer has experts. ``use_bidirectional_attention`` of ``"all"`` lets a query see
    what follows it, and half of a window and one more on either side; ``"vision"`` is about pictures alone.
    """

    model_type = "gemma4_text"
    default_thetas = {FULL: 1e6, SLIDING: 1e4}

    vocab_size: int = 262144
    hidden_size: int = 2304
    intermediate_size: int = 9216
    num_hidden_layers: Layers = 30
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    head_dim: int = 256
    global_head_dim: int = 512
    num_global_key_value_heads: int | None = None
    hidden_activation: str = "gelu_pytorch_tanh"
    max_position_embeddings: int = 131072
    pad_token_id: PaddingId | None = 0
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 1
    tie_word_embeddings: bool = True
    attention_bias: bool = False
    sliding_window: Count | None = 512
    final_logit_softcapping: Positive | None = None
    use_bidirectional_attention: Literal["all", "vision"] | None = None
    vocab_size_per_layer_input: int = derived(lambda c: c.vocab_size)
    hidden_size_per_layer_input: int = 256
    attention_k_eq_v: bool = False
    num_kv_shared_layers: Layers = 0
    enable_moe_block: bool = False
    use_double_wide_mlp: bool = False
    num_experts: Experts | None = None
    top_k_experts: int | None = None
    moe_intermediate_size: int | None = None

    is_causal = property(lambda self: self.use_bidirectional_attention != "all")

    @classmethod
    def upgrade(cls, values: dict[str, Any]) -> dict[str, Any]:
        """What a file says of each layer is for all that see all; a second size of the vocabulary follows the first."""
        if values.get("vocab_size_per_layer_input") == values.get("vocab_size", 262144):
            values.pop("vocab_size_per_layer_input", None)
        by_layer = values.pop("per_layer_config", None) or {}
        own = next(iter(by_layer.values()), None) if isinstance(by_layer, dict) else None
        if isinstance(own, dict):
            names = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}
            values |= {names[name]: value for name, value in own.items() if name in names}
        return super().upgrade(values)

    @classmethod
    def complete(cls, rope: dict[str, Any]) -> dict[str, Any]:
        usual = {FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25}}
        return super().complete(usual | rope)

    def validate(self) -> None:
        if (types := self.layer_types) and types[-1] != FULL:
            self.layer_types = [*types[:-1], FULL]
        super().validate()
        layers, shared = self.num_hidden_layers, self.num_kv_shared_layers
        if shared and {*self.layer_types} != {*self.layer_types[: layers - shared]}:
            self.fail("num_kv_shared_layers", "must leave a layer of each kind that has keys and values")
        if self.enable_moe_block and not 1 <= (self.top_k_experts or 0) <= (self.num_experts or 0):
            self.fail("top_k_experts", f"must be between 1 and `num_experts` ({self.num_experts})")

    def slides(self, layer: int) -> bool:
        return (layer + 1) % 6 != 0 and layer != self.num_hidden_layers - 1

    def window(self, layer: int) -> int | None:
        window = super().window(layer)
        return window if window is None or self.is_causal else window // 2 + 2

    def shares(self, layer: int) -> bool:
        """Whether a layer reads the keys and values of another."""
        return layer >= self.num_hidden_layers - self.num_kv_shared_layers

    def key_sizes(self, layer: int) -> tuple[int, int]:
        """The number of heads, and their size, of the keys that a layer has, or reads of another."""
        if self.layer_types[layer] != FULL:
            return self.num_key_value_heads, self.head_dim
        heads = self.num_global_key_value_heads if self.attention_k_eq_v else None
        return heads or self.num_key_value_heads, self.global_head_dim


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


class Gemma4TextModel(LlamaModel):
    config_class = Gemma4TextConfig
    names = Names({"embed_tokens": "embed_tokens", "layers.*": ("layers.*", GEMMA4_BLOCK), "norm": "norm"})
    reads = (
        *("input_ids", "attention_mask", "position_ids", "past_key_values", "inputs_embeds"),
        *("per_layer_inputs", "labels", "use_cache"),
    )
    norm_class, embedding_class, qk_norm_class = WideRMSNorm, ScaledEmbedding, WideRMSNorm
    config: Gemma4TextConfig

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
        width = c.intermediate_size * (2 if c.use_double_wide_mlp and c.shares(layer) else 1)
        return GatedMLP(c.hidden_size, width, c.hidden_activation, chunk_size=c.chunk_size_feed_forward)

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
