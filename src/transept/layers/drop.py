"""Leaving layers out while training."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from transept.layers.context import Context


def layer_drop(layer: Callable[[Tensor, Context], Tensor], x: Tensor, ctx: Context, share: float) -> Tensor:
    """Apply a layer to (B, T, D), or leave it out with the probability ``share`` (LayerDrop, Fan et al. 2020)."""
    if share == 0.0:
        return layer(x, ctx)
    skip = torch.rand(()) < share
    if torch.compiler.is_compiling():  # a choice by value would break the graph
        return torch.where(skip.to(x.device), x, layer(x, ctx))
    return x if skip else layer(x, ctx)
