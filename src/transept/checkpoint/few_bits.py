"""Linear layers that have few bits while a model is loaded: as the checkpoint stores them, or as they are rounded to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from transept.checkpoint.gguf import GGUFStore
from transept.checkpoint.keys import Recipe
from transept.checkpoint.quantized import QuantizedStore, Store
from transept.quantized.grouped import GroupedLinear

Replace = Callable[[nn.Module, str], None]
"""Called with a model and the name of a weight that has just been filled: puts another layer in its place, or none."""


def keep(model: nn.Module, recipes: Mapping[str, Recipe], store: Store, stored: str) -> bool:
    """Put a layer that multiplies by the stored bits in the place of a linear layer, if there is one for them."""
    name, recipe = next(iter(recipes.items()))
    if len(recipes) > 1 or not recipe.is_plain or not isinstance(store, GGUFStore | QuantizedStore):
        return False
    path, _, leaf = name.rpartition(".")
    layer = _module(model, path)
    if leaf != "weight" or type(layer) is not nn.Linear or store[stored].shape != layer.weight.shape:
        return False
    if (weight := store.grouped(stored)) is None:
        return False
    replace(model, path, GroupedLinear(layer, weight))
    return True


def replace(model: nn.Module, path: str, layer: nn.Module) -> None:
    """Put a layer in the place of another."""
    parent, _, name = path.rpartition(".")
    setattr(_module(model, parent), name, layer)


def _module(model: Any, path: str) -> Any:
    for part in path.split(".") if path else ():
        model = model._modules[part]
    return model
