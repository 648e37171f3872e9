"""Multi-head, grouped and multi-query attention (Vaswani et al. 2017, Shazeer 2019, Ainslie et al. 2023).

Shapes: B batch, T queries, S keys, D hidden size, H heads, K key-value heads, E head size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from transept.errors import InputError, UnsupportedError, refuse
from transept.layers.attention.kernels import sdpa
from transept.layers.caches.layer import OWNER
from transept.layers.context import Attended, Context, Pattern, Rows, context_of_call, mask_for
from transept.layers.linear import shared_product
from transept.layers.links import Linked, SideBySide
from transept.layers.rotary import rotate, rotate_interleaved


class Attention(Linked):
    """Attention of a sequence to itself or, as ``cross``, to an encoder's states.

    Args:
        dim, heads, kv_heads, head_dim: D, H, K (H when absent) and E (D / H when absent).
        bias, out_bias: whether the query, key and value projections, and the output projection, have biases.
        pattern: which keys positions allow.
        dropout: share of the weights dropped in training.
        scale: factor of the scores; 1 / sqrt(E) when absent.
        qk_norm: makes a norm of size E for queries and keys.
        rotary: the kind of layer whose rotary table applies, where there is one.
        cross: whether it attends to an encoder's states; their size, where that is not D.
    """

    # Whether each head can work without the others' weights, so that processes may share them.
    heads_apart = True
    # Whether the model prepares more for it than a mask, such as biases by distance.
    is_prepared: ClassVar[bool] = False
    # How queries and keys (B, H, T, E) turn by a rotary table; a family whose heads are laid out otherwise overrides it.
    rotate = staticmethod(rotate)

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        bias: bool = True,
        out_bias: bool | None = None,
        pattern: Pattern = Pattern(),  # noqa: B008 (immutable)
        dropout: float = 0.0,
        scale: float | None = None,
        qk_norm: Callable[[int], nn.Module] | None = None,
        rotary: str | None = None,
        cross: bool | int = False,
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads or heads, head_dim or dim // heads
        self.source = dim if isinstance(cross, bool) else cross
        self.pattern, self.dropout, self.kind, self.cross = pattern, dropout, rotary, bool(cross)
        self.scale = 1 / math.sqrt(self.head_dim) if scale is None else scale
        self.make_projections(dim, heads * self.head_dim, self.kv_heads * self.head_dim, bias)
        self.o_proj = self.linear(self.gathered_size, dim, bias if out_bias is None else out_bias)
        self.q_norm = self.head_norm(qk_norm, self.heads) if qk_norm else nn.Identity()
        self.k_norm = self.head_norm(qk_norm, self.kv_heads) if qk_norm else nn.Identity()

    @property
    def gathered_size(self) -> int:
        """How many numbers all heads together gather for a position."""
        return self.heads * self.head_dim

    @staticmethod
    def linear(features: int, outputs: int, bias: bool) -> Any:
        """Make a projection; a family with layers of its own overrides this."""
        return nn.Linear(features, outputs, bias)

    def make_projections(self, dim: int, queries: int, keys: int, bias: bool) -> None:
        """Make what gives queries, and keys and values of so many numbers a position."""
        self.q_proj = self.linear(dim, queries, bias)
        self.k_proj, self.v_proj = self.linear(self.source, keys, bias), self.linear(self.source, keys, bias)

    def side_by_side(self) -> SideBySide | None:
        kind, place = type(self), "qkv_proj"
        usual = not self.cross and kind.project is Attention.project and kind.whole is Attention.whole
        return (("q_proj", "k_proj", "v_proj"), place) if usual else None

    def head_norm(self, make: Callable[..., nn.Module], heads: int) -> nn.Module:
        """The norm of queries or keys (B, heads, T, E), for which ``make`` is given a size."""
        return make(self.head_dim)

    def split(self, x: Tensor) -> Tensor:
        """(B, T, heads * E) -> (B, heads, T, E)."""
        return x.view(x.shape[0], x.shape[1], -1, self.head_dim).transpose(1, 2)

    def forward(self, x: Tensor, ctx: Context | Tensor | None = None, **given: Any) -> Attended:
        """:meth:`whole`; without a context, the arguments are the reference's (see :meth:`alone`)."""
        return self.whole(x, ctx if isinstance(ctx, Context) else self.alone(x, ctx, given))

    def alone(self, x: Tensor, mask: Tensor | None, given: Mapping[str, Any]) -> Context:
        """What is needed where a layer is called alone (see :func:`transept.layers.context.context_of_call`)."""
        what = f"{type(self).__name__} needs what its model prepares, and cannot be called alone."
        refuse(self.is_prepared, what, "Call the model, with hooks on the layer.", UnsupportedError)
        return context_of_call(sdpa, self.kind, x, mask, **given)

    def whole(self, x: Tensor, ctx: Context) -> Attended:
        """(B, T, D) -> (B, T, D), or fewer where the context keeps fewer; and the weights where the kernel shows them."""
        out, weights = self.gathered(x, ctx)
        return self.o_proj(out), weights

    def gathered(self, x: Tensor, ctx: Context) -> Attended:
        """The same before the output projection: (B, T, D) -> (B, T, H * E)."""
        if self.cross:
            q = self.q_norm(self.queries(x))
            k, v, mask, causal = self.cross_keys(x, ctx)
        else:
            q, k, v = self.project(x)
            q, k = self.placed(q, k, ctx)
            if ctx.rows is not None:
                gather = self.by_cached_row if ctx.alone else self.by_row
                return ctx.keep(gather(q, k, v, ctx.rows, ctx)), None
            k, v, mask, causal = self.self_keys(q, k, v, ctx)
            if not causal and (mask is None or mask.shape[2] == 1):  # what is allowed is the same for all queries
                q = ctx.keep(q.transpose(1, 2)).transpose(1, 2)
        out, weights = self.attend(q, k, v, mask, causal, ctx)
        seen = ctx.cross_attentions if self.cross else ctx.attentions
        if seen is not None and weights is not None:
            seen.append(weights)
        return ctx.keep(out.transpose(1, 2).flatten(2)), weights

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        """Queries (B, H, T, E), keys and values (B, K, T, E) of (B, T, D), by one product where the three share one."""
        projections = (self.q_proj, self.k_proj, self.v_proj)
        if (shared := shared_product(*projections)) is None:
            return tuple(self.split(projection(x)) for projection in projections)
        return tuple(map(self.split, shared(x).split([projection.out_features for projection in projections], dim=-1)))

    def placed(self, q: Tensor, k: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """Queries (B, H, T, E) and keys (B, K, T, E), normed and turned by their positions."""
        return self.turned(self.q_norm(q), self.k_norm(k), ctx)

    def turned(self, q: Tensor, k: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """The same, turned by their positions where the layer has a rotary table."""
        table = None if self.kind is None else ctx.rotary.get(self.kind)
        return (q, k) if table is None else (self.rotate(q, *table), self.rotate(k, *table))

    def queries(self, x: Tensor) -> Tensor:
        """The queries (B, H, T, E) for an encoder's states."""
        return self.split(self.q_proj(x))

    def keys_of(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values (B, K, S, E) of an encoder's states (B, S, D)."""
        return self.split(self.k_proj(states)), self.split(self.v_proj(states))

    @torch.no_grad()
    def prune_heads(self, heads: Iterable[int]) -> None:
        """Remove heads, of those that are there by their places from 0 on, with their weights (``InputError``: they share)."""
        count, removed = self.q_proj.out_features // self.head_dim, {*heads}
        if self.k_proj.out_features != self.q_proj.out_features or not removed <= {*range(count)} or len(removed) == count:
            raise InputError(f"the heads {sorted(removed)} of {count} cannot be removed.", hint="Leave one, which is its own.")
        kept = [place for place in range(self.q_proj.out_features) if place // self.head_dim not in removed]
        places = torch.tensor(kept, device=self.q_proj.weight.device)
        for layer, axis in ((self.q_proj, 0), (self.k_proj, 0), (self.v_proj, 0), (self.o_proj, 1)):
            for name, old in list(layer.named_parameters(recurse=False))[: 1 if axis else 2]:
                setattr(layer, name, nn.Parameter(old.index_select(axis, places), requires_grad=old.requires_grad))
            setattr(layer, "in_features" if axis else "out_features", len(places))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, ctx: Context) -> Attended:
        """What queries (B, H, T, E) gather from keys and values (B, K, S, E), and the weights where the kernel shows them."""
        return ctx.kernel(q, k, v, mask, causal, self.scale, self.dropout if self.training else 0.0)

    def by_row(self, q: Tensor, k: Tensor, v: Tensor, rows: Rows, ctx: Context) -> Tensor:
        """What queries (1, H, N, E) gather from keys and values (1, K, N, E) of their own row: (1, N, H * E)."""
        groups, parts = rows.groups(), []
        # One split: the backward pass of a slice would fill all N positions for each group.
        pieces = zip(*(torch.split(x[0], [count * length for count, length in groups], dim=1) for x in (q, k, v)), strict=True)
        for (count, length), own in zip(groups, pieces, strict=True):
            # (K, n, E) -> (rows, K, length, E), without a copy.
            rows_q, rows_k, rows_v = (x.view(len(x), count, length, -1).transpose(0, 1) for x in own)
            mask, causal = mask_for(ctx, self.pattern, length, length, q)
            out, _ = self.attend(rows_q, rows_k, rows_v, mask, causal, ctx)
            parts.append(out.transpose(1, 2).reshape(1, count * length, -1))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def by_cached_row(self, q: Tensor, k: Tensor, v: Tensor, rows: Rows, ctx: Context) -> Tensor:
        """The same, where rows go on from caches of their own: each row by itself, as it is computed in any company."""
        pieces, parts = zip(*(torch.split(x, list(rows.lengths), dim=2) for x in (q, k, v)), strict=True), []
        for own, (row_q, row_k, row_v) in zip(ctx.alone, pieces, strict=True):
            own.layer = ctx.layer
            if ctx.position_bias is not None and own.position_bias is None:
                own.position_bias = ctx.position_bias[..., : own.keys]
            keys, values, mask, causal = self.self_keys(row_q, row_k, row_v, own)
            parts.append(self.attend(row_q, keys, values, mask, causal, own)[0])
        return torch.cat(parts, dim=2).transpose(1, 2).flatten(2)

    def self_keys(self, q: Tensor, k: Tensor, v: Tensor, ctx: Context) -> tuple[Tensor, Tensor, Tensor | None, bool]:
        """Keys, values and mask over the sequence, with what is cached of it."""
        if (cached := ctx.key_values()) is not None:
            # A block may reach farther back than a window.
            k, v = cached.append(k, v, self.pattern.window if ctx.blocks is None else None)
        return k, v, *mask_for(ctx, self.pattern, q.shape[2], k.shape[2], q)

    def cross_keys(self, x: Tensor, ctx: Context) -> tuple[Tensor, Tensor, Tensor | None, bool]:
        """Keys, values and mask over the encoder's states, computed once where there is a cache."""
        cached = ctx.cross_key_values()
        if cached is not None and (pair := cached.pair) is not None:
            if ctx.encoder_states is not None and ctx.encoder_states.shape[1] != cached.length:
                message = f"the cache holds an encoder's {cached.length} positions, but `encoder_hidden_states` has"
                raise InputError(f"{message} {ctx.encoder_states.shape[1]}.", hint=OWNER)
            return *pair, ctx.encoder_mask, False
        if ctx.encoder_states is None:
            raise InputError("cross-attention needs `encoder_hidden_states`.")
        if (size := ctx.encoder_states.shape[-1]) != self.source:
            raise InputError(f"`encoder_hidden_states` has states of {size}, but cross-attention reads such of {self.source}.")
        k, v = self.keys_of(ctx.encoder_states)
        k = self.k_norm(k)
        if cached is not None:
            cached.append(k, v)
        return k, v, ctx.encoder_mask, False


class InterleavedAttention(Attention):
    """Attention in which element 2 i of a head turns with element 2 i + 1."""

    rotate = staticmethod(rotate_interleaved)


class FusedAttention(Attention):
    """Attention whose queries, keys and values are one product: ``qkv_proj`` gives all queries, then all keys, then all values.

    To an encoder's states, ``q_proj`` gives the queries and ``kv_proj`` the keys and values.
    """

    def make_projections(self, dim: int, queries: int, keys: int, bias: bool) -> None:
        self.sizes: tuple[int, ...] = queries, keys, keys
        if self.cross:
            self.q_proj, self.kv_proj = self.linear(dim, queries, bias), self.linear(self.source, 2 * keys, bias)
        else:
            self.qkv_proj = self.linear(dim, queries + 2 * keys, bias)

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(map(self.split, self.qkv_proj(x).split(self.sizes, dim=-1)))

    def prune_heads(self, heads: Iterable[int]) -> None:
        raise InputError(f"the heads {sorted(heads)} have one product with the others, and cannot be removed.")

    def keys_of(self, states: Tensor) -> tuple[Tensor, Tensor]:
        k, v = self.kv_proj(states).chunk(2, dim=-1)
        return self.split(k), self.split(v)


class ByHeadAttention(FusedAttention):
    """The same, where ``qkv_proj`` gives the query, key and value of one head after another.

    Where heads share keys and values, it gives the queries of such heads, their key and their value.
    """

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        shared = self.heads // self.kv_heads
        groups = self.qkv_proj(x).unflatten(-1, (-1, shared + 2, self.head_dim))  # (B, T, K, H / K + 2, E)
        return tuple(part.flatten(2, 3).transpose(1, 2) for part in groups.split([shared, 1, 1], dim=-2))
