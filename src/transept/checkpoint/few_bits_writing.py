"""Saving of weights of few bits, in a format of the ecosystem that has such."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from transept.checkpoint.blocks import floats_of_four_bits
from transept.checkpoint.keys import KeyMap
from transept.quantized.linear import LayerWeight, few_bits, names_alone
from transept.quantized.weights import GroupedWeight

Schemes = Mapping[str, Any]
Settings = dict[str, Any]


@dataclass(frozen=True)
class Format:
    """How files keep weights of few bits.

    Args:
        fits: whether a weight of such a shape, which may have its inputs first, can be kept so.
        parts: the tensors of a weight by the ends of their names, for a layer's weight of a shape in a model of a type.
        scheme: what the settings say of a weight.
        settings: the ``quantization_config``, by the schemes of weights under the beginnings of their names, of layers that are
            plain, and of the type.
    """

    fits: Callable[[GroupedWeight, LayerWeight], bool]
    parts: Callable[[GroupedWeight, tuple[int, ...], torch.dtype], dict[str, Tensor]]
    scheme: Callable[[GroupedWeight], Any]
    settings: Callable[[Schemes, list[str], torch.dtype], Settings]


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
    slots = {name: slots_of(name, weight, keys) for name, weight in weights.items()}
    fitting = _fitting(slots, keys)
    form = max(FORMATS, key=lambda form: sum(math.prod(weights[name].shape) for name in fitting[form]))
    kept, schemes = fitting[form], dict[str, Any]()
    unpacked = {name: weight.dequantized().to(model.dtype) for name, weight in weights.items() if name not in kept}
    stored = keys.save(state | unpacked)
    for slot, layer in ((slot, layer) for name in kept for slot, layer in slots[name].items()):
        del stored[keys.recipe(slot).stored]
        stem, weight = _stem(slot, keys), layer.make()
        schemes[stem] = form.scheme(weight)
        stored |= {f"{stem}{end}": part for end, part in form.parts(weight, layer.shape, model.dtype).items()}
    linear = (f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Linear))
    plain = [_stem(name, keys) for name in (*linear, *(slot for name in unpacked for slot in slots[name]))]
    return stored, {"quantization_config": form.settings(schemes, plain, model.dtype)} if schemes else {}


def _stem(name: str, keys: KeyMap) -> str:
    return keys.recipe(name).stored.removesuffix(".weight")


def slots_of(name: str, weight: LayerWeight, keys: KeyMap) -> dict[str, LayerWeight]:
    """The weight under its name, or the matrices of experts where these are stored one by one."""
    slots = [*keys.slots({name: torch.empty(weight.shape, device="meta")})]
    if slots == [name] or weight.expert is None:
        return {name: weight}
    pieces = len(slots) // weight.shape[0]
    return {slot: weight.row(number // pieces, number % pieces, pieces) for number, slot in enumerate(slots)}


def _fitting(slots: Mapping[str, Mapping[str, LayerWeight]], keys: KeyMap) -> dict[Format, set[str]]:
    """The names of the weights that fit each format; all experts of a weight are alike."""
    found: dict[Format, set[str]] = {form: set() for form in FORMATS}
    for name, rows in slots.items():
        slot, layer = next(iter(rows.items()))
        if keys.recipe(slot).is_plain or slot != name:
            weight = layer.make()
            for form in FORMATS:
                if form.fits(weight, layer):
                    found[form].add(name)
    return found


def _has_own_columns(own: GroupedWeight, layer: LayerWeight) -> bool:
    """Whether a layer has the rows as they are, and the weight no column beyond its inputs."""
    return not layer.inputs_first and own.codes.shape == layer.shape


# Integers, as compressed-tensors packs them (https://github.com/neuralmagic/compressed-tensors)


def _is_of_integers(own: GroupedWeight, layer: LayerWeight) -> bool:
    """Whether there is one number for each group, and perhaps a zero point of as many bits."""
    plain = own.fine_scale is None and own.low is None and own.table is None and own.span == 1
    zero = own.fine_low is None or own.bits == 8 or not (own.fine_low & -16).any()
    zero = zero and not own.codes.is_floating_point()
    return plain and zero and own.scale.is_floating_point() and _has_own_columns(own, layer)


def _compressed(schemes: Schemes, plain: list[str], dtype: torch.dtype) -> Settings:
    kinds = dict[tuple[Any, ...], list[str]]()
    for stem, scheme in schemes.items():
        kinds.setdefault(tuple(scheme.items()), []).append(stem)
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


def _integers(weight: GroupedWeight, shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, Tensor]:
    """Codes, scales and zero points; the format unpacks in the type of the scales."""
    codes = _without_sign(weight.codes, weight.bits)
    parts = {
        "scale": weight.scale.float() if dtype == torch.float32 else weight.scale.half(),
        "shape": torch.tensor(codes.shape),
    }
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


def _is_of_floats(own: GroupedWeight, layer: LayerWeight) -> bool:
    """Whether codes of a table of floats have a scale in float32 for each group."""
    table = own.table is not None and own.table.is_floating_point() and own.fine_scale is None and own.order is None
    return table and own.scale.dtype == torch.float32 and own.span == 1 and _has_own_columns(own, layer)


def _kind(weight: GroupedWeight) -> str:
    """The name of the table: that of NF4 rises from code to code, and that of FP4 does not."""
    table: Any = weight.table
    return "nf4" if (table.diff() > 0).all() else "fp4"


def _floats(weight: GroupedWeight, shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, Tensor]:
    kind, codes, table = _kind(weight), weight.codes.flatten(), weight.table
    state = {"quant_type": kind, "blocksize": weight.group, "dtype": _name(dtype), "shape": [*weight.codes.shape]}
    told = torch.tensor([*json.dumps(state).encode()], dtype=torch.uint8)
    parts: Any = {"absmax": weight.scale.flatten(), "quant_map": table, f"quant_state.bitsandbytes__{kind}": told}
    return {".weight": (codes[::2] << 4 | codes[1::2])[:, None], **{f".weight.{end}": part for end, part in parts.items()}}


def _bitsandbytes(schemes: Schemes, plain: list[str], dtype: torch.dtype) -> Settings:
    told = {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "llm_int8_skip_modules": plain}
    more = {"quant_type": next(iter(schemes.values())), "compute_dtype": _name(dtype), "quant_storage": "uint8"}
    return told | {f"bnb_4bit_{name}": value for name, value in (more | {"use_double_quant": False}).items()}


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# Experts in MXFP4, as gpt-oss has them


def _is_of_powers(own: GroupedWeight, layer: LayerWeight) -> bool:
    """Whether experts, whose plain weight is (experts, in, out), have a power of two for each 32 floats of four bits."""
    powers = own.scale.dtype == torch.uint8 and own.group == 32 and own.fine_scale is None and own.order is None
    table = own.table is not None and torch.equal(own.table, floats_of_four_bits())
    return powers and table and layer.inputs_first and len(layer.shape) == 3 and own.codes.shape[1] == layer.shape[1]


def _powers(weight: GroupedWeight, shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, Tensor]:
    experts, inputs, outputs = shape
    blocks = (weight.codes[:, ::2] | weight.codes[:, 1::2] << 4).view(experts, outputs, inputs // 32, 16)
    return {"_blocks": blocks, "_scales": weight.scale.view(experts, outputs, -1)}


def _mxfp4(schemes: Schemes, plain: list[str], dtype: torch.dtype) -> Settings:
    return {"quant_method": "mxfp4", "modules_to_not_convert": plain}


# Floats of eight bits, as DeepSeek-V3 has them, in blocks of one row


def _is_of_bytes(own: GroupedWeight, layer: LayerWeight) -> bool:
    """Whether floats of eight bits have a scale for each group."""
    return own.codes.is_floating_point() and own.span == 1 and not layer.inputs_first and len(own.codes) == layer.shape[0]


def _bytes(weight: GroupedWeight, shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, Tensor]:
    return {".weight": weight.codes[:, : shape[1]].contiguous(), ".weight_scale_inv": weight.scale}


def _fp8(schemes: Schemes, plain: list[str], dtype: torch.dtype) -> Settings:
    told = {"quant_method": "fp8", "activation_scheme": "dynamic", "modules_to_not_convert": plain}
    return told | {"weight_block_size": [1, max(schemes.values())]}


FORMATS = (
    Format(_is_of_integers, _integers, _scheme, _compressed),
    Format(_is_of_floats, _floats, _kind, _bitsandbytes),
    Format(_is_of_powers, _powers, lambda weight: None, _mxfp4),
    Format(_is_of_bytes, _bytes, lambda weight: weight.group if weight.groups > 1 else 1, _fp8),
)
