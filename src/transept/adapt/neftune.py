"""NEFTune (Jain et al. 2024): noise on token embeddings in training, so that texts are learnt less by heart."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from transept.errors import InputError


class Noise:
    """Adds to embeddings (B, T, D) uniform noise of at most ``alpha / sqrt(T * D)``, in training mode alone."""

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha

    def __call__(self, table: nn.Module, inputs: Any, embeddings: Tensor) -> Tensor:
        if not table.training:
            return embeddings
        size = self.alpha / math.sqrt(embeddings.shape[1] * embeddings.shape[2])
        return embeddings + torch.zeros_like(embeddings).uniform_(-size, size)


def add_embedding_noise(model: Any, alpha: Any) -> RemovableHandle:
    """Put the noise on a model's token embeddings; ``remove()`` of what is returned takes it off.

    Args:
        model: the model, or a wrapped one that is asked like it.
        alpha: size of the noise, usually 5 to 15.

    Raises:
        InputError: ``alpha`` is no positive number, or the model has no token embeddings.
    """
    given: Any = alpha
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < math.inf:
        raise InputError(f"`alpha` of the noise on embeddings must be a positive number, but is {alpha!r:.80}.")
    table: Any = model.get_input_embeddings()
    if not isinstance(table, nn.Embedding):
        raise InputError(f"{type(model).__name__} has no token embeddings to add noise to.")
    return table.register_forward_hook(Noise(float(alpha)))
