"""Adapters in peft's files: ``adapter_config.json``, and ``adapter_model.safetensors`` under the reference's names of modules.

Where the reference has as one layer what is several here, such as ``c_attn``, the adapter in the file has one A and a B of as
many parts. It is read as adapters that share A; adapters with an A each are written as one of their ranks together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transept.adapt.lora import Adapter, LoraConfig, adapters_of, base_weight
from transept.adapt.targets import Place, module_name, places, rank_of, targets
from transept.checkpoint.names import Names
from transept.checkpoint.store import PickleStore, TensorStore, save_tensors
from transept.core.model import Backbone, Model
from transept.errors import CheckpointError
from transept.source import Source

WEIGHTS = "adapter_model.safetensors"
_PICKLE = "adapter_model.bin"
_PREFIX = "base_model.model."
_STORED_A = ".lora_A.weight"


@dataclass(frozen=True)
class Joined:
    """The adapters of one place as one: A (r, in), B (out, r), magnitude (out), and the scale."""

    A: Tensor
    B: Tensor
    magnitude: Tensor | None
    scale: float


def adapters_at(model: Model, place: Place, name: str) -> dict[str, Adapter]:
    """Our layers of a place -> their adapters of that name, where they have one."""
    held = {path: adapters_of(model.get_submodule(path)) for path in place.paths}
    return {path: found[0] for path, each in held.items() if each is not None and (found := each.chosen([name]))}


def join(model: Model, place: Place, adapters: Mapping[str, Adapter]) -> Joined:
    """The adapters of a place as the reference's layer has them; a part without one has zeros in B."""
    first = next(iter(adapters.values()))
    shared = list({id(adapter.A): adapter.A.detach() for adapter in adapters.values()}.values())
    starts: dict[int, int] = {}
    for matrix in (adapter.A for adapter in adapters.values()):
        starts.setdefault(id(matrix), sum(len(other) for other in shared[: len(starts)]))
    rank, parts, magnitudes = sum(map(len, shared)), list[Tensor](), list[Tensor]()
    for path in place.paths:
        layer: Any = model.get_submodule(path)
        part = first.B.new_zeros(layer.out_features, rank)
        if (adapter := adapters.get(path)) is not None:
            start = starts[id(adapter.A)]
            part[:, start : start + len(adapter.A)] = adapter.B.detach() * (adapter.scale / first.scale)
        parts.append(part)
        if first.magnitude is not None:
            own = None if adapter is None else adapter.magnitude
            magnitudes.append(torch.linalg.vector_norm(base_weight(layer), dim=1) if own is None else own.detach())
    recipe = replace(place.recipe, transposed=False)
    whole = recipe.join(magnitudes) if magnitudes else None
    return Joined(torch.cat(shared), recipe.join(parts), whole, first.scale)


def write(model: Model, name: str, config: LoraConfig, saved: Mapping[str, str], directory: Any) -> None:
    """Write one adapter's files."""
    names, state, settings = model.checkpoint_names(), dict[str, Tensor](), config.with_settings(inference_mode=True)
    chosen: list[Place] = []
    for place in places(model):
        if not (adapters := adapters_at(model, place, name)):
            continue
        joined = join(model, place, adapters)
        state |= {f"{place.name}.lora_A.weight": joined.A, f"{place.name}.lora_B.weight": joined.B}
        if joined.magnitude is not None:
            state[f"{place.name}.lora_magnitude_vector"] = joined.magnitude
        chosen.append(place)
        rank, alpha = len(joined.A), config.alpha(len(joined.A), joined.scale)
        if rank != config.r:
            settings.rank_pattern = {place.name: rank} | settings.rank_pattern
        if alpha != config.lora_alpha:
            settings.alpha_pattern = {place.name: alpha} | settings.alpha_pattern
    within = {f"{place.name}.bias": f"{place.name}.base_layer.bias" for place in chosen}  # as peft names them
    state |= {within.get(key, key): tensor for key, tensor in _whole(model, names, kept(model, config, saved)).items()}
    settings.target_modules, settings.fan_in_fan_out = _shortest(model, chosen), any(each.recipe.transposed for each in chosen)
    settings.layers_to_transform = settings.layers_pattern = settings.exclude_modules = None  # all said by the names
    if config.modules_to_save or saved:
        mine = {path for path, wanted in saved.items() if not wanted}
        settings.modules_to_save = list(dict.fromkeys([*filter(None, saved.values()), *_stored_names(names, model, mine)]))
    settings.base_model_name_or_path = config.base_model_name_or_path or model.name_or_path or None
    texts = {LoraConfig.file_name: settings.to_json_string()}
    save_tensors({f"{_PREFIX}{key}": tensor for key, tensor in state.items()}, WEIGHTS, texts, directory)


