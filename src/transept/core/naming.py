"""The reference's names of parameters and submodules, on models whose own are others.

``model.bert.encoder.layer[0].attention.self.query`` and ``model.get_submodule(...)`` are found through the names of the
checkpoint, and what is assigned to such a name takes our module's place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn

from transept.checkpoint.load import Loadable
from transept.checkpoint.names import Recipe
from transept.checkpoint.paths import Path, matches
from transept.errors import InputError, MissingNameError, nearest
from transept.layers.projection import known_to_libraries
from transept.patterns import compile_pattern, timed


@dataclass(frozen=True)
class Entry:
    """A tensor of ours below a stored module: the rest of its stored name, our name, and how it is stored."""

    rest: Path
    ours: str
    recipe: Recipe

    @property
    def alone(self) -> bool:
        return not self.recipe.parts and not self.recipe.row


class Tree:
    """The stored names of a model's tensors, from its root."""

    def __init__(self, model: Loadable) -> None:
        self.model, self.names = model, model.checkpoint_names()
        self.entries: list[Entry] = []
        self.counts: Counter[str] = Counter()
        keys = self.names.keys
        for name in keys.slots({name: tensor.detach() for name, tensor in model.state_dict(keep_vars=True).items()}):
            recipe = keys.recipe(name)
            self.entries.append(Entry(tuple(recipe.stored.split(".")), keys.owner(name), recipe))
            self.counts.update(_parents(name))

    def below(self, path: Path) -> tuple[Path, list[Entry]]:
        """A stored path, in today's spelling, and its entries from there; the prefix of the backbone may be lacking."""
        known = tuple(next(iter(self.names.canonical([".".join(path)]))).split("."))
        for spelled in (path, known):
            size = len(spelled)
            if entries := [Entry(e.rest[size:], e.ours, e.recipe) for e in self.entries if e.rest[:size] == spelled]:
                return spelled, entries
        return path, []

    def find(self, path: Path) -> Any:
        """What stands for a stored name: our tensor; our module, where its names within are the same; else a part."""
        path, entries = self.below(path)
        return self.made(path, entries) if entries else None

    def made(self, path: Path, entries: list[Entry]) -> nn.Module | Tensor:
        """The same for entries that were found."""
        if all(len(entry.rest) <= 1 and not entry.alone for entry in entries):
            raise self.several(path, entries)
        if not entries[0].rest:
            tensor: Tensor = self.model.state_dict(keep_vars=True)[entries[0].ours]
            return tensor
        if (ours := self.place(path, entries)) is not None:
            module = self.model.get_submodule(ours)
            same = all(entry.alone and entry.ours == ".".join((ours, *entry.rest)) for entry in entries)
            if same or isinstance(module, Loadable):
                return module
        return Part(self, path, entries, ours)

    def place(self, path: Path, entries: list[Entry]) -> str | None:
        """The name of our module that a stored one is, where there is one: by the rules, or by its tensors."""
        ruled = self.names.keys.ours(".".join(path))
        if len(ruled) == 1 and ruled[0] and all(entry.ours.startswith(f"{ruled[0]}.") for entry in entries):
            return ruled[0]
        levels = zip(*(entry.ours.split(".")[:-1] for entry in entries))
        common = ".".join(level[0] for level in takewhile(lambda level: len(set(level)) == 1, levels))
        whole = self.counts[common] == len({(entry.ours, entry.rest) for entry in entries})
        branches = {entry.rest[0] for entry in entries}
        if common and whole and len(branches) > 1 and not isinstance(self.model.get_submodule(common), nn.ModuleList):
            return common
        return None

    def several(self, path: Path, entries: list[Entry]) -> MissingNameError:
        """The error for a stored name that is no one module or tensor of ours."""
        what = f"{'.'.join(path)!r} of the reference is no one module of {type(self.model).__name__}."
        return MissingNameError(what, hint=f"Its tensors are in: {', '.join(dict.fromkeys(e.ours for e in entries))}.")

    def replace(self, path: Path, value: nn.Module | nn.Parameter) -> bool:
        """Put a value in the place of ours that a stored path stands for; says whether there is one."""
        path, entries = self.below(path)
        if not entries:
            return False
        ours = self.place(path, entries) if entries[0].rest else entries[0].ours
        if ours is None or any(not entry.alone for entry in entries if len(entry.rest) <= 1):
            raise self.several(path, entries)
        parent, _, name = ours.rpartition(".")
        setattr(self.model.get_submodule(parent), name, value)
        return True


def _of_one(name: str) -> Any:
    """A method of a part that is the one of our module that does its work."""
    return lambda part, *args, **options: getattr(part._one(), name)(*args, **options)


