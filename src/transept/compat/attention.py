"""Attention kernels of users' own, and those of this package, in the signature that the reference's have.

Shapes: B batch, H heads, K key-value heads, T queries, S keys, E head size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from transept.layers.attention.kernels import KERNELS
from transept.layers.context import Attended

# (module, query, key, value, mask, ...) -> (B, T, H, E) and the weights, where it shows them.
AttentionFunction = Callable[..., tuple[Tensor, Tensor | None]]


def _forward(
    name: str,
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> Attended:
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = bool(causal) and attention_mask is None and query.shape[2] > 1
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out, weights = KERNELS[name](query, key, value, attention_mask, causal, scale, dropout)
    return out.transpose(1, 2).contiguous(), weights


class _Adapted:
    """A function of users' own as a kernel. It sees what is allowed in its mask, whatever the kind of layer."""

    def __init__(self, function: AttentionFunction) -> None:
        self.function = function

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float, dropout: float
    ) -> Attended:
        if causal:
            mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()[None, None]
        groups = q.shape[1] // k.shape[1]
        module = SimpleNamespace(training=dropout > 0, is_causal=False, num_key_value_groups=groups, scaling=scale)
        out, weights = self.function(module, q, k, v, mask, scaling=scale, dropout=dropout, is_causal=False)
        return out.transpose(1, 2), weights


class AttentionInterface(Mapping[str, AttentionFunction]):
    """The attention kernels by name; ``register`` adds one, which ``attn_implementation`` can name then."""

    @classmethod
    def register(cls, key: str, value: AttentionFunction) -> None:
        """Add a function of a module, queries (B, H, T, E), keys and values (B, K, S, E) and a mask; it gives (B, T, H, E)."""
        KERNELS[key] = _Adapted(value)

    def __getitem__(self, key: str) -> AttentionFunction:
        kernel = KERNELS[key]
        return kernel.function if isinstance(kernel, _Adapted) else partial(_forward, key)

    def __iter__(self) -> Iterator[str]:
        return iter(KERNELS)

    def __len__(self) -> int:
        return len(KERNELS)

    def get_interface(self, attn_implementation: str, default: AttentionFunction) -> AttentionFunction:
        """The kernel of that name; for ``"eager"`` the default."""
        return default if attn_implementation in (None, "eager") else self[attn_implementation]


ALL_ATTENTION_FUNCTIONS = AttentionInterface()
eager_attention_forward = partial(_forward, "eager")
sdpa_attention_forward = partial(_forward, "sdpa")
flex_attention_forward = partial(_forward, "flex")
