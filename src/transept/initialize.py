"""Weights before training."""

from __future__ import annotations

import types

import torch
from torch import nn


@torch.no_grad()
def initialize_module(module: nn.Module, std: float) -> None:
    """Fill a module's own parameters: matrices from a normal distribution, biases with zeros, norms with ones.

    Modules of this library with parameters of their own bring a ``reset_parameters``.
    """
    if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d):
        nn.init.normal_(module.weight, std=std)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=std)
        if module.padding_idx is not None:
            nn.init.zeros_(module.weight[module.padding_idx])
    elif module._parameters and isinstance(reset := getattr(module, "reset_parameters", None), types.MethodType):
        reset()
