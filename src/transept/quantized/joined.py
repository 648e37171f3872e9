"""Layers that read one input and can be one product: queries, keys and values, or a gate and what it is beside."""

from __future__ import annotations

from typing import Any

from torch import nn

from transept.layers.attention import Attention
from transept.layers.linear import share_product
from transept.layers.mlp import GatedMLP
from transept.quantized.grouped import GroupedLinear


def side_by_side(module: nn.Module) -> tuple[tuple[str, ...], str] | None:
    """The names of a module's layers of one input, and the name of a product in their place.

    There are none where the module computes in a way of its own, has one product already, or looks at another model's states.
    """
    kind: Any = type(module)
    if isinstance(module, GatedMLP) and kind.whole is GatedMLP.whole:
        return ("gate_proj", "up_proj"), "gate_up_proj"
    if not isinstance(module, Attention) or module.cross:
        return None
    if kind.project is not Attention.project or kind.whole is not Attention.whole:
        return None
    return ("q_proj", "k_proj", "v_proj"), "qkv_proj"


def join_grouped(model: nn.Module) -> None:
    """Join layers of few bits side by side, where their weights are of one kind."""
    for module in tuple(model.modules()):
        if (found := side_by_side(module)) is not None:
            names, place = found
            layers = [getattr(module, name) for name in names]
            grouped = [layer for layer in layers if isinstance(layer, GroupedLinear) and not layer._forward_hooks]
            if len(grouped) == len(layers) and (product := GroupedLinear.joined(grouped)) is not None:
                share_product(module, names, place, product)