def kept(model: Model, config: LoraConfig, saved: Mapping[str, str]) -> list[str]:
    """Our names of the tensors that are trained and saved as a whole."""
    names = [f"{path}.{name}" for path in saved for name in _tensors(model.get_submodule(path))]
    return list(dict.fromkeys((*names, *biases(model, config))))


def biases(model: Model, config: LoraConfig) -> list[str]:
    """Our names of the biases that are trained."""
    if config.bias == "none":
        return []
    found = [name for name, _ in model.named_parameters() if name.endswith(".bias") and ".lora." not in name]
    only = targets(model, config) if config.bias == "lora_only" else None
    return [name for name in found if only is None or name.removesuffix(".bias") in only]


def _whole(model: Model, names: Names, wanted: list[str]) -> dict[str, Tensor]:
    """Tensors under the names of the reference's modules."""
    state = _tensors(model)
    parts = {part for name in wanted for part in names.keys.recipe(name).parts or (name,)}
    stored = names.keys.save({name: state[name] for name in state if name in parts})
    ours = {names.keys.recipe(name).stored: name for name in parts}
    return {
        module_name(names, name, ours.get(name, name), isinstance(model, Backbone)): tensor for name, tensor in stored.items()
    }


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """What a model's file would hold, but for adapters and weights of eight bits."""
    skipped = {
        id(tensor) for module in model.modules() for tensor in map(module._buffers.get, module._non_persistent_buffers_set)
    }
    named = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return {name: tensor.detach() for name, tensor in named if ".lora." not in name and id(tensor) not in skipped}


def _stored_names(names: Names, model: Model, paths: set[str]) -> list[str]:
    """The names of the reference's modules with the parameters of ours."""
    tensors = [f"{path}.{name}" for path in sorted(paths) for name in _tensors(model.get_submodule(path))]
    return [
        module_name(names, names.keys.recipe(name).stored, name, isinstance(model, Backbone)).rpartition(".")[0]
        for name in tensors
    ]


def _shortest(model: Model, chosen: list[Place]) -> list[str]:
    """Endings of names that stand for these places and no other layers of the reference; whole names where there are none."""
    wanted = {place.name for place in chosen}
    endings = sorted({name.rpartition(".")[2] for name in wanted})
    meant = {place.name for place in places(model) if place.name.rpartition(".")[2] in endings}
    others = _modules(model) - {place.name for place in places(model)}
    clash = any(name.rpartition(".")[2] in endings for name in others)
    return endings if meant == wanted and not clash else sorted(wanted)


def _modules(model: Model) -> set[str]:
    """The names of all modules of the reference's that have parameters."""
    names = model.checkpoint_names()
    tensors = {
        module_name(names, names.keys.recipe(n).stored, n, isinstance(model, Backbone))
        for n, _ in model.named_parameters()
        if ".lora." not in n
    }
    return {name.rsplit(".", up)[0] for name in tensors for up in range(1, name.count(".") + 1)}


def open_adapter(source: Source) -> TensorStore | PickleStore:
    """The tensors of an adapter's files; those of an older one are pickled, and read as weights alone."""
    if (path := source.find(WEIGHTS)) is None and (older := source.find(_PICKLE)) is not None:
        return PickleStore([older])
    return TensorStore([path or source.need(WEIGHTS)])


def check_ranks(model: Model, config: LoraConfig, store: TensorStore | PickleStore) -> None:
    """Refuse ranks above those of a file's tensors, before matrices of that size are made (``CheckpointError``)."""
    stored = max((store[key].shape[0] for key in store if key.endswith(_STORED_A) and store[key].ndim), default=0)
    for place in targets(model, config).values():
        if (rank := rank_of(config, place).r) > stored > 0:
            setting = "`r`" if rank == config.r else "`rank_pattern`"
            what = (
                f"holds adapters of rank {stored} at most, but {setting} of {config.file_name} gives {place.name} rank {rank}."
            )
            raise CheckpointError(what, path=Path(store.files[0]), mismatched=[f"{place.name}{_STORED_A}"])


