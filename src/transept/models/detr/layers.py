"""DETR's layers, which add positions to queries and keys. Shapes: B batch, T positions, D hidden size."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.layers import MLP, Attention
from transept.layers.context import Context
from transept.layers.links import Linked


@dataclass(eq=False)
class PlacedContext(Context):
    """A pass whose layers add ``positions`` (B, T, D) to queries and keys, and others to the encoder's states."""

    positions: Tensor | None = None
    encoder_positions: Tensor | None = None


class PlacedAttention(Attention):
    """Attention that adds positions to queries and keys, and not to values."""

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        assert isinstance(ctx, PlacedContext)
        assert ctx.positions is not None
        states, places, mask, seen = x, ctx.positions, ctx.full_mask, ctx.attentions
        if self.cross:
            assert ctx.encoder_states is not None
            assert ctx.encoder_positions is not None
            states, places, mask, seen = ctx.encoder_states, ctx.encoder_positions, ctx.encoder_mask, ctx.cross_attentions
        q, k, v = self.q_proj(x + ctx.positions), self.k_proj(states + places), self.v_proj(states)
        out, weights = self.attend(self.split(q), self.split(k), self.split(v), mask, False, ctx)
        if seen is not None and weights is not None:
            seen.append(weights)
        joined: Tensor = self.o_proj(out.transpose(1, 2).flatten(2))
        return joined


class DetrBlock(Linked):
    """A post-norm block; that of the decoder looks at the encoder's states too."""

    def __init__(self, c: Any, heads: int, inner: int, cross: bool) -> None:
        super().__init__()
        attention = partial(PlacedAttention, c.d_model, heads, dropout=c.attention_dropout)
        self.self_attn = attention()
        self.cross_attn = attention(cross=True) if cross else None
        self.mlp = MLP(c.d_model, inner, c.activation_function, dropout=c.activation_dropout)
        self.self_attn_norm, self.mlp_norm = nn.LayerNorm(c.d_model), nn.LayerNorm(c.d_model)
        self.cross_attn_norm = nn.LayerNorm(c.d_model) if cross else None
        self.dropout = nn.Dropout(c.dropout)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        x = self.self_attn_norm(x + self.dropout(self.self_attn(x, ctx)))
        if self.cross_attn is not None and self.cross_attn_norm is not None:
            x = self.cross_attn_norm(x + self.dropout(self.cross_attn(x, ctx)))
        out: Tensor = self.mlp_norm(x + self.dropout(self.mlp(x, ctx)))
        return out


_ATTENTION = {"k_proj": "k_proj", "v_proj": "v_proj", "q_proj": "q_proj"}
BLOCK: Table = {
    "self_attn": ("self_attn", _ATTENTION),
    "self_attn_layer_norm": "self_attn_norm",
    "encoder_attn": ("cross_attn", _ATTENTION),
    "encoder_attn_layer_norm": "cross_attn_norm",
    "mlp": ("mlp", {"fc1": "up_proj", "fc2": "down_proj"}),
    "final_layer_norm": "mlp_norm",
}
# A file's names of a block -> those of the tree.
BLOCK_FILES: Table = {
    **{f"{part}.out_proj": f"{part}.o_proj" for part in ("self_attn", "encoder_attn")},
    **{f"fc{place}": f"mlp.fc{place}" for place in (1, 2)},
}
