"""Plain values, and the states of optimizers, schedules and scalers, as JSON with the tensors beside it; no pickles.

An optimizer's state is stored by the names of parameters, so that it survives another order, freezing and other
groups: its tensors as ``state.<parameter>.<key>``, and what is no tensor, and the groups' settings, as JSON.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer

from transept.checkpoint.store import TensorStore, write_tensors
from transept.config.schema import kind_of, typed
from transept.errors import CheckpointError, FormatError, InputTypeError, refuse
from transept.parallel.forms import Form
from transept.storage.files import dump_json, write_text

# An object with one of these keys alone stands for what JSON does not have.
_TAGS = ("tensor", "tuple", "float", "pairs", "counter")
# The ``state_dict()`` of a schedule, a scaler or their like, with the name of its class.
_STATE: Any = {"class": str, "state": dict[str, Any]}
_GROUP: Any = {"params": list[str], "settings": dict[str, Any]}
_OPTIMIZER: Any = {"class": str, "groups": list[_GROUP], "state": dict[str, dict[str, Any]]}
_NOT_SETTINGS = ("params", "param_names")


def pack(value: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    """A value as JSON; its tensors are put into ``tensors`` under names that begin with ``place``."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return float(value) if math.isfinite(value) else {"float": repr(float(value))}
        case np.generic():
            return pack(value.item(), place, tensors)
        case Tensor():
            tensors[place] = value.detach()
            return {"tensor": place}
        case list() | tuple():
            items = [pack(item, f"{place}.{index}", tensors) for index, item in enumerate(value)]
            return {"tuple": items} if isinstance(value, tuple) else items
        case Mapping():
            if all(isinstance(key, str) for key in value) and not (len(value) == 1 and next(iter(value)) in _TAGS):
                return {key: pack(item, f"{place}.{key}", tensors) for key, item in value.items()}
            items = [[pack(key, place, tensors), pack(value[key], f"{place}.{key}", tensors)] for key in value]
            return {"counter" if isinstance(value, Counter) else "pairs": items}
    hint = "Checkpoints hold numbers, texts, tensors, and lists and dictionaries of them."
    raise InputTypeError(f"{place} is {type(value).__name__}, which a checkpoint cannot hold.", hint=hint)


def unpack(document: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The value of what :func:`pack` gave (``FormatError``: it did not give that)."""
    if isinstance(document, list):
        return [unpack(item, tensors) for item in document]
    if not isinstance(document, dict):
        return document
    if len(document) != 1 or (tag := next(iter(document))) not in _TAGS:
        return {key: unpack(item, tensors) for key, item in document.items()}
    content = document[tag]
    try:
        if tag == "tensor":
            return tensors[content].clone()
        if tag == "float":
            return float(content)
        if tag == "tuple":
            return tuple(unpack(list(content), tensors))
        pairs = {unpack(key, tensors): unpack(item, tensors) for key, item in content}
        return Counter(pairs) if tag == "counter" else pairs
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"holds the {tag} {str(content)[:80]!r}, which is none.") from error


def write_values(folder: Path, name: str, value: Any) -> list[Path]:
    """Write plain values and the tensors among them as ``NAME.json`` and ``NAME.safetensors``; gives the latter."""
    tensors: dict[str, Tensor] = {}
    write_text(folder / f"{name}.json", dump_json(pack(value, name, tensors)))
    if not tensors:
        return []
    write_tensors(tensors, path := folder / f"{name}.safetensors")
    return [path]


def tensors_beside(path: Path) -> Mapping[str, Tensor]:
    """The tensors of ``NAME.safetensors`` beside ``NAME.json``, if there are any."""
    stored = path.with_suffix(".safetensors")
    return TensorStore([stored]) if stored.exists() else {}


def save_state(owner: Any, place: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {"class": type(owner).__name__, "state": pack(owner.state_dict(), place, tensors)}


def load_state(owner: Any, document: Any, tensors: Mapping[str, Tensor]) -> None:
    """Put what :func:`save_state` gave into an object of the same class (``FormatError``: it did not give that)."""
    saved, name = typed(document, _STATE), type(owner).__name__
    what = f"holds the state of {saved['class'][:80]}, but this run has {name}."
    refuse(saved["class"] != name, what, kind=CheckpointError)
    state, current = unpack(saved["state"], tensors), owner.state_dict()
    refuse(not isinstance(state, dict), f"holds no state of {name}.", kind=FormatError)
    unknown = sorted(state.keys() - current.keys())
    refuse(unknown, f"holds {unknown[:5]}, which {name} has not.", kind=CheckpointError)
    owner.load_state_dict(typed(state, kind_of(current, lengths=True)))


def parameter_names(optimizer: Optimizer, model: nn.Module) -> dict[Tensor, str]:
    """The names of the parameters that an optimizer updates; one of no model is named by its place in the groups."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        parameter: names.get(parameter, f"groups.{number}.{index}")
        for number, group in enumerate(optimizer.param_groups)
        for index, parameter in enumerate(group["params"])
    }


