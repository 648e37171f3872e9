"""The standard blocks of transformers, built of the parts that a family passes in.

A family whose blocks are put together otherwise writes its own in its file.

Shapes: B batch, T positions, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from transept.layers.attention import Attention
from transept.layers.context import Context
from transept.layers.drop import layer_drop


class Block(nn.Module):
    """Self-attention, cross-attention where there is some, and a feed-forward layer; subclasses put them together.

    Args:
        attention: self-attention.
        mlp: (B, T, D) -> (B, T, D).
        norm: makes a norm for states of size D.
        cross: attention to an encoder's states; left out in a forward pass that has none.
        dropout: share of the outputs of each part that is dropped in training.
        layerdrop: how often the whole block is left out in training (Fan et al. 2019).
    """

    def __init__(
        self,
        attention: nn.Module,
        mlp: nn.Module,
        norm: Callable[[], nn.Module],
        *,
        cross: Attention | None = None,
        dropout: float = 0.0,
        layerdrop: float = 0.0,
    ) -> None:
        super().__init__()
        self.self_attn, self.self_attn_norm = attention, norm()
        self.cross_attn, self.cross_attn_norm = cross, norm() if cross is not None else None
        self.mlp, self.mlp_norm = mlp, norm()
        self.dropout: nn.Module = nn.Dropout(dropout) if dropout else nn.Identity()
        self.layerdrop = layerdrop

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        return layer_drop(self.whole, x, ctx, self.layerdrop if self.training else 0.0)

    def whole(self, x: Tensor, ctx: Context) -> Tensor:
        """The block, not left out: (B, T, D) -> (B, T, D)."""
        raise NotImplementedError


class PostNorm(Block):
    """Each part is added to its input, and the sum is normed (Vaswani et al. 2017)."""

    def whole(self, x: Tensor, ctx: Context) -> Tensor:
        x = self.self_attn_norm(x + self.dropout(self.self_attn(x, ctx)))
        if self.cross_attn is not None and self.cross_attn_norm is not None and ctx.encoder_states is not None:
            x = self.cross_attn_norm(x + self.dropout(self.cross_attn(x, ctx)))
        out: Tensor = self.mlp_norm(x + self.dropout(self.mlp(x)))
        return out


class PreNorm(Block):
    """Each part reads its normed input and is added to the input (Radford et al. 2019)."""

    def whole(self, x: Tensor, ctx: Context) -> Tensor:
        x = x + self.dropout(self.self_attn(self.self_attn_norm(x), ctx))
        if self.cross_attn is not None and self.cross_attn_norm is not None and ctx.encoder_states is not None:
            x = x + self.dropout(self.cross_attn(self.cross_attn_norm(x), ctx))
        out: Tensor = x + self.dropout(self.mlp(self.mlp_norm(x)))
        return out


class Parallel(Block):
    """Attention and feed-forward layer both read the block's input, each through its own norm (Wang and Komatsuzaki 2021)."""

    def whole(self, x: Tensor, ctx: Context) -> Tensor:
        attended = self.dropout(self.self_attn(self.self_attn_norm(x), ctx))
        out: Tensor = x + attended + self.dropout(self.mlp(self.mlp_norm(x)))
        return out
