"""Layers and experts that have few bits while a model is loaded: as the checkpoint stores them, or as they are rounded to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import nn

from transept.checkpoint.gguf import GGUFStore
from transept.checkpoint.keys import KeyMap, Recipe
from transept.checkpoint.quantized import QuantizedStore, Store
from transept.layers.moe import SortedExperts
from transept.quantized.experts import GroupedExperts
from transept.quantized.grouped import GroupedLinear
from transept.quantized.weights import GroupedWeight

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


def keep_experts(model: nn.Module, keys: KeyMap, filled: Mapping[str, str], store: Store) -> set[str]:
    """Put products by the stored bits in the place of experts' weights where there are such; returns the names of these.

    ``filled`` are the stored names of tensors of ours, or of the rows and pieces of such.
    """
    kept, slots = set[str](), dict[str, list[str]]()
    if not isinstance(store, GGUFStore | QuantizedStore):
        return kept
    for slot in filled:
        slots.setdefault(keys.owner(slot), []).append(slot)
    for path, experts in [(path, module) for path, module in model.named_modules() if isinstance(module, SortedExperts)]:
        for leaf, like in tuple(experts._parameters.items()):
            name = f"{path}.{leaf}"
            if like is None or like.ndim != 3 or name not in slots:
                continue
            weights = _weights_of_experts(name, slots[name], keys, filled, store, len(like))
            if (product := GroupedExperts.of(weights, like.shape, inputs_first=experts.inputs_first)) is not None:
                product.replace(experts, leaf)
                kept.add(name)
    return kept


def _weights_of_experts(
    name: str, slots: list[str], keys: KeyMap, filled: Mapping[str, str], store: GGUFStore | QuantizedStore, count: int
) -> Iterator[GroupedWeight | None]:
    """The weight of each expert as it is stored, whole or in pieces of rows."""
    if name in filled:
        for expert in range(count) if keys.recipe(name).is_plain else ():
            yield store.grouped(filled[name], expert)
        return
    rows: dict[int, list[str]] = {}
    for slot in slots:
        rows.setdefault(int(slot.removeprefix(f"{name}.").partition(".")[0]), []).append(slot)
    for _, pieces in sorted(rows.items()):
        found = [store.grouped(filled[piece]) for piece in sorted(pieces)]
        weights = [weight for weight in found if weight is not None]
        complete = len(weights) == keys.recipe(pieces[0]).pieces
        yield GroupedWeight.joined(weights) if complete else None


def replace(model: nn.Module, path: str, layer: nn.Module) -> None:
    """Put a layer in the place of another."""
    parent, _, name = path.rpartition(".")
    setattr(_module(model, parent), name, layer)


def _module(model: Any, path: str) -> Any:
    for part in path.split(".") if path else ():
        model = model._modules[part]
    return model
