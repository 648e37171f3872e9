"""Multi-head latent attention (DeepSeek-AI 2024): keys and values of all heads are made of one small vector of each position.

That vector, the latent, and one rotary key for all heads are what is cached, in the place of keys and values.
Shapes: B batch, T queries, S keys, D hidden size, H heads, E size of queries and keys, of which the last R turn, V size of
values, L size of the latent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from transept.errors import InputError
from transept.layers.attention import Attention
from transept.layers.context import Attended, Context, Rows
from transept.layers.rotary import rotate, rotate_interleaved


class LatentSizes(NamedTuple):
    """L, E without R, R and V; ``queries`` is the size of the vector that queries are made of, ``None`` for that of states."""

    latent: int
    fixed: int
    turned: int
    values: int
    queries: int | None = None


class LatentAttention(Attention):
    """Causal self-attention whose keys and values are made of latents.

    Args:
        dim, heads, sizes: D, H, and the sizes within.
        norm: makes the norm of latents, and of what queries are made of, for its size.
        bias: whether the projections that read states, and that of the output, have biases; those that read latents have none.
        interleaved: whether elements that are neighbours turn together.
        options: as for :class:`transept.layers.attention.Attention`.
    """

    heads_apart = False

    def __init__(
        self,
        dim: int,
        heads: int,
        sizes: LatentSizes,
        norm: Callable[[int], nn.Module],
        *,
        bias: bool = False,
        interleaved: bool = True,
        **options: object,
    ) -> None:
        self.sizes, self.make_norm, self.interleaved = sizes, norm, interleaved  # which the projections follow from
        super().__init__(dim, heads, head_dim=sizes.fixed + sizes.turned, bias=bias, **options)  # type: ignore[arg-type]

    def make_projections(self, dim: int, queries: int, keys: int, bias: bool) -> None:
        sizes = self.sizes
        if sizes.queries is None:
            self.q_proj = self.linear(dim, queries, False)
        else:
            self.q_a_proj, self.q_a_norm = self.linear(dim, sizes.queries, bias), self.make_norm(sizes.queries)
            self.q_b_proj = self.linear(sizes.queries, queries, False)
        self.kv_a_proj, self.kv_a_norm = self.linear(dim, sizes.latent + sizes.turned, bias), self.make_norm(sizes.latent)
        self.kv_b_proj = self.linear(sizes.latent, self.heads * (sizes.fixed + sizes.values), False)

    @property
    def gathered_size(self) -> int:
        return self.heads * self.sizes.values

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        """(B, T, D) -> queries (B, H, T, E), rotary keys (B, 1, T, R) and latents (B, 1, T, L)."""
        q = self.q_proj(x) if self.sizes.queries is None else self.q_b_proj(self.q_a_norm(self.q_a_proj(x)))
        latents, keys = self.kv_a_proj(x).split((self.sizes.latent, self.sizes.turned), dim=-1)
        return self.split(q), keys[:, None], self.kv_a_norm(latents)[:, None]

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Turn the last R elements of queries, or rotary keys."""
        fixed, turned = x[..., : -self.sizes.turned], x[..., -self.sizes.turned :]
        turned = (rotate_interleaved if self.interleaved else rotate)(turned, cos, sin)
        return torch.cat([fixed, turned], dim=-1) if fixed.shape[-1] else turned

    def expand(self, latents: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Latents (B, 1, S, L) and rotary keys (B, 1, S, R) -> keys (B, H, S, E) and values (B, H, S, V)."""
        heads = self.kv_b_proj(latents[:, 0]).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        fixed, values = heads.split((self.sizes.fixed, self.sizes.values), dim=-1)
        return torch.cat([fixed, keys.expand(-1, self.heads, -1, -1)], dim=-1), values

    def self_keys(self, q: Tensor, k: Tensor, v: Tensor, ctx: Context) -> tuple[Tensor, Tensor, Tensor | None, bool]:
        latents, keys, mask, causal = super().self_keys(q, v, k, ctx)  # cached in this order, as in the reference
        if q.shape[2] == 1 < self.heads and self.is_plain():
            return torch.cat([latents, keys], dim=-1), latents, mask, causal
        return *self.expand(latents, keys), mask, causal

    def is_plain(self) -> bool:
        """Whether what makes keys and values of latents is a matrix, and nothing else."""
        linear = self.kv_b_proj
        return type(linear) is nn.Linear and not linear._forward_hooks and not linear._forward_pre_hooks

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, ctx: Context) -> Attended:
        """As in every attention.

        A single query is brought to latents, which are its keys and values: so none are made for all S positions.
        """
        if k.shape[1] == self.heads:
            return super().attend(q, k, v, mask, causal, ctx)
        sizes = self.sizes
        for_keys, for_values = self.kv_b_proj.weight.view(self.heads, -1, sizes.latent).split(
            (sizes.fixed, sizes.values), dim=1
        )
        q = torch.cat([q[..., : sizes.fixed] @ for_keys, q[..., sizes.fixed :]], dim=-1)
        out, weights = super().attend(q, k, v, mask, causal, ctx)
        return out @ for_values.mT, weights

    def by_row(self, q: Tensor, k: Tensor, v: Tensor, rows: Rows, ctx: Context) -> Tensor:
        return super().by_row(q, *self.expand(v, k), rows, ctx)

    def prune_heads(self, heads: Iterable[int]) -> None:
        raise InputError(f"the heads {sorted(heads)} share latents with the others, and cannot be removed.")
