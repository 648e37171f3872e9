"""Saving of weights of few bits, in a format of the ecosystem that has such."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from transept.checkpoint.keys import KeyMap
from transept.quantized.linear import LayerWeight, few_bits, names_alone
from transept.quantized.weights import GroupedWeight

Weights = Mapping[str, GroupedWeight]


@dataclass(frozen=True)
class Format:
    """How files keep weights of few bits.

    Args:
        fits: whether a weight can be kept so.
        parts: the tensors of a weight by the ends of their names, in a model of a type.
        settings: the ``quantization_config`` of weights by the beginnings of their names, of layers that are plain, and of the
            type.
    """

    fits: Callable[[LayerWeight], bool]
    parts: Callable[[GroupedWeight, torch.dtype], dict[str, Tensor]]
    settings: Callable[[Weights, list[str], torch.dtype], dict[str, Any]]


def written_state(model: Any, state: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Of a model's state, or of another one, what files hold; weights of few bits are tensors without memory."""
    names = model.checkpoint_names()
    with names_alone():
        state = model.state_dict() if state is None else state
    return {name: tensor for name, tensor in state.items() if names.is_written(name)}


def written(state: dict[str, Tensor], keys: KeyMap, model: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a state under the names of files, and what the config must say of them.

    Where the state has tensors without memory, they are weights of few bits of the model. They are written in the format that
    most of them fit; others, such as GGUF's with scales in two steps, are written unpacked.
    """
    weights = {name: weight for name, weight in few_bits(model).items() if name in state and state[name].is_meta}
    if not weights:
        return keys.save(state), {}
    plain = {name for name in weights if keys.recipe(name).is_plain}
    fitting = {form: {name for name in plain if form.fits(weights[name])} for form in FORMATS}
    form = max(FORMATS, key=lambda form: len(fitting[form]))
    kept = fitting[form]
    unpacked = {name: weight.dequantized() for name, weight in weights.items() if name not in kept}
    stored, stems = keys.save(state | unpacked), dict[str, GroupedWeight]()
    for name in kept:
        del stored[keys.recipe(name).stored]
        stems[stem := keys.recipe(name).stored.removesuffix(".weight")] = weight = weights[name].weight
        stored |= {f"{stem}{end}": part for end, part in form.parts(weight, model.dtype).items()}
    linear = (f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Linear))
    others = [keys.recipe(name).stored.removesuffix(".weight") for name in (*linear, *unpacked)]
    return stored, {"quantization_config": form.settings(stems, others, model.dtype)} if stems else {}


def _has_own_columns(weight: LayerWeight) -> bool:
    """Whether the weight is stored row by row, and has no column beyond the layer's inputs."""
    return not weight.inputs_first and weight.weight.codes.shape == weight.shape


# Integers, as compressed-tensors packs them (https://github.com/neuralmagic/compressed-tensors)


def _is_of_integers(weight: LayerWeight) -> bool:
    """Whether there is one number for each group, and perhaps a zero point of as many bits."""
    own = weight.weight
    plain = own.fine_scale is None and own.low is None and own.table is None and own.span == 1
    zero = own.fine_low is None or own.bits == 8 or not (own.fine_low & -16).any()
    return plain and zero and own.scale.dtype == torch.float16 and _has_own_columns(weight)


def _compressed(weights: Weights, plain: list[str], dtype: torch.dtype) -> dict[str, Any]:
    kinds = dict[tuple[Any, ...], list[str]]()
    for stem, weight in weights.items():
        kinds.setdefault(tuple(_scheme(weight).items()), []).append(stem)
    ordered = sorted(kinds.items(), key=lambda item: -len(item[1]))
    groups = {
        f"group_{number}": {"targets": sorted(names) if number else ["Linear"], "weights": dict(scheme)}
        for number, (scheme, names) in enumerate(ordered)
    }
    settings = {"quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed"}
    return settings | {"config_groups": groups, "ignore": plain}


def _scheme(weight: GroupedWeight) -> dict[str, Any]:
    """The settings of a weight's integers."""
    whole = weight.groups == 1
    strategy = {"strategy": "channel", "group_size": None} if whole else {"strategy": "group", "group_size": weight.group}
    order = None if weight.order is None else "group"
    kind = {"num_bits": weight.bits, "type": "int", "symmetric": weight.fine_low is None, "actorder": order, "dynamic": False}
    return kind | strategy


def _integers(weight: GroupedWeight, dtype: torch.dtype) -> dict[str, Tensor]:
    """Codes, scales and zero points; the format unpacks in the type of the scales."""
    codes = _without_sign(weight.codes, weight.bits)
    parts = {"scale": weight.scale.float() if dtype == torch.float32 else weight.scale, "shape": torch.tensor(codes.shape)}
    if weight.order is not None:
        places = weight.order.argsort()
        codes, parts["g_idx"] = codes[:, places], places.int() // weight.group
    parts["packed"] = _words(codes, weight.bits)
    if weight.fine_low is not None:
        parts["zero_point"] = _words(_without_sign(weight.fine_low, weight.bits).T, weight.bits).T.contiguous()
    return {f".weight_{end}": part for end, part in parts.items()}


def _without_sign(numbers: Tensor, bits: int) -> Tensor:
    """Numbers of eight bits are stored 128 higher than they are; those of four have no sign."""
    return numbers.view(torch.uint8) ^ (128 if bits == 8 else 0)


def _words(codes: Tensor, bits: int) -> Tensor:
    """(rows, n) bytes of numbers of four or eight bits -> words of 32 bits, the lowest bits first."""
    filled = torch.nn.functional.pad(codes, (0, -codes.shape[1] % (32 // bits)))
    packed = filled if bits == 8 else filled[:, ::2] | filled[:, 1::2] << 4
    return packed.contiguous().view(torch.int32)


# Codes of a table, as bitsandbytes keeps them (https://github.com/bitsandbytes-foundation/bitsandbytes)


def _is_of_floats(weight: LayerWeight) -> bool:
    """Whether codes of a table of floats have a scale in float32 for each group."""
    own = weight.weight
    table = own.table is not None and own.table.is_floating_point() and own.fine_scale is None and own.order is None
    return table and own.scale.dtype == torch.float32 and own.span == 1 and _has_own_columns(weight)


def _is_even(weight: GroupedWeight) -> bool:
    """Whether the table rises from code to code, as that of NF4 does and that of FP4 does not."""
    return weight.table is not None and bool((weight.table.diff() > 0).all())


def _floats(weight: GroupedWeight, dtype: torch.dtype) -> dict[str, Tensor]:
    kind, codes = "nf4" if _is_even(weight) else "fp4", weight.codes.flatten()
    state = {"quant_type": kind, "blocksize": weight.group, "dtype": _name(dtype), "shape": [*weight.codes.shape]}
    told = torch.tensor([*json.dumps(state).encode()], dtype=torch.uint8)
    table: Any = weight.table
    parts = {"absmax": weight.scale.flatten(), "quant_map": table, f"quant_state.bitsandbytes__{kind}": told}
    return {".weight": (codes[::2] << 4 | codes[1::2])[:, None], **{f".weight.{end}": part for end, part in parts.items()}}


def _bitsandbytes(weights: Weights, plain: list[str], dtype: torch.dtype) -> dict[str, Any]:
    kind = "nf4" if _is_even(next(iter(weights.values()))) else "fp4"
    told = {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "llm_int8_skip_modules": plain}
    more = {"quant_type": kind, "compute_dtype": _name(dtype), "quant_storage": "uint8", "use_double_quant": False}
    return told | {f"bnb_4bit_{name}": value for name, value in more.items()}


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


FORMATS = (Format(_is_of_integers, _integers, _compressed), Format(_is_of_floats, _floats, _bitsandbytes))