class Part(nn.Module):
    """What the reference has as one module and ours has not, or names otherwise within.

    Its children are found by the reference's names, its parameters are the model's own, and what is assigned to a child
    takes our module's place. It can be called, hooked and switched to training where one module of ours does its work.
    """

    _tree: Tree
    _path: Path
    _whole: nn.Module | None
    _hidden: dict[str, MissingNameError] = {}

    def __init__(self, tree: Tree, path: Path, entries: list[Entry], ours: str | None) -> None:
        super().__init__()
        whole = None if ours is None else tree.model.get_submodule(ours)
        self.__dict__.update(_tree=tree, _path=path, _whole=whole, _hidden={})
        groups: dict[str, list[Entry]] = {}
        for entry in entries:
            groups.setdefault(entry.rest[0], []).append(Entry(entry.rest[1:], entry.ours, entry.recipe))
        for name, inner in groups.items():
            try:
                self._hold(name, tree.made((*path, name), inner))
            except MissingNameError as error:
                self._hidden[name] = error
                for module in dict.fromkeys(entry.ours.rpartition(".")[0] for entry in inner):
                    self._hold(module.rpartition(".")[2], tree.model.get_submodule(module))

    def _hold(self, name: str, value: Any) -> None:
        kinds: dict[type, Any] = {nn.Module: self._modules, nn.Parameter: self._parameters, Tensor: self._buffers}
        next(held for kind, held in kinds.items() if isinstance(value, kind))[name] = value

    def __getattr__(self, name: str) -> Any:
        if name in self._hidden:
            raise self._hidden[name]
        if name in self._modules or name in self._parameters or name in self._buffers:
            return super().__getattr__(name)
        if self._whole is not None and not name.startswith("__") and hasattr(self._whole, name):
            return getattr(self._whole, name)
        raise self._lacks(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if "_tree" not in self.__dict__ or name in self.__dict__:
            super().__setattr__(name, value)
        elif not isinstance(value, nn.Module | nn.Parameter):
            setattr(self._one(), name, value)
        elif self._tree.replace((*self._path, name), value):
            self._hold(name, value)
        else:
            raise self._lacks(name)

    def _lacks(self, name: str) -> MissingNameError:
        return MissingNameError(f"{'.'.join(self._path)!r} has no {name!r}.", hint=nearest(name, self._modules))

    def __getitem__(self, index: int | slice) -> Any:
        if not all(name.isdigit() for name in self._modules):
            raise InputError(f"{'.'.join(self._path)!r} is no list of modules.", hint="Its parts have names.")
        return [self._modules[name] for name in sorted(self._modules, key=int)][index]

    def __setitem__(self, index: int, value: nn.Module) -> None:
        setattr(self, str(range(len(self))[index]), value)

    def __len__(self) -> int:
        return len(self[:])

    def __bool__(self) -> bool:
        return True

    def _one(self) -> nn.Module:
        if self._whole is None:
            raise self._tree.several(*self._tree.below(self._path))
        return self._whole

    def train(self, mode: bool = True) -> Part:
        for module in (*self._modules.values(),) if self._whole is None else (self._whole,):
            module.train(mode)  # type: ignore[union-attr]
        return self

    forward = _of_one("__call__")
    register_forward_hook = _of_one("register_forward_hook")
    register_forward_pre_hook = _of_one("register_forward_pre_hook")
    register_full_backward_hook = _of_one("register_full_backward_hook")


class ModuleName(str):
    """Our name of a module, which also ends as the reference's does: peft chooses modules by ``name.endswith(".query")``."""

    stored: Callable[[], Mapping[str, str]]
    prefix: str

    @classmethod
    def of(cls, name: str, stored: Callable[[], Mapping[str, str]], prefix: str) -> ModuleName:
        """Our name, below a prefix, and how the reference's names are found where they are asked for."""
        made = cls(name)
        made.stored, made.prefix = stored, prefix
        return made

    def endswith(self, ending: str | tuple[str, ...], *within: int) -> bool:  # type: ignore[override]
        if super().endswith(ending, *within):
            return True
        other = self.stored().get(self.removeprefix(self.prefix).removeprefix("."), "")
        return bool(other) and f"{self.prefix}.{other}".endswith(ending, *within)

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)


class ByReference(Loadable):
    """Mixed into models: names that are not theirs are looked for among the reference's."""

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """Our names of the modules and these; a name also ends as the reference's does, with ``name.endswith(".query")``."""
        known_to_libraries()
        named: Iterator[tuple[str, nn.Module]] = super().named_modules(memo, prefix, remove_duplicate)
        if torch.compiler.is_compiling():  # which cannot follow what is done with a name
            return named
        stored = cache(partial(_stored_modules, self))
        return ((ModuleName.of(name, stored, prefix), module) for name, module in named)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            found = Tree(self).find((name,)) if _may_be_stored(self, name) else None
            if found is None:
                raise
            return found

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "peft_config" and isinstance(value, Mapping):
            for config in value.values():
                check_peft(self, config)
        if isinstance(value, nn.Module | nn.Parameter) and _may_be_stored(self, name):
            own = any(name in held for held in (self.__dict__, self._modules, self._parameters, self._buffers))
            if not own and Tree(self).replace((name,), value):
                return
        super().__setattr__(name, value)

    def get_submodule(self, target: str) -> nn.Module:
        """The module of that path, by our names or the reference's; an ``AttributeError`` where there is none."""
        try:
            return super().get_submodule(target)
        except AttributeError:
            if not isinstance(found := Tree(self).find(tuple(target.split("."))), nn.Module):
                raise
            return found


