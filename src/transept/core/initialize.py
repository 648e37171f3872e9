"""Weights before training."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode


class Unfilled(TorchFunctionMode):
    """Inside, layers are made without filling their parameters, which makes PyTorch import its compiler on the meta device."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def initialize_module(module: nn.Module, std: float) -> None:
    """Fill a module's own parameters: normal matrices, zero biases; others by the ``reset_parameters`` of their module."""
    if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d):
        nn.init.normal_(module.weight, std=std)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=std)
        if module.padding_idx is not None:
            nn.init.zeros_(module.weight[module.padding_idx])
    elif (module._parameters or module._buffers) and isinstance(
        reset := getattr(module, "reset_parameters", None), types.MethodType
    ):
        reset()