def save_optimizer(optimizer: Optimizer, model: nn.Module, form: Form) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The state of an optimizer as JSON and tensors, which are whole on the first process."""
    names, tensors = parameter_names(optimizer, model), dict[str, Tensor]()
    groups, state = [], dict[str, Any]()
    for index, group in enumerate(optimizer.param_groups):
        settings = {key: value for key, value in group.items() if key not in _NOT_SETTINGS}
        packed = pack(settings, f"groups.{index}", tensors)
        groups.append({"params": [names[parameter] for parameter in group["params"]], "settings": packed})
    for parameter, entries in form.optimizer_state(optimizer).items():
        name = names[parameter]
        for key, value in entries.items():
            packed = pack(value, f"state.{name}.{key}", tensors)
            if not isinstance(value, Tensor):
                state.setdefault(name, {})[key] = packed
    return {"class": type(form.inner(optimizer)).__name__, "groups": groups, "state": state}, tensors


def load_optimizer(
    optimizer: Optimizer, model: nn.Module, document: Mapping[str, Any], tensors: Mapping[str, Tensor], form: Form
) -> list[str]:
    """Put a saved state into an optimizer whose schedule is made; returns the parameters that it lacks."""
    saved, kind = typed(document, _OPTIMIZER), type(form.inner(optimizer)).__name__
    what = f"holds the state of {saved['class'][:80]}, but this run's optimizer is {kind}."
    hint = f"Set `optim` to what gives {saved['class'][:80]}, or start a new run from the weights."
    refuse(saved["class"] != kind, what, hint, CheckpointError)
    names, states = parameter_names(optimizer, model), _states(saved["state"], tensors)
    settings_of = {name: group["settings"] for group in saved["groups"] for name in group["params"]}
    missing, placed = [], dict[Tensor, dict[str, Any]]()
    for group in optimizer.param_groups:
        members = {parameter: names[parameter] for parameter in group["params"]}
        settings = [settings_of[name] for name in members.values() if name in settings_of]
        if any(other != settings[0] for other in settings):
            what = f"has in several groups what is one here, such as {next(iter(members.values()))!r}."
            hint = "Keep the settings that make groups: weight decay, rates by layer, freezing."
            raise CheckpointError(what, hint=hint)
        if settings:
            values = typed(unpack(settings[0], tensors), dict)
            examples = {"initial_lr": 0.0} | group  # which a schedule adds
            examples = {key: examples[key] for key in values if key in examples and key not in _NOT_SETTINGS}
            group.update(typed({key: values[key] for key in examples}, kind_of(examples, lengths=True)))
        missing += [name for name in members.values() if name not in settings_of]
        for parameter, name in members.items():
            if entries := states.get(name, {}).items():
                placed[parameter] = {key: _placed(key, value, parameter, group, form) for key, value in entries}
    form.take_optimizer_state(optimizer, placed)
    return missing


def _states(saved: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Any]]:
    """The state of each parameter: what JSON has of it, and the tensors that JSON does not name."""
    states = {name: {key: unpack(entries[key], tensors) for key in entries} for name, entries in saved.items()}
    for stored in tensors:
        name, _, key = stored.removeprefix("state.").rpartition(".")
        if stored.startswith("state.") and key not in saved.get(name, {}):
            states.setdefault(name, {})[key] = tensors[stored].clone()
    # Those with the same tensors have the same of all else, which an optimizer reads without a look.
    kinds_of = dict[frozenset[str], dict[str, type]]()
    for name, entries in states.items():
        kinds = {key: float if isinstance(value, int | float) else type(value) for key, value in entries.items()}
        if kinds_of.setdefault(frozenset(key for key, kind in kinds.items() if kind is Tensor), kinds) != kinds:
            raise FormatError(f"holds for {name[:200]!r} another state than for like parameters.")
    return states


def _placed(key: str, value: Any, parameter: Tensor, group: Mapping[str, Any], form: Form) -> Any:
    """A tensor where the optimizer looks for it: beside the parameter, but for steps that are counted on a CPU."""
    if not isinstance(value, Tensor):
        return value
    value = form.share(value, parameter)
    on_host = key == "step" and not group.get("capturable") and not group.get("fused")
    return value if on_host else value.to(parameter.device)


def state_bytes(optimizer: Optimizer) -> int:  # of the tensors of its state
    values = (value for entries in optimizer.state.values() for value in entries.values())
    return sum(value.nbytes for value in values if isinstance(value, Tensor))
