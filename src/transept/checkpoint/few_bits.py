"""Linear layers that have few bits while a model is loaded: as the checkpoint stores them, or as they are rounded to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from transept.checkpoint.gguf import GGUFStore
from transept.checkpoint.keys import KeyMap, Recipe
from transept.checkpoint.quantized import QuantizedStore, Store
from transept.quantized.grouped import GroupedLinear
from transept.quantized.linear import few_bits
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
    if leaf != "weight" or type(layer) is not nn.Linear:
        return False
    weight = store.grouped(stored)
    if weight is None or not weight.fits() or weight.codes.shape != (layer.out_features, layer.in_features):
        return False
    replace(model, path, GroupedLinear(layer, weight))
    return True


def keep_tied(model: nn.Module, name: str, store: Store, stored: str) -> bool:
    """The same for a layer whose weight is that of the embeddings too, which have it unpacked."""
    return keep(model, {name: Recipe((name,))}, store, stored)


def replace(model: nn.Module, path: str, layer: nn.Module) -> None:
    """Put a layer in the place of another."""
    parent, _, name = path.rpartition(".")
    setattr(_module(model, parent), name, layer)


def _module(model: Any, path: str) -> Any:
    for part in path.split(".") if path else ():
        model = model._modules[part]
    return model


# Writing, as compressed-tensors packs integers (https://github.com/neuralmagic/compressed-tensors)


def written(state: dict[str, Tensor], keys: KeyMap, model: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a state under the names of files, and what the config must say of them.

    Where the state has tensors without memory, they are weights of few bits of the model. Those that the format cannot have,
    such as GGUF's with scales in two steps, are written unpacked.
    """
    weights = {name: weight for name, weight in few_bits(model).items() if name in state and state[name].is_meta}
    if not weights:
        return keys.save(state), {}
    fitting = {
        name for name, weight in weights.items() if keys.recipe(name).is_plain and weight.codes.shape == state[name].shape
    }
    unpacked = {name: _oriented(weight.dequantized(), state[name]) for name, weight in weights.items() if name not in fitting}
    stored, kinds = keys.save(state | unpacked), dict[tuple[Any, ...], list[str]]()
    for name in fitting:
        stem = keys.recipe(name).stored.removesuffix(".weight")
        del stored[f"{stem}.weight"]
        parts = _parts(weights[name], wide=model.dtype == torch.float32)
        stored |= {f"{stem}.weight_{end}": part for end, part in parts.items()}
        kinds.setdefault(tuple(_scheme(weights[name]).items()), []).append(stem)
    linear = (f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Linear))
    plain = [keys.recipe(name).stored.removesuffix(".weight") for name in (*linear, *unpacked)]
    ordered = sorted(kinds.items(), key=lambda item: -len(item[1]))
    groups = {
        f"group_{number}": {"targets": sorted(names) if number else ["Linear"], "weights": dict(scheme)}
        for number, (scheme, names) in enumerate(ordered)
    }
    settings = {"quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed"}
    return stored, {"quantization_config": settings | {"config_groups": groups, "ignore": plain}} if groups else {}


def _fits(weight: GroupedWeight, like: Tensor) -> bool:
    """Whether the format has such weights: with a number of 16 bits for each group, and perhaps a zero point."""
    plain = weight.fine_scale is None and weight.low is None and weight.table is None and weight.span == 1
    return plain and weight.codes.shape == like.shape


def _oriented(weight: Tensor, like: Tensor) -> Tensor:
    """A weight (out, in) without what its groups have beyond the layer's inputs, as the layer has it."""
    return weight[:, : like.shape[1]] if len(weight) == len(like) else weight.T[: like.shape[0]]


def _scheme(weight: GroupedWeight) -> dict[str, Any]:
    """The settings of a weight's integers."""
    whole = weight.groups == 1
    strategy = {"strategy": "channel", "group_size": None} if whole else {"strategy": "group", "group_size": weight.group}
    order = None if weight.order is None else "group"
    kind = {"num_bits": weight.bits, "type": "int", "symmetric": weight.fine_low is None, "actorder": order, "dynamic": False}
    return kind | strategy


def _parts(weight: GroupedWeight, *, wide: bool) -> dict[str, Tensor]:
    """The tensors of a weight by the ends of their names; the format unpacks in the type of the scales."""
    shift = 128 if weight.bits == 8 else 0  # numbers with a sign are stored without
    codes = weight.codes.int() + shift
    parts = {"scale": weight.scale.float() if wide else weight.scale, "shape": torch.tensor(codes.shape)}
    if weight.order is not None:
        places = weight.order.argsort()
        codes, parts["g_idx"] = codes[:, places], places.int() // weight.group
    parts["packed"] = _words(codes, weight.bits)
    if weight.fine_low is not None:
        parts["zero_point"] = _words((weight.fine_low.int() + shift).T, weight.bits).T.contiguous()
    return parts


def _words(codes: Tensor, bits: int) -> Tensor:
    """(rows, n) numbers from 0 on of so many bits -> words of 32 bits, the lowest bits first."""
    count = 32 // bits
    cut = torch.nn.functional.pad(codes, (0, -codes.shape[1] % count)).unflatten(1, (-1, count)).long()  # type: ignore[no-untyped-call]
    words: Tensor = (cut << torch.arange(0, 32, bits)).sum(-1)
    return words.to(torch.int32)
