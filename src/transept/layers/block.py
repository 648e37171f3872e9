"""The standard blocks of transformers, built of the parts that a family passes in: (B, T, D) -> (B, T, D).

A family whose blocks are put together otherwise subclasses one of these in its file and writes ``whole``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from transept.config.model import Config
from transept.errors import UnsupportedError, refuse
from transept.layers.attention import Attention
from transept.layers.context import Context
from transept.layers.links import Layer

# The largest number of float16, less some room for what is added next.
_MOST = torch.finfo(torch.float16).max - 1000


def clamp_half(x: Tensor) -> Tensor:
    """Values of float16, of any shape, without infinities; other types have room enough and are returned as they are."""
    return x.clamp(min=-_MOST, max=_MOST) if x.dtype is torch.float16 else x


class Block(Layer):
    """Self-attention, cross-attention where there is some, and a feed-forward layer; subclasses put them together.

    ``cross`` is left out in a forward pass without an encoder's states. ``mlp_dropout`` is the dropout after the feed-forward
    layer where it is another one, ``layerdrop`` how often the whole block is left out in training (LayerDrop, Fan et al. 2020).
    ``branch`` makes what each part's output goes through before it is added, in the place of dropout, and ``mlp_branch`` that
    of the feed-forward layer where it is another. With ``bounds``, outputs of float16 have no infinities.
    """

    # Whether its model prepares more for it than a mask, such as biases by distance.
    is_prepared: ClassVar[bool] = False
    # Whether processes share its parts, and bring results together by hooks on these.
    is_split = False

    def __init__(
        self,
        attention: Attention,
        mlp: nn.Module,
        norm: Callable[[], nn.Module],
        *,
        cross: Attention | None = None,
        dropout: float = 0.0,
        mlp_dropout: float | None = None,
        layerdrop: float = 0.0,
        branch: Callable[[], nn.Module] | None = None,
        mlp_branch: Callable[[], nn.Module] | None = None,
        bounds: bool = False,
    ) -> None:
        super().__init__()
        self.self_attn, self.self_attn_norm = attention, norm()
        self.cross_attn, self.cross_attn_norm = cross, None if cross is None else norm()
        self.mlp, self.mlp_norm = mlp, norm()
        self.dropout: nn.Module = nn.Dropout(dropout) if branch is None else branch()
        last = dropout if mlp_dropout is None else mlp_dropout
        self.mlp_dropout: nn.Module = nn.Dropout(last) if branch is None else (mlp_branch or branch)()
        self.layerdrop, self.bounds = layerdrop, bounds

    def forward(self, x: Tensor, ctx: Context | Tensor | None = None, **given: Any) -> Tensor:
        """(B, T, D) -> (B, T, D); without a context, the arguments are the reference's (see :meth:`Attention.alone`)."""
        if not isinstance(ctx, Context):
            what = f"{type(self).__name__} needs what its model prepares, and cannot be called alone."
            refuse(self.is_prepared, what, "Call the model, with hooks on the layer.", UnsupportedError)
            ctx = self.self_attn.alone(x, ctx, given)
        out = self._left_out_at_times(x, ctx) if self.training and self.layerdrop > 0.0 else self.whole(x, ctx)
        return clamp_half(out) if self.bounds else out

    def _left_out_at_times(self, x: Tensor, ctx: Context) -> Tensor:
        skip = torch.rand(()) < self.layerdrop
        if torch.compiler.is_compiling():  # a choice by value would break the graph
            return torch.where(skip.to(x.device), x, self.whole(x, ctx))
        return x if skip else self.whole(x, ctx)

    def whole(self, x: Tensor, ctx: Context) -> Tensor:
        """The block, not left out: (B, T, D) -> (B, T, D)."""
        raise NotImplementedError


class PostNorm(Block):
    """Each part is added to its input, and the sum is normed (Vaswani et al. 2017)."""

    def whole(self, x: Tensor, ctx: Context) -> Tensor:
        x = self.self_attn_norm(ctx.keep(x) + self.dropout(self.self_attn(x, ctx)[0]))
        if self.cross_attn is not None and self.cross_attn_norm is not None and ctx.encoder_states is not None:
            x = self.cross_attn_norm(x + self.dropout(self.cross_attn(x, ctx)[0]))
        return self.mlp_norm(x + self.mlp_dropout(self.mlp(x, ctx)))


