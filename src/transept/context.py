"""What all layers of one forward pass share.

A backbone makes one ``Context`` per call and hands it to each layer: the mask's description and its lowered tensors, the cache,
rotary tables, a bias for positions, the encoder's states, and what the caller asked to see (hidden states, attentions).

Shapes: B batch, T queries, S keys, D hidden size, H heads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transept.layers.cache import Cache, KeyValues
    from transept.layers.mask import Pattern

# (query, key, value, mask, causal, scale, dropout) -> (output, weights or None); see `transept.layers.attention`.
Kernel = Callable[[Tensor, Tensor, Tensor, "Tensor | None", bool, float, float], tuple[Tensor, "Tensor | None"]]


@dataclass(eq=False)
class Context:
    """One forward pass.

    ``past`` positions come before the T new ones (a tensor of no dimension in programs for any number of them), and ``keys``
    is S; ``padding`` is (B, S) of bool, true for real tokens; ``full_mask`` (B, 1 or H, T, S) replaces pattern and padding;
    ``position_bias`` (1 or B, H, 1 or T, S) is added to the scores; ``rotary`` maps a kind of layer to its cos and sin tables.
    ``encoder_states`` (B, S', D) and ``encoder_mask`` (B, 1 or H, 1 or T, S') are for cross-attention. ``lowered`` keeps the
    masks that layers have made, by pattern and S.
    ``router_logits`` takes those of layers that choose experts, (B * T, experts) each.
    """

    kernel: Kernel
    past: int | Tensor = 0
    keys: int = 0
    padding: Tensor | None = None
    full_mask: Tensor | None = None
    position_bias: Tensor | None = None
    cache: Cache | None = None
    rotary: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    encoder_states: Tensor | None = None
    encoder_mask: Tensor | None = None
    hidden_states: list[Tensor] | None = None
    attentions: list[Tensor] | None = None
    cross_attentions: list[Tensor] | None = None
    router_logits: list[Tensor] | None = None
    layer: int = 0
    as_tuple: bool = False
    lowered: dict[tuple[Pattern, int], Tensor | None] = field(default_factory=dict)

    def places(self, queries: int, device: torch.device) -> Tensor:
        """(T) numbers of the new positions."""
        if isinstance(self.past, Tensor):
            return torch.arange(queries, device=device) + self.past
        return torch.arange(self.past, self.past + queries, device=device)

    def key_values(self) -> KeyValues | None:
        """The current layer's part of the cache."""
        return None if self.cache is None else self.cache.layer(self.layer)

    def cross_key_values(self) -> KeyValues | None:
        """The current layer's part of the cache for cross-attention."""
        return None if self.cache is None else self.cache.cross_layer(self.layer)
