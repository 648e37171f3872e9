"""The state of an optimizer by the names of parameters, so that it survives another order, freezing and other groups.

A tensor of a parameter's state is stored as ``state.<parameter>.<key>``; what is no tensor, and the groups' settings, are JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from transept.errors import CheckpointError, FormatError
from transept.parallel.forms import Form
from transept.schema import kind_of, typed
from transept.training.checkpoint.values import pack, unpack

_NOT_SETTINGS = ("params", "param_names")


@dataclass(frozen=True)
class _Group:
    params: list[str]
    settings: dict[str, Any]


@dataclass(frozen=True)
class _Saved:
    """The JSON part of a saved state."""

    kind: str = field(metadata={"key": "class"})
    groups: list[_Group]
    state: dict[str, dict[str, Any]]


def parameter_names(optimizer: Optimizer, model: nn.Module) -> dict[Tensor, str]:
    """The model's names of the parameters that an optimizer updates; one of no model is named by its place in the groups."""
    known: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    groups = enumerate(optimizer.param_groups)
    return {
        parameter: known.get(parameter, f"groups.{index}.{place}")
        for index, group in groups
        for place, parameter in enumerate(group["params"])
    }


def save_optimizer(optimizer: Optimizer, model: nn.Module, form: Form) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The state of an optimizer as JSON and tensors (``InputTypeError``: a part that neither can hold).

    ``form`` is how the processes hold the model; the tensors are whole, on the first of them.
    """
    names, tensors = parameter_names(optimizer, model), dict[str, Tensor]()
    groups, state = [], dict[str, Any]()
    for index, group in enumerate(optimizer.param_groups):
        settings = {key: value for key, value in group.items() if key not in _NOT_SETTINGS}
        packed = pack(settings, f"groups.{index}", tensors)
        groups.append({"params": [names[parameter] for parameter in group["params"]], "settings": packed})
    for parameter, entries in form.optimizer_state(optimizer).items():
        for key, value in entries.items():
            place = f"state.{names[parameter]}.{key}"
            packed = pack(value, place, tensors)
            if not isinstance(value, Tensor):
                state.setdefault(names[parameter], {})[key] = packed
    document = {"class": form.optimizer_name(optimizer), "groups": groups, "state": state}
    return document, tensors


def load_optimizer(
    optimizer: Optimizer, model: nn.Module, document: Mapping[str, Any], tensors: Mapping[str, Tensor], form: Form
) -> list[str]:
    """Put a saved state into an optimizer whose schedule is made; returns the parameters that it holds nothing for.

    ``form`` is how the processes hold the model; each takes its part of the tensors.

    Raises:
        CheckpointError: the state of another optimizer, or of other groups.
        FormatError: a document that :func:`save_optimizer` did not give.
    """
    saved, own = typed(document, _Saved), form.optimizer_name(optimizer)
    if saved.kind != own:
        hint = f"Set `optim` to what gives {saved.kind[:80]}, or start a new run from the weights."
        raise CheckpointError(f"holds the state of {saved.kind[:80]}, but this run's optimizer is {own}.", hint=hint)
    names, state = parameter_names(optimizer, model), _states(saved.state, tensors)
    settings_of = {name: group.settings for group in saved.groups for name in group.params}
    missing, placed = [], dict[Tensor, dict[str, Any]]()
    for group in optimizer.param_groups:
        settings = [settings_of[names[parameter]] for parameter in group["params"] if names[parameter] in settings_of]
        if any(other != settings[0] for other in settings):
            what = f"has in several groups what is one here, such as {names[group['params'][0]]!r}."
            raise CheckpointError(what, hint="Keep the settings that make groups: weight decay, rates by layer, freezing.")
        if settings:
            _take_settings(group, unpack(settings[0], tensors))
        missing += [names[parameter] for parameter in group["params"] if names[parameter] not in settings_of]
        for parameter in group["params"]:
            if entries := state.get(names[parameter]):
                placed[parameter] = {key: _placed(key, value, parameter, group, form) for key, value in entries.items()}
    form.take_optimizer_state(optimizer, placed)
    return missing


def _take_settings(group: dict[str, Any], saved: Any) -> None:
    """Let a group have the settings that were saved, which are of the kinds of its own."""
    kinds: Any = {name: kind_of(value, lengths=True) for name, value in group.items() if name not in _NOT_SETTINGS}
    kinds.setdefault("initial_lr", float)  # a schedule adds it
    known = {name: value for name, value in saved.items() if name in kinds}
    kind: Any = {name: kinds[name] for name in known}
    group.update(typed(known, kind))


def _states(saved: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Any]]:
    """The state of each parameter: what JSON has of it, and the tensors that JSON does not name."""
    state = {name: {key: unpack(value, tensors) for key, value in entries.items()} for name, entries in saved.items()}
    for stored in tensors:
        name, _, key = stored.removeprefix("state.").rpartition(".")
        if stored.startswith("state.") and key not in saved.get(name, {}):
            state.setdefault(name, {})[key] = tensors[stored].clone()
    # Those with the same tensors have the same of all else, which an optimizer reads without a look.
    forms = dict[frozenset[str], dict[str, type]]()
    for name, entries in state.items():
        form = {key: float if isinstance(value, int | float) else type(value) for key, value in entries.items()}
        if forms.setdefault(frozenset(key for key, kind in form.items() if kind is Tensor), form) != form:
            raise FormatError(f"holds for {name[:200]!r} another state than for like parameters.")
    return state


def _placed(key: str, value: Any, parameter: Tensor, group: Mapping[str, Any], form: Form) -> Any:
    """A tensor where the optimizer looks for it: beside the parameter, but for the count of steps that a CPU counts."""
    value = form.share(value, parameter) if isinstance(value, Tensor) else value
    on_host = key == "step" and not group.get("capturable") and not group.get("fused")
    return value.to(parameter.device) if isinstance(value, Tensor) and not on_host else value


def state_bytes(optimizer: Optimizer) -> int:
    """Bytes of the tensors of an optimizer's state."""
    values = (value for entries in optimizer.state.values() for value in entries.values())
    return sum(value.nbytes for value in values if isinstance(value, Tensor))
