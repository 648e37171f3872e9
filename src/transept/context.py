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

    ``padding`` is (B, S) of bool, true for real tokens; ``full_mask`` (B, 1 or H, T, S) replaces pattern and padding;
    ``position_bias`` (1 or B, H, T, S) is added to the scores; ``rotary`` maps a kind of layer to its cos and sin tables.
    ``encoder_states`` (B, S', D) and ``encoder_mask`` (B, 1 or H, 1 or T, S') are for cross-attention.
    """

    kernel: Kernel
    past: int = 0
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
    layer: int = 0
    as_tuple: bool = False
    _lowered: dict[Pattern, Tensor | None] = field(default_factory=dict)

    def mask(self, pattern: Pattern, queries: int, keys: int, like: Tensor) -> tuple[Tensor | None, bool]:
        """The mask of one pattern: ``(tensor, causal)``, where ``causal`` alone says it all when there is no tensor.

        The tensor is (B or 1, 1 or H, T, S): bool, true where allowed, or floats to add to the scores.
        """
        plain = self.padding is None and self.full_mask is None and self.position_bias is None
        if plain and pattern.causal and pattern.window is None and queries == keys:
            return None, True
        # Layers of one pattern see the same queries and keys, so the pattern alone is the key.
        if pattern not in self._lowered:
            self._lowered[pattern] = self._lower(pattern, queries, keys, like)
        return self._lowered[pattern], False

    def _lower(self, pattern: Pattern, queries: int, keys: int, like: Tensor) -> Tensor | None:
        from transept.layers.mask import lower

        mask = self.full_mask
        if mask is None:
            mask = lower(pattern, self.padding, queries, keys, like.device)
        elif mask.is_floating_point():
            # Finite, so that a row that may attend to nothing stays finite.
            lowest = max(torch.finfo(mask.dtype).min, torch.finfo(like.dtype).min)
            mask = mask.clamp(min=lowest).to(like.dtype)
        if self.position_bias is None:
            return mask
        bias = self.position_bias.to(like.dtype)
        if mask is None:
            return bias
        return bias + mask if mask.is_floating_point() else bias.masked_fill(~mask, torch.finfo(like.dtype).min)

    def key_values(self) -> KeyValues | None:
        """The current layer's part of the cache."""
        return None if self.cache is None else self.cache.layer(self.layer)

    def cross_key_values(self) -> KeyValues | None:
        """The current layer's part of the cache for cross-attention."""
        return None if self.cache is None else self.cache.cross_layer(self.layer)
