"""Parameters and layers of a model, chosen by the reference's names or ours: for freezing, and for adapters."""

from __future__ import annotations

from torch import nn

from transept.checkpoint.load import Loadable
from transept.errors import InputError, nearest


def reference_names(model: Loadable) -> dict[str, str]:
    """Our names of a model's parameters -> the reference's, which are those of the checkpoint.

    A parameter that the reference has row by row has a ``*`` in the place of the rows' number.
    """
    keys, names = model.checkpoint_names().keys, [name for name, _ in model.named_parameters()]
    rows = {name for name in names if keys.owner(f"{name}.0") == name}
    return {name: keys.recipe(f"{name}.*" if name in rows else name).stored for name in names}


def _spellings(model: Loadable) -> dict[str, tuple[str, ...]]:
    """Our names of parameters -> all that they may be called, with and without the backbone's prefix."""
    base = f"{getattr(model, 'base_model_prefix', '')}."
    return {
        ours: (ours, ours.removeprefix("model."), stored, stored.removeprefix(base))
        for ours, stored in reference_names(model).items()
    }


def _begins(name: str, wanted: list[str]) -> bool:
    parts = name.split(".")
    return len(parts) >= len(wanted) and all(want in ("*", part) for want, part in zip(wanted, parts))


def freeze(model: Loadable, *names: str) -> list[str]:
    """Keep parameters out of training: ``requires_grad`` of what lies at or below the names becomes false.

    Args:
        model: whose parameters they are.
        names: of modules or parameters, the reference's or ours, with or without the backbone's prefix
            (``"encoder.layer.0"``); ``*`` stands for any one part. Without names, all.

    Returns:
        Our names of the parameters that are frozen now by this call.

    Raises:
        InputError: a name that no parameter has.
    """
    spellings = _spellings(model)
    chosen: list[str] = [] if names else list(spellings)
    for name in names:
        wanted = name.split(".")
        found = [ours for ours, spelled in spellings.items() if any(_begins(each, wanted) for each in spelled)]
        if not found:
            known = {".".join(each.split(".")[: len(wanted)]) for spelled in spellings.values() for each in spelled}
            raise InputError(f"{type(model).__name__} has no parameters below {name!r}.", hint=nearest(name, known))
        chosen += found
    chosen = list(dict.fromkeys(chosen))
    for name in chosen:
        model.get_parameter(name).requires_grad_(False)
    return chosen


def module_names(model: Loadable, *endings: str) -> list[str]:
    """Our names of the linear layers whose names end so, as peft's ``target_modules`` takes them.

    Args:
        model: whose layers they are.
        endings: of the reference's names or ours, such as ``"query"``, ``"v"`` or ``"c_attn"``, which are the three layers
            that are stored as one.

    Raises:
        InputError: an ending that no layer has.
    """
    stored: dict[str, str] = {name.removesuffix(".weight"): other for name, other in reference_names(model).items()}
    layers = {name: module for name, module in model.named_modules() if name in stored and isinstance(module, nn.Linear)}
    chosen = []
    for ending in endings:
        tails = {name: (name, stored[name].removesuffix(".weight")) for name in layers}
        found = [name for name, both in tails.items() if any(f".{each}".endswith(f".{ending}") for each in both)]
        if not found:
            known = {each.rpartition(".")[2] for both in tails.values() for each in both}
            raise InputError(f"{type(model).__name__} has no linear layers named {ending!r}.", hint=nearest(ending, known))
        chosen += found
    return list(dict.fromkeys(chosen))
