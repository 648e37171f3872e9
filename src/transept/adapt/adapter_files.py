"""Adapters in peft's files: ``adapter_config.json``, and ``adapter_model.safetensors`` under the names of modules."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transept.adapt.lora import Adapter, LoraConfig, adapters_of
from transept.adapt.targets import Place, linear_layers, rank_of, targets
from transept.checkpoint.names import Names
from transept.checkpoint.store import PickleStore, TensorStore, save_tensors
from transept.core.model import Model
from transept.errors import CheckpointError
from transept.layers.linear import Conv1D
from transept.storage.source import Source

WEIGHTS = "adapter_model.safetensors"
_PICKLE = "adapter_model.bin"
_PREFIX = "base_model.model."
_STORED_A = ".lora_A.weight"


def _adapters(model: Model, name: str) -> dict[str, tuple[Place, Adapter]]:
    """The names of all layers that have an adapter of that name -> their places, and the adapters."""
    found: dict[str, tuple[Place, Adapter]] = {}
    for place in linear_layers(model):
        held = adapters_of(model.get_submodule(place.name))
        if held is not None and (chosen := held.chosen([name])):
            found[place.name] = place, chosen[0]
    return found


def _parts(adapter: Adapter) -> dict[str, Tensor]:
    """An adapter's tensors, by the ends of their names in files."""
    parts = {"lora_A.weight": adapter.A, "lora_B.weight": adapter.B, "lora_magnitude_vector": adapter.magnitude}
    return {kind: tensor.detach() for kind, tensor in parts.items() if tensor is not None}


def write(model: Model, name: str, config: LoraConfig, saved: Mapping[str, str], directory: Any) -> None:
    """Write one adapter's files."""
    state, settings = dict[str, Tensor](), config.with_settings(inference_mode=True)
    chosen = _adapters(model, name)
    for path, (_, adapter) in chosen.items():
        state |= {f"{path}.{kind}": tensor for kind, tensor in _parts(adapter).items()}
        rank, alpha = len(adapter.A), config.alpha(len(adapter.A), adapter.scale)
        if rank != config.r:
            settings.rank_pattern = {path: rank} | settings.rank_pattern
        if alpha != config.lora_alpha:
            settings.alpha_pattern = {path: alpha} | settings.alpha_pattern
    within = {f"{path}.bias": f"{path}.base_layer.bias" for path in chosen}  # as peft names them
    own = _tensors(model)
    state |= {within.get(key, key): own[key] for key in kept(model, config, saved)}
    settings.target_modules = _shortest(model, {*chosen})
    settings.fan_in_fan_out = any(isinstance(model.get_submodule(path), Conv1D) for path in chosen)
    settings.layers_to_transform = settings.layers_pattern = settings.exclude_modules = None  # all said by the names
    if config.modules_to_save or saved:
        settings.modules_to_save = list(dict.fromkeys(saved.values()))
    settings.base_model_name_or_path = config.base_model_name_or_path or model.name_or_path or None
    texts = {LoraConfig.file_name: settings.to_json_string()}
    save_tensors({f"{_PREFIX}{key}": tensor for key, tensor in state.items()}, WEIGHTS, texts, directory)


def kept(model: Model, config: LoraConfig, saved: Mapping[str, str]) -> list[str]:
    """The names of the tensors that are trained and saved as a whole."""
    names = [f"{path}.{name}" for path in saved for name in _tensors(model.get_submodule(path))]
    return list(dict.fromkeys((*names, *biases(model, config))))


def biases(model: Model, config: LoraConfig) -> list[str]:
    """The names of the biases that are trained."""
    if config.bias == "none":
        return []
    found = [name for name, _ in model.named_parameters() if name.endswith(".bias") and ".lora." not in name]
    only = targets(model, config) if config.bias == "lora_only" else None
    return [name for name in found if only is None or name.removesuffix(".bias") in only]


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """What a model's file would hold, but for adapters and weights of eight bits."""
    skipped = {
        id(tensor) for module in model.modules() for tensor in map(module._buffers.get, module._non_persistent_buffers_set)
    }
    named = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return {name: tensor.detach() for name, tensor in named if ".lora." not in name and id(tensor) not in skipped}


def _shortest(model: Model, wanted: set[str]) -> list[str]:
    """Endings of names that stand for these layers and no other modules; whole names where there are none."""
    endings = sorted({name.rpartition(".")[2] for name in wanted})
    modules = (name for name, module in model.named_modules() if ".lora" not in name and _has_parameters(module))
    return endings if {name for name in modules if name.rpartition(".")[2] in endings} == wanted else sorted(wanted)


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


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
    names, state = model.checkpoint_names(), _tensors(model)
    wanted = {
        f"{place}.{kind}": own
        for place, (_, adapter) in _adapters(model, name).items()
        for kind, own in _parts(adapter).items()
    }
    wanted |= {key: state[key] for key in kept(model, config, saved)}
    older = {_canonical(names, key): key for key in given}  # the same under names that modules had once
    missing, mismatched, used = list[str](), list[str](), set[str]()
    for key, own in wanted.items():
        found = key if key in given else older.get(_stored(names, key))
        if found is None:
            missing.append(key)
            continue
        used.add(found)
        if given[found].shape != own.shape:
            mismatched.append(f"{key}: {tuple(given[found].shape)}")
        else:
            own.copy_(given[found])
    unexpected = [key for key in given if key not in used]
    if missing or unexpected or mismatched:
        lists = {"missing": missing, "unexpected": unexpected, "mismatched": mismatched}
        what = "; ".join(f"{kind}: {', '.join(names[:5])}" for kind, names in lists.items() if names)
        raise CheckpointError(f"does not fit the model's adapter ({what[:600]}).", path=path, **lists)


def _stored(names: Names, key: str) -> str:
    """The name of a tensor of ours in files, with what an adapter adds to it."""
    stem, mark, kind = key.partition(".lora_")
    if mark:
        return names.keys.recipe(f"{stem}.weight").stored.removesuffix(".weight") + mark + kind
    return names.keys.recipe(key).stored


def _canonical(names: Names, key: str) -> str:
    """A stored name as the table knows it, with what an adapter adds to it."""
    stem, mark, kind = key.partition(".lora_")
    if mark:
        return next(iter(names.canonical([f"{stem}.weight"]))).removesuffix(".weight") + mark + kind
    return next(iter(names.canonical([key])))
