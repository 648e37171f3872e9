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
from transept.quantized.linear import few_bits, names_alone
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


def replace(model: nn.Module, path: str, layer: nn.Module) -> None:
    """Put a layer in the place of another."""
    parent, _, name = path.rpartition(".")
    setattr(_module(model, parent), name, layer)


def _module(model: Any, path: str) -> Any:
    for part in path.split(".") if path else ():
        model = model._modules[part]
    return model


# Writing, as compressed-tensors packs integers (https://github.com/neuralmagic/compressed-tensors)


def written_state(model: Any, state: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Of a model's state, or of another one, what files hold; weights of few bits are tensors without memory."""
    names = model.checkpoint_names()
    with names_alone():
        state = model.state_dict() if state is None else state
    return {name: tensor for name, tensor in state.items() if names.is_written(name)}


def written(state: dict[str, Tensor], keys: KeyMap, model: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a state under the names of files, and what the config must say of them.

    Where the state has tensors without memory, they are weights of few bits of the model. Those that the format cannot have,
    such as GGUF's with scales in two steps, are written unpacked.
    """
    weights = {name: weight for name, weight in few_bits(model).items() if name in state and state[name].is_meta}
    if not weights:
        return keys.save(state), {}
    fitting = {name for name, weight in weights.items() if keys.recipe(name).is_plain and _fits(weight, state[name])}
    unpacked = {name: oriented(weight.dequantized(), state[name]) for name, weight in weights.items() if name not in fitting}
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
    """Whether the format has such weights: with one number for each group, and perhaps a zero point of as many bits."""
    plain = weight.fine_scale is None and weight.low is None and weight.table is None and weight.span == 1
    zero = weight.fine_low is None or weight.bits == 8 or not (weight.fine_low & -16).any()
    return plain and zero and weight.codes.shape == like.shape


def oriented(weight: Tensor, like: Tensor) -> Tensor:
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
    codes = _without_sign(weight.codes, weight.bits)
    parts = {"scale": weight.scale.float() if wide else weight.scale, "shape": torch.tensor(codes.shape)}
    if weight.order is not None:
        places = weight.order.argsort()
        codes, parts["g_idx"] = codes[:, places], places.int() // weight.group
    parts["packed"] = _words(codes, weight.bits)
    if weight.fine_low is not None:
        parts["zero_point"] = _words(_without_sign(weight.fine_low, weight.bits).T, weight.bits).T.contiguous()
    return parts


def _without_sign(numbers: Tensor, bits: int) -> Tensor:
    """Numbers of eight bits are stored 128 higher than they are; those of four have no sign."""
    return numbers.view(torch.uint8) ^ (128 if bits == 8 else 0)


def _words(codes: Tensor, bits: int) -> Tensor:
    """(rows, n) bytes of numbers of four or eight bits -> words of 32 bits, the lowest bits first."""
    filled = torch.nn.functional.pad(codes, (0, -codes.shape[1] % (32 // bits)))
    packed = filled if bits == 8 else filled[:, ::2] | filled[:, 1::2] << 4
    return packed.contiguous().view(torch.int32)