def check_peft(model: Loadable, config: Any) -> None:
    """Refuse what the library peft would ignore: it reads patterns by our names of modules, and replicates other lists.

    Args:
        model: a model with adapters of peft.
        config: their settings, peft's ``LoraConfig`` for example.

    Raises:
        InputError: a pattern that matches a layer by the reference's name and not by ours; ``layer_replication``.
    """
    if getattr(config, "layer_replication", None):
        raise InputError("peft's `layer_replication` is not supported.", hint="Make a config with more layers.")
    patterns = {
        f"`{setting}` {pattern!r}": compile_pattern(f"peft's `{setting}`", rf"(.*\.)?({pattern})", "a pattern of modules")
        for setting in ("target_modules", "exclude_modules", "rank_pattern", "alpha_pattern")
        if isinstance(given := getattr(config, setting, None), str | Mapping) and given != "all-linear"
        for pattern in ([given] if isinstance(given, str) else given)
    }
    keys = model.checkpoint_names().keys
    for path, module in model.named_modules() if patterns else ():
        ours = str(path)
        if not isinstance(module, nn.Linear | nn.Embedding) and not hasattr(module, "base_layer"):
            continue
        if ".base_layer" in ours or ".lora_" in ours:
            continue
        theirs = keys.recipe(f"{ours}.weight").stored.removesuffix(".weight")
        for what, pattern in patterns.items():
            if timed(pattern.fullmatch, theirs, over="a module's name") and not pattern.fullmatch(ours):
                hint = f"Write it for this library's names of modules, here {ours!r}, or use transept's LoraConfig."
                raise InputError(f"peft's {what} means {theirs!r} of the reference, and would be ignored.", hint=hint)


def _may_be_stored(model: ByReference, name: str) -> bool:
    """Whether a name can begin a stored one; told fast, since libraries ask models for many attributes."""
    if name.startswith("_") or "config" not in model.__dict__:
        return False
    if "_beginnings" not in model.__dict__:
        keys = model.checkpoint_names().keys
        model.__dict__["_beginnings"] = keys.beginnings(), keys.ours("")[0]
    beginnings, inner = model.__dict__["_beginnings"]
    # Where the backbone is stored below no prefix, its children are the model's.
    return name in beginnings or name in getattr(model._modules.get(inner), "_modules", ())


def reference_names(model: Loadable) -> dict[str, str]:
    """Our names of a model's parameters -> the reference's, which are those of the checkpoint.

    A parameter that the reference has row by row has a ``*`` in the place of the rows' number.
    """
    keys, names = model.checkpoint_names().keys, [name for name, _ in model.named_parameters()]
    rows = {name for name in names if keys.owner(f"{name}.0") == name}
    return {name: keys.recipe(f"{name}.*" if name in rows else name).stored for name in names}


def _stored_modules(model: Loadable) -> dict[str, str]:
    """Our names of the modules that the reference has as one -> the reference's; of nested ones of one name the innermost."""
    below: dict[str, set[str]] = {}
    counts: Counter[str] = Counter()
    names = reference_names(model)
    for ours in names:
        for module in _parents(ours):
            below.setdefault(module, set()).add(names[ours])
    for stored in set(names.values()):
        counts.update(_parents(stored))
    found: dict[str, str] = {}
    for ours in sorted(below, key=lambda name: -name.count(".")):
        shared = set.intersection(*(set(_parents(stored)) for stored in below[ours]))
        stored = max(shared, key=len, default="")
        within = (found[inner] for inner in found if inner.startswith(f"{ours}."))
        if counts[stored] == len(below[ours]) and stored not in within:
            found[ours] = stored
    return found


def _parents(name: str) -> list[str]:
    """The modules around a tensor, from the outermost."""
    pieces = name.split(".")
    return [".".join(pieces[:length]) for length in range(1, len(pieces))]


def find_parameters(model: Loadable, *names: str) -> list[str]:
    """Our names of the parameters at or below some names.

    The ``names`` are of modules or parameters, the reference's or ours, with or without the backbone's prefix
    (``"encoder.layer.0"``); ``*`` stands for any one part. A name that no parameter has is an ``InputError``.
    """
    base, known = f"{getattr(model, 'base_model_prefix', '')}.", model.checkpoint_names()
    spellings = {
        name: tuple(spelled for each in both for spelled in (each, each.removeprefix(base), each.removeprefix("backbone.")))
        for name, stored in reference_names(model).items()
        for home in [known.tied.get(name, name)]  # what is tied is found where it is looked up, too
        for both in [(name, stored, known.dialect(name), home, known.dialect(home))]
    }
    chosen: dict[str, None] = {}
    for name in names:
        length = name.count(".") + 1
        begin = {ours: {".".join(each.split(".")[:length]) for each in spelled} for ours, spelled in spellings.items()}
        found = [ours for ours, parts in begin.items() if any(matches(name, each) for each in parts)]
        if not found:
            what = f"{type(model).__name__} has no parameters below {name!r}."
            raise InputError(what, hint=nearest(name, set().union(*begin.values())))
        chosen |= dict.fromkeys(found)
    return list(chosen)
