"""What code of the reference does with models beside calling them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from transept.layers.rotary import FREQUENCIES


def unwrap_model(model: nn.Module, recursive: bool = False) -> nn.Module:
    """The model that was wrapped for several processes, or compiled."""
    while (inner := getattr(model, "module", getattr(model, "_orig_mod", None))) is not None and isinstance(inner, nn.Module):
        model = inner
    return model


@contextmanager
def no_init_weights() -> Iterator[None]:
    """Within it nothing is different: models that are loaded are never initialised first."""
    yield


def _rope(name: str) -> Callable[..., tuple[Tensor, float]]:
    def parameters(config: Any, device: Any = None, seq_len: int | None = None, **kwargs: Any) -> tuple[Tensor, float]:
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        frequencies = FREQUENCIES[name](size, {**config.rope(), **kwargs})
        length = None if seq_len is None else torch.tensor(seq_len, device=device)
        return frequencies.inverse(length).to(device), frequencies.scale

    return parameters


ROPE_INIT_FUNCTIONS = {name: _rope(name) for name in FREQUENCIES}
