"""DETR's layers, which add positions to queries and keys."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from transept.checkpoint.keys import Table
from transept.kinds.queries import PlacedAttention
from transept.layers import MLP, PostNorm


def block(c: Any, heads: int, inner: int, cross: bool) -> PostNorm:
    """A layer; that of the decoder looks at the encoder's states too."""
    attention = partial(PlacedAttention, c.d_model, heads, dropout=c.attention_dropout)
    mlp = MLP(c.d_model, inner, c.activation_function, dropout=c.activation_dropout)
    across = attention(cross=True) if cross else None
    return PostNorm(attention(), mlp, partial(nn.LayerNorm, c.d_model), cross=across, dropout=c.dropout)


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