@torch.no_grad()
def read(model: Model, name: str, config: LoraConfig, saved: Mapping[str, str], store: TensorStore | PickleStore) -> None:
    """Fill an adapter that the model has with a file's tensors.

    Raises:
        CheckpointError: tensors and adapter do not fit; lists every name.
    """
    path = Path(store.files[0])
    # With bias="all" peft also writes what stands in and below a module that is saved as a whole.
    keys = [key for key in store if ".original_module." not in key and ".modules_to_save." not in key]
    given = {key.removeprefix(_PREFIX).replace(".base_layer.", "."): store[key] for key in keys}
    missing, mismatched, used = list[str](), list[str](), set[str]()
    names = model.checkpoint_names()
    spelled = {_canonical(names, key): key for key in given}
    for place in places(model):
        if not (adapters := adapters_at(model, place, name)):
            continue
        stem, tensors = place.recipe.stored.removesuffix(".weight"), dict[str, Tensor]()
        kinds = ["lora_A.weight", "lora_B.weight"] + ["lora_magnitude_vector"] * config.use_dora
        for kind in kinds:
            key = next((k for k in (spelled.get(f"{stem}.{kind}"), f"{place.name}.{kind}") if k in given), None)
            if key is None:
                missing.append(f"{place.name}.{kind}")
            else:
                used.add(key)
                tensors[kind] = given[key]
        if len(tensors) == len(kinds):
            mismatched += _fill(model, place, adapters, tensors)
    unused = {key: given[key] for key in given if key not in used}
    wanted = kept(model, config, saved)
    found, wrong = _fill_whole(model, names, wanted, {_canonical(names, key): tensor for key, tensor in unused.items()})
    missing += [key for key in wanted if key not in found]
    parts = {names.keys.recipe(key).stored for key in found}
    unexpected = [key for key in unused if _canonical(names, key) not in parts]
    if missing or unexpected or mismatched or wrong:
        lists = {"missing": missing, "unexpected": unexpected, "mismatched": [*mismatched, *wrong]}
        what = "; ".join(f"{kind}: {', '.join(names[:5])}" for kind, names in lists.items() if names)
        raise CheckpointError(f"does not fit the model's adapter ({what[:600]}).", path=path, **lists)


def _canonical(names: Names, key: str) -> str:
    """A stored name as the table knows it, with what an adapter adds to it."""
    stem, mark, kind = key.partition(".lora_")
    if mark:
        return next(iter(names.canonical([f"{stem}.weight"]))).removesuffix(".weight") + mark + kind
    return next(iter(names.canonical([key])))


def _fill(model: Model, place: Place, adapters: dict[str, Adapter], tensors: dict[str, Tensor]) -> list[str]:
    """Put one layer's tensors into the adapters of our layers, which share A; returns what has another shape."""
    layers: list[Any] = [model.get_submodule(path) for path in place.paths]
    first, lengths = next(iter(adapters.values())), [layer.out_features for layer in layers]
    wanted = {"lora_A.weight": tuple(first.A.shape), "lora_B.weight": (sum(lengths), len(first.A))}
    wanted["lora_magnitude_vector"] = (sum(lengths),)
    if wrong := [f"{place.name}.{kind}: {tuple(t.shape)}" for kind, t in tensors.items() if tuple(t.shape) != wanted[kind]]:
        return wrong
    first.A.copy_(tensors["lora_A.weight"])
    for part, path in enumerate(place.paths):
        recipe = replace(place.recipe, transposed=False, part=part)
        own = recipe.take(tensors["lora_B.weight"], lengths)
        if (adapter := adapters.get(path)) is None:
            if own.any():
                return [f"{place.name}.lora_B.weight: not zero for {path}, which has no adapter"]
            continue
        adapter.A = first.A
        adapter.B.copy_(own)
        if adapter.magnitude is not None:
            adapter.magnitude.copy_(recipe.take(tensors["lora_magnitude_vector"], lengths))
    return []


def _fill_whole(model: nn.Module, names: Names, wanted: list[str], given: dict[str, Tensor]) -> tuple[list[str], list[str]]:
    """Put tensors into modules that are saved as a whole; returns what was found, and what has another shape."""
    state, found, wrong = _tensors(model), list[str](), list[str]()
    for name in wanted:
        recipe = names.keys.recipe(name)
        if (tensor := given.get(recipe.stored)) is None:
            continue
        found.append(name)
        expected = recipe.stored_shape([state[part].shape for part in recipe.parts or (name,)])
        if tuple(tensor.shape) != expected:
            wrong.append(f"{recipe.stored}: {tuple(tensor.shape)}")
        else:
            state[name].copy_(recipe.take(tensor, recipe.lengths(state)))
    return found, wrong
