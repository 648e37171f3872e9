"""Which layers an adapter is for, by the reference's names or ours, and what peft calls them.

Query, key and value may be one layer in the reference, such as ``c_attn``, and three here; a :class:`Place` is one layer of the
reference's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from torch import nn

from transept.adapt.lora import LoraConfig, Rank
from transept.adapt.quantize import QuantizedLinear
from transept.checkpoint.names import Names, Recipe
from transept.checkpoint.paths import place_of, respell
from transept.core.model import Backbone, Model
from transept.core.naming import reference_names
from transept.errors import InputError, UnsupportedError, nearest
from transept.layers.moe import SparseMLP
from transept.layers.packed import Projection
from transept.patterns import compile_pattern, timed

ALL_LINEAR = "all-linear"
_DEFAULT = ("q_proj", "v_proj")
# Modules that are new in classifiers, by the names that the reference gives them.
_HEADS = {"SEQ_CLS": ("classifier", "score"), "TOKEN_CLS": ("classifier", "score"), "QUESTION_ANS": ("qa_outputs",)}
_PLAIN = re.compile(r"\^?[\w.]+")


@dataclass(frozen=True)
class Place:
    """A linear layer of the reference's: ``name`` is what its modules call it, ``paths`` are our layers that it stands for.

    ``own`` are what the modules of the model call these. Adapters of these are ``joined`` by one A where they were asked for
    as one.
    """

    name: str
    paths: tuple[str, ...]
    own: tuple[str, ...]
    recipe: Recipe
    joined: bool = True

    @property
    def spellings(self) -> tuple[str, ...]:
        return (self.name, *self.paths, *self.own, *(path.removeprefix("backbone.") for path in self.own))


def places(model: Model) -> list[Place]:
    """All linear layers of a model."""
    names, found = model.checkpoint_names(), dict[str, Place]()
    joined = {id(module.shared) for module in model.modules() if isinstance(module, Projection)}
    for path, module in model.named_modules():
        if isinstance(module, nn.Linear | QuantizedLinear | Projection) and id(module) not in joined:
            recipe = names.keys.recipe(f"{path}.weight")
            paths = tuple(part.removesuffix(".weight") for part in recipe.targets)
            if recipe.stored not in found:
                name = module_name(names, recipe.stored, recipe.targets[0], isinstance(model, Backbone)).removesuffix(".weight")
                paths = paths if path in paths else (str(path),)
                found[recipe.stored] = Place(name, paths, tuple(map(names.dialect, paths)), recipe)
    return list(found.values())


def module_name(names: Names, stored: str, ours: str, bare: bool = False) -> str:
    """The name that the reference's modules have today for a stored one, which may have an older spelling.

    Of all spellings that stand for the stored name, the one that is most like our name is meant, and least like the stored
    one. A ``bare`` backbone's modules have no prefix, though its files may have one.
    """
    rules, known = [*_rules(names)], {stored}
    whole = names.children[0] if bare and len(names.children) == 1 and names.children[0].loose else None
    rest = [stored, stored.removeprefix(f"{names.base}."), stored.removeprefix(f"{whole.stored}." if whole else "")]
    while rest and len(known) < 100:
        name = rest.pop()
        if name not in known or name == stored:
            known.add(name)
            others = (other for rule in rules for other in rule(name))
            rest += [other for other in others if other not in known and other.count(".") <= stored.count(".") + 2]
    parts, older = _pieces(ours), _pieces(stored)
    canonical = next(iter(names.canonical([stored])))
    meant = [name for name in known if next(iter(names.canonical([name]))) == canonical]

    def likeness(name: str) -> tuple[int, int, int, str]:
        own = _pieces(name)
        return -len(parts & own), name.count("."), len(older & own), name

    return min(meant, key=likeness)


def _pieces(name: str) -> set[Any]:
    """The parts of a name, and its pairs of neighbours."""
    parts = name.split(".")
    return {*parts, *pairwise(parts)}


def _rules(names: Names) -> Iterator[Callable[[str], Iterator[str]]]:
    """What gives other spellings of a stored name, of a model and of those within."""

    def respelled(name: str, old: str, new: str) -> Iterator[str]:
        parts = name.split(".")
        for start in range(len(parts)):
            if place_of(old, parts[start:]) == 0:
                yield respell(parts, start, old, new.removeprefix("**."))

    for other, today in names.spellings.items():
        yield lambda name, today=today, other=other: respelled(name, today, other)  # type: ignore[misc]
    for child in names.children:
        yield from _rules(child.names)


def _fits(wanted: str, name: str) -> bool:
    return name == wanted or name.endswith(f".{wanted}")


def _matching(found: list[Place], wanted: Iterable[str] | str, setting: str) -> list[Place]:
    """The places that endings of names, or a pattern, stand for; the reference's names count before ours."""
    if isinstance(wanted, str):
        pattern = compile_pattern(f"`{setting}`", wanted, "a pattern of modules")
        theirs = [place for place in found if timed(pattern.fullmatch, place.name, over="a module's name")]
        ours = [(place, timed(pattern.fullmatch, name, over="a module's name")) for place in found for name in place.spellings]
        return theirs or [place for place, fits in ours if fits]
    chosen = []
    for each in wanted:
        theirs = [place for place in found if _fits(each, place.name)]
        chosen += theirs or [_part(place, each) for place in found if any(_fits(each, name) for name in place.spellings)]
    return chosen


