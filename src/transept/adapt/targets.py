"""Which layers an adapter is for: by their names in the tree of modules, which are the reference's, or by the modules' own."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from transept.adapt.lora import LoraConfig, Rank
from transept.core.model import Model
from transept.errors import InputError, nearest
from transept.layers.linear import Conv1D, Projection
from transept.quantized.linear import QuantizedLinear
from transept.storage.patterns import compile_pattern, timed

ALL_LINEAR = "all-linear"
_DEFAULT = ("q_proj", "v_proj", "kv_proj", "qkv_proj", "q_b_proj", "kv_b_proj")
# Modules that are new in classifiers, by the names that the reference gives them.
_HEADS = {"SEQ_CLS": ("classifier", "score"), "TOKEN_CLS": ("classifier", "score"), "QUESTION_ANS": ("qa_outputs",)}
_PLAIN = re.compile(r"\^?[\w.]+")


@dataclass(frozen=True)
class Place:
    """A linear layer: its ``name`` in the tree of modules, and what the modules of the model call it."""

    name: str
    own: str

    @property
    def spellings(self) -> tuple[str, ...]:
        return (self.name, self.own, self.own.removeprefix("backbone."))


def linear_layers(model: Model) -> list[Place]:
    """All linear layers of a model."""
    dialect = model.checkpoint_names().dialect
    joined = {id(module.shared) for module in model.modules() if isinstance(module, Projection)}
    kinds = (nn.Linear, Conv1D, QuantizedLinear, Projection)
    found = [str(path) for path, module in model.named_modules() if isinstance(module, kinds) and id(module) not in joined]
    return [Place(path, dialect(path)) for path in found]


def _fits(wanted: str, name: str) -> bool:
    return name == wanted or name.endswith(f".{wanted}")


def _matching(found: list[Place], wanted: Iterable[str] | str, setting: str) -> list[Place]:
    """The places that endings of names, or a pattern, stand for; names in the tree count before the modules' own."""
    if isinstance(wanted, str):
        pattern = compile_pattern(f"`{setting}`", wanted, "a pattern of modules")
        theirs = [place for place in found if timed(pattern.fullmatch, place.name, over="a module's name")]
        ours = [(place, timed(pattern.fullmatch, name, over="a module's name")) for place in found for name in place.spellings]
        return theirs or [place for place, fits in ours if fits]
    chosen = []
    for each in wanted:
        theirs = [place for place in found if _fits(each, place.name)]
        chosen += theirs or [place for place in found if any(_fits(each, name) for name in place.spellings)]
    return chosen


def targets(model: Model, config: LoraConfig) -> dict[str, Place]:
    """The names of the layers that are adapted -> their places.

    Raises:
        InputError: a name that no linear layer has, or none is left.
    """
    found, wanted = linear_layers(model), config.target_modules
    if wanted == ALL_LINEAR:
        chosen = _all_linear(model, found)
    elif wanted is None:
        usual = getattr(model.body, "adapter_targets", _DEFAULT)  # a family may state others
        chosen = [place for place in found if any(_fits(name, place.own) for name in usual)]
    else:
        chosen = _matching(found, wanted, "target_modules")
    left_out = {place.name for place in _matching(found, config.exclude_modules or [], "exclude_modules")}
    left_out |= {place.name for place in found if any(_within(name, place) for name in saved_names(config))}
    chosen = [place for place in chosen if place.name not in left_out and _in_layers(config, place, wanted)]
    if not chosen:
        names = {place.name.rpartition(".")[2] for place in found}
        known = nearest(str(wanted[0]) if isinstance(wanted, list) and wanted else str(wanted or ""), names)
        raise InputError(f"{type(model).__name__} has no linear layers {str(wanted or list(_DEFAULT))[:200]}.", hint=known)
    return {place.name: place for place in chosen}


def _within(wanted: str, place: Place) -> bool:
    return any(f".{wanted}." in f".{name}." for name in place.spellings)


def _all_linear(model: Model, found: list[Place]) -> list[Place]:
    """All but heads."""
    output = model.get_output_embeddings()
    heads = {path for path, module in model.named_modules() if module is output and output is not None}
    names = {name for kind in _HEADS.values() for name in kind} if output is None else set()
    return [place for place in found if place.name not in heads and place.name.partition(".")[0] not in names]


def _in_layers(config: LoraConfig, place: Place, wanted: Any) -> bool:
    numbers, pattern = config.layers_to_transform, config.layers_pattern or []
    if numbers is None or numbers == [] or isinstance(wanted, str):
        return True
    lists = [pattern] if isinstance(pattern, str) else pattern
    parts = place.name.split(".")
    index = next((i for i, part in enumerate(parts) if i and part.isdigit() and (not lists or parts[i - 1] in lists)), None)
    return index is not None and int(parts[index]) in ([numbers] if isinstance(numbers, int) else numbers)


def rank_of(config: LoraConfig, place: Place) -> Rank:
    """The rank and scale of the adapter of one place."""
    rank = int(_by_pattern(config.rank_pattern, place, "rank_pattern", config.r))
    return Rank(rank, config.scale(rank, _by_pattern(config.alpha_pattern, place, "alpha_pattern", config.lora_alpha)))


def _by_pattern(patterns: dict[str, Any], place: Place, setting: str, default: Any) -> Any:
    for wanted, value in patterns.items():
        if _PLAIN.fullmatch(wanted):
            start, name = wanted.startswith("^"), wanted.removeprefix("^")
            if name in place.spellings if start else any(_fits(name, other) for other in place.spellings):
                return value
        else:
            pattern = compile_pattern(f"`{setting}`", rf"(.*\.)?({wanted})", "a pattern of modules")
            if any(timed(pattern.fullmatch, name, over="a module's name") for name in place.spellings):
                return value
    return default


def saved_names(config: LoraConfig) -> list[str]:
    """The names of the modules that are trained as a whole."""
    return list(dict.fromkeys((*(config.modules_to_save or ()), *_HEADS.get(config.task_type or "", ()))))


def saved_modules(model: Model, config: LoraConfig) -> dict[str, str]:
    """The names of the modules with parameters that are trained as a whole -> the setting that stands for each.

    Raises:
        InputError: a name that no module has.
    """
    found: dict[str, str] = {}
    dialect = model.checkpoint_names().dialect
    names = [name for name, _ in model.named_parameters()]
    for wanted in saved_names(config):
        theirs = [name for name in names if f".{wanted}." in f".{name}"]
        chosen = theirs or [name for name in names if f".{wanted}." in f".{dialect(name)}"]
        if not chosen and wanted in (config.modules_to_save or ()) and wanted not in _HEADS.get(config.task_type or "", ()):
            known = {part for name in names for part in name.split(".")}
            raise InputError(f"{type(model).__name__} has no module {wanted!r} to train.", hint=nearest(wanted, known))
        found |= {path: wanted if theirs else path for path in (name.rpartition(".")[0] for name in chosen)}
    return found