class PreNorm(Block):
    """Each part reads its normed input and is added to the input (Radford et al. 2019)."""

    def whole(self, x: Tensor, ctx: Context) -> Tensor:
        x = ctx.keep(x) + self.dropout(self.self_attn(self.self_attn_norm(x), ctx)[0])
        if self.cross_attn is not None and self.cross_attn_norm is not None and ctx.encoder_states is not None:
            x = x + self.dropout(self.cross_attn(self.cross_attn_norm(x), ctx)[0])
        return x + self.mlp_dropout(self.mlp(self.mlp_norm(x), ctx))


class StatePreNorm(Layer):
    """A pre-norm block in which a ``mixer`` that keeps states stands in the place of self-attention.

    ``branch`` makes what each part's output goes through before it is added.
    """

    def __init__(
        self,
        mixer: nn.Module,
        mlp: nn.Module,
        norm: Callable[[], nn.Module],
        *,
        branch: Callable[[], nn.Module] = nn.Identity,
    ) -> None:
        super().__init__()
        self.mixer, self.self_attn_norm, self.mixer_branch = mixer, norm(), branch()
        self.mlp, self.mlp_norm, self.mlp_branch = mlp, norm(), branch()

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        x = x + self.mixer_branch(self.mixer(self.self_attn_norm(x), ctx))
        return x + self.mlp_branch(self.mlp(self.mlp_norm(x), ctx))


class SandwichNorm(Block):
    """Each part reads its normed input, and its output is normed before it is added to the input (Ding et al. 2021)."""

    def __init__(self, attention: Attention, mlp: nn.Module, norm: Callable[[], nn.Module], **options: Any) -> None:
        super().__init__(attention, mlp, norm, **options)
        self.self_attn_post_norm, self.mlp_post_norm = norm(), norm()

    def whole(self, x: Tensor, ctx: Context) -> Tensor:
        x = ctx.keep(x) + self.self_attn_post_norm(self.dropout(self.self_attn(self.self_attn_norm(x), ctx)[0]))
        return x + self.mlp_post_norm(self.mlp_dropout(self.mlp(self.mlp_norm(x), ctx)))


class Parallel(Block):
    """Attention and feed-forward layer both read the block's input, each through its own norm (Wang and Komatsuzaki 2021)."""

    def whole(self, x: Tensor, ctx: Context) -> Tensor:
        attended = self.dropout(self.self_attn(self.self_attn_norm(x), ctx)[0])
        x = ctx.keep(x)
        return x + attended + self.mlp_dropout(self.mlp(self.mlp_norm(x), ctx))


class SharedNormParallel(Parallel):
    """Attention and feed-forward layer both read the block's input through one norm (Chowdhery et al. 2022)."""

    def __init__(self, attention: Attention, mlp: nn.Module, norm: Callable[[], nn.Module], **options: Any) -> None:
        super().__init__(attention, mlp, norm, **options)
        self.mlp_norm = nn.Identity()

    def whole(self, x: Tensor, ctx: Context) -> Tensor:
        normed = self.self_attn_norm(x)
        attended = self.dropout(self.self_attn(normed, ctx)[0])
        return ctx.keep(x) + attended + self.mlp_dropout(self.mlp(ctx.keep(normed), ctx))


class OutputNorm(Block):
    """Each part reads its input as it is, and its output is normed before it is added to the input (OLMo et al. 2024)."""

    def whole(self, x: Tensor, ctx: Context) -> Tensor:
        x = ctx.keep(x) + self.self_attn_norm(self.dropout(self.self_attn(x, ctx)[0]))
        return x + self.mlp_norm(self.mlp_dropout(self.mlp(x, ctx)))


def standard_layers(
    c: Config,
    block: Callable[..., Block],
    attention: Callable[[], Attention],
    mlp: Callable[..., nn.Module],
    norm: Callable[[], nn.Module],
    *,
    cross: Callable[[], Attention] | None = None,
    count: int | None = None,
) -> nn.ModuleList:
    """All blocks of a network, or ``count``; each argument makes one part of a block.

    ``mlp`` is called with ``chunk_size``, which is a setting of all configs; ``block`` with the parts.
    """
    layers = nn.ModuleList()
    for _ in range(c.num_hidden_layers if count is None else count):
        across = cross() if cross is not None else None
        layers.append(block(attention(), mlp(chunk_size=c.chunk_size_feed_forward), norm, cross=across))
    return layers


def adds_to_stream(module: nn.Module, layers: Iterable[nn.Module]) -> bool:
    """Whether a module is one whose output a block of these layers adds to the residual stream."""
    blocks = [block for block in layers if isinstance(block, Block)]
    attentions = [part for block in blocks for part in (block.self_attn, block.cross_attn) if part is not None]
    adders = [*(part.o_proj for part in attentions), *(block.mlp.down_proj for block in blocks)]
    return any(module is each for each in adders)