def _part(place: Place, wanted: str) -> Place:
    """Of a layer that is several here, those that our name stands for."""
    pairs = [(path, own) for path, own in zip(place.paths, place.own, strict=True) if _fits(wanted, path) or _fits(wanted, own)]
    paths, own = zip(*pairs) if pairs else (place.paths, place.own)
    return replace(place, paths=paths, own=own, joined=False)


def targets(model: Model, config: LoraConfig) -> dict[str, Place]:
    """Our names of the layers that are adapted -> the layers of the reference's that they are parts of.

    Raises:
        InputError: a name that no linear layer has, or none is left.
    """
    found, wanted = places(model), config.target_modules
    if wanted == ALL_LINEAR:
        chosen = _all_linear(model, found)
    elif wanted is None:
        chosen = [place for place in found if any(_fits(name, own) for own in place.own for name in _DEFAULT)]
    else:
        chosen = _matching(found, wanted, "target_modules")
    left_out = {place.name for place in _matching(found, config.exclude_modules or [], "exclude_modules")}
    left_out |= {place.name for place in found if any(_within(name, place) for name in saved_names(config))}
    chosen = [place for place in chosen if place.name not in left_out and _in_layers(config, place, wanted)]
    if not chosen:
        names = {place.name.rpartition(".")[2] for place in found}
        known = nearest(str(wanted[0]) if isinstance(wanted, list) and wanted else str(wanted or ""), names)
        raise InputError(f"{type(model).__name__} has no linear layers {str(wanted or list(_DEFAULT))[:200]}.", hint=known)
    whole = {place.name: place for place in found}
    for place in chosen:
        if place.recipe.axis or place.recipe.row or place.recipe.heads:
            raise UnsupportedError(f"{place.name!r} is stored in a way that no adapter can be.")
    return {path: replace(whole[place.name], joined=place.joined) for place in chosen for path in place.paths}


def _within(wanted: str, place: Place) -> bool:
    return any(f".{wanted}." in f".{name}." for name in place.spellings)


def _all_linear(model: Model, found: list[Place]) -> list[Place]:
    """All but heads, and what chooses the experts of a mixture, which is no layer of the reference's."""
    routers = {f"{path}." for path, module in model.named_modules() if isinstance(module, SparseMLP)}
    output = model.get_output_embeddings()
    heads = {path for path, module in model.named_modules() if module is output and output is not None}
    names = {name for kind in _HEADS.values() for name in kind} if output is None else set()
    return [
        place
        for place in found
        if not heads & {*place.paths}
        and not any(path.startswith(tuple(routers)) for path in place.paths)
        and place.name.partition(".")[0] not in names
    ]


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
    """Our names of the modules with parameters that are trained as a whole -> the name that stands for each.

    Raises:
        InputError: a name that no module has.
    """
    found: dict[str, str] = {}
    names = reference_names(model)
    for wanted in saved_names(config):
        inside = [(ours, f".{ours}.", f".{stored}.") for ours, stored in names.items()]
        theirs = [ours for ours, _, stored in inside if f".{wanted}." in stored]
        chosen = theirs or [ours for ours, path, _ in inside if f".{wanted}." in path]
        if not chosen and wanted in (config.modules_to_save or ()) and wanted not in _HEADS.get(config.task_type or "", ()):
            known = {part for stored in names.values() for part in stored.split(".")}
            raise InputError(f"{type(model).__name__} has no module {wanted!r} to train.", hint=nearest(wanted, known))
        found |= {ours.rpartition(".")[0]: wanted if theirs else "" for ours in chosen}
    return found
