"""The reference's names of submodules and parameters, on models whose own are others.

``model.classifier``, ``model.bert.encoder.layer[0].attention.self.query`` and ``model.get_submodule(...)`` are found through
the names of the checkpoint, and what is assigned to such a name takes our module's place. Where the reference has a module
that ours are cut otherwise from, such as its whole attention, a ``Part`` stands for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from transept.checkpoint.keymap import KeyMap
from transept.checkpoint.load import Loadable
from transept.checkpoint.names import Names
from transept.errors import InputError, MissingNameError, nearest

Path = tuple[str, ...]


@dataclass(frozen=True)
class Entry:
    """A tensor of ours below a stored module: the rest of its stored name, our name, and whether it is stored alone."""

    rest: Path
    ours: str
    alone: bool


class Tree:
    """The stored names of a model's tensors, from its root."""

    def __init__(self, model: Loadable) -> None:
        self.model = model
        self.names: Names = model.checkpoint_names()
        self.keys: KeyMap = self.names.keys
        state = self.keys.slots({name: tensor.detach() for name, tensor in model.state_dict(keep_vars=True).items()})
        self.entries = []
        self.counts: Counter[str] = Counter()
        for name in state:
            recipe, owner = self.keys.recipe(name), self.keys.owner(name)
            self.entries.append(Entry(tuple(recipe.stored.split(".")), owner, not recipe.parts and not recipe.row))
            pieces = name.split(".")
            self.counts.update(".".join(pieces[:length]) for length in range(1, len(pieces)))

    def below(self, path: Path) -> list[Entry]:
        """The entries of a stored path, from there."""
        size = len(path)
        return [Entry(e.rest[size:], e.ours, e.alone) for e in self.entries if e.rest[:size] == path]

    def spelled(self, path: Path) -> Path:
        """A stored path in today's spelling, of which the names of the backbone's checkpoints need no prefix."""
        if not self.below(path):
            known = tuple(next(iter(self.names.canonical([".".join(path)]))).split("."))
            return known if self.below(known) else path
        return path

    def found(self, path: Path) -> nn.Module | None:
        """What stands for a stored module: our module, where its names within are the same, else a part.

        Raises:
            MissingNameError: several of ours are stored as one there.
        """
        path = self.spelled(path)
        entries = self.below(path)
        if not entries or any(not entry.rest for entry in entries):
            return None
        return self.made(path, entries)

    def made(self, path: Path, entries: list[Entry]) -> nn.Module:
        """The same for entries that were found."""
        if all(len(entry.rest) == 1 and not entry.alone for entry in entries):
            raise self.several(path, entries)
        ours = self.place(path, entries)
        if ours is not None:
            module = self.model.get_submodule(ours)
            same = all(entry.alone and entry.ours == ".".join((ours, *entry.rest)) for entry in entries)
            if same or isinstance(module, Loadable):
                return module
        return Part(self, path, entries, ours)

    def place(self, path: Path, entries: list[Entry]) -> str | None:
        """The name of our module that a stored one is, where there is one: by the rules, or by its tensors."""
        ruled = self.keys.ours(".".join(path))
        if len(ruled) == 1 and ruled[0] and all(entry.ours.startswith(f"{ruled[0]}.") for entry in entries):
            return ruled[0]
        common = _common([entry.ours for entry in entries])
        whole = self.counts[common] == len({(entry.ours, entry.rest) for entry in entries})
        branches = {entry.rest[0] for entry in entries}
        if common and whole and len(branches) > 1 and not isinstance(self.model.get_submodule(common), nn.ModuleList):
            return common
        return None

    def several(self, path: Path, entries: Iterable[Entry]) -> MissingNameError:
        """The error for a stored module that is no one module of ours."""
        names = list(dict.fromkeys(entry.ours.rpartition(".")[0] for entry in entries))
        return MissingNameError(
            f"{'.'.join(path)!r} of the reference is no one module of {type(self.model).__name__}.",
            hint=f"Its tensors are in: {', '.join(names)}.",
        )

    def replace(self, path: Path, module: nn.Module | nn.Parameter) -> bool:
        """Put a module or a parameter in the place of ours that a stored path stands for; says whether there is one."""
        path = self.spelled(path)
        entries = self.below(path)
        if not entries:
            return False
        if any(not entry.alone for entry in entries if len(entry.rest) <= 1):
            raise self.several(path, entries)
        whole = [entry.ours for entry in entries if not entry.rest]
        ours = whole[0] if whole else self.place(path, entries)
        if ours is None:
            raise self.several(path, entries)
        parent, _, name = ours.rpartition(".")
        _put(self.model.get_submodule(parent), name, module)
        return True


def _put(owner: nn.Module, name: str, value: nn.Module | nn.Parameter) -> None:
    """Set a child by its name or index."""
    if isinstance(owner, nn.ModuleList | nn.Sequential):
        owner[int(name)] = value  # type: ignore[assignment]
    else:
        setattr(owner, name, value)


def _common(names: list[str]) -> str:
    """The longest path that all names lie below."""
    first, *others = (name.split(".")[:-1] for name in names)
    size = len(first)
    for other in others:
        size = min(size, next((i for i, (a, b) in enumerate(zip(first, other)) if a != b), min(len(first), len(other))))
    return ".".join(first[:size])


class Part(nn.Module):
    """What the reference has as one module and ours has not, or names otherwise within.

    Its children are found by the reference's names, its parameters are the model's own, and what is assigned to a child
    takes our module's place in the model. It can be called, hooked and switched to training where one module of ours does
    its work.
    """

    def __init__(self, tree: Tree, path: Path, entries: list[Entry], ours: str | None) -> None:
        super().__init__()
        whole = None if ours is None else tree.model.get_submodule(ours)
        self.__dict__.update(_tree=tree, _path=path, _whole=whole, _hidden={})
        groups: dict[str, list[Entry]] = {}
        for entry in entries:
            groups.setdefault(entry.rest[0], []).append(Entry(entry.rest[1:], entry.ours, entry.alone))
        for name, inner in groups.items():
            self._add(name, inner)

    def _add(self, name: str, entries: list[Entry]) -> None:
        tree, path = self.__dict__["_tree"], (*self.__dict__["_path"], name)
        tensors = [entry.ours for entry in entries if not entry.rest]
        try:
            if not tensors:
                self._modules[name] = tree.made(path, entries)
                return
            if not entries[0].alone:
                raise tree.several(path, entries)
            tensor = tree.model.state_dict(keep_vars=True)[tensors[0]]
            (self._parameters if isinstance(tensor, nn.Parameter) else self._buffers)[name] = tensor
        except MissingNameError as error:
            self.__dict__["_hidden"][name] = error
            for ours in dict.fromkeys(entry.ours.rpartition(".")[0] for entry in entries):
                self._modules[ours.rpartition(".")[2]] = tree.model.get_submodule(ours)

    def __getattr__(self, name: str) -> Any:
        if name in self.__dict__["_hidden"]:
            raise self.__dict__["_hidden"][name]
        if name in self._modules or name in self._parameters or name in self._buffers:
            return super().__getattr__(name)
        tree, path, whole = (self.__dict__[each] for each in ("_tree", "_path", "_whole"))
        if not name.startswith("__"):
            if (found := tree.found((*path, name))) is not None:
                return found
            if whole is not None and hasattr(whole, name):
                return getattr(whole, name)
        raise MissingNameError(f"{'.'.join(path)!r} has no {name!r}.", hint=nearest(name, self._modules))

    def __setattr__(self, name: str, value: Any) -> None:
        if "_tree" not in self.__dict__ or name in self.__dict__:
            super().__setattr__(name, value)
            return
        tree, path, whole = (self.__dict__[each] for each in ("_tree", "_path", "_whole"))
        if not isinstance(value, nn.Module | nn.Parameter):
            if whole is None:
                raise MissingNameError(f"{'.'.join(path)!r} is no module of its own to set {name!r} of.")
            setattr(whole, name, value)
            return
        if not tree.replace((*path, name), value):
            raise MissingNameError(f"{'.'.join(path)!r} has no {name!r}.", hint=nearest(name, self._modules))
        if isinstance(value, nn.Module):
            self._modules[name] = value
        else:
            self._parameters[name] = value

    def __getitem__(self, index: int | slice) -> Any:
        items = self._items()
        return items[index]

    def __setitem__(self, index: int, value: nn.Module) -> None:
        setattr(self, str(range(len(self))[index]), value)

    def __len__(self) -> int:
        return len(self._items())

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(self._items())

    def __bool__(self) -> bool:
        return True

    def _items(self) -> list[nn.Module]:
        if not all(name.isdigit() for name in self._modules):
            raise InputError(f"{'.'.join(self.__dict__['_path'])!r} is no list of modules.", hint="Its parts have names.")
        return [module for _, module in sorted(self._modules.items(), key=lambda item: int(item[0]))]  # type: ignore[misc]

    def _one(self) -> nn.Module:
        whole: nn.Module | None = self.__dict__["_whole"]
        if whole is None:
            raise self.__dict__["_tree"].several(self.__dict__["_path"], self.__dict__["_tree"].below(self.__dict__["_path"]))
        return whole

    def forward(self, *args: Any, **inputs: Any) -> Any:
        """What our module does."""
        return self._one()(*args, **inputs)

    def train(self, mode: bool = True) -> Part:
        """Our module's mode, or that of all the part has."""
        for module in self._modules.values() if self.__dict__["_whole"] is None else (self._one(),):
            module.train(mode)  # type: ignore[union-attr]
        return self

    def register_forward_hook(self, *args: Any, **options: Any) -> Any:
        return self._one().register_forward_hook(*args, **options)

    def register_forward_pre_hook(self, *args: Any, **options: Any) -> Any:
        return self._one().register_forward_pre_hook(*args, **options)

    def register_full_backward_hook(self, *args: Any, **options: Any) -> Any:
        return self._one().register_full_backward_hook(*args, **options)


class ByReference(Loadable):
    """Mixed into models: names that are not theirs are looked for among the reference's."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            found = _found(self, name) if _may_be_stored(self, name) else None
            if found is None:
                raise
            return found

    def __setattr__(self, name: str, value: Any) -> None:
        fresh = isinstance(value, nn.Module | nn.Parameter) and name not in self._modules and name not in self._parameters
        if fresh and name not in self.__dict__ and _may_be_stored(self, name) and _replaced(self, name, value):
            return
        super().__setattr__(name, value)

    def get_submodule(self, target: str) -> nn.Module:
        """The module of that path, by our names or by the reference's.

        Raises:
            AttributeError: there is none, or several of ours are one there.
        """
        try:
            return super().get_submodule(target)
        except AttributeError:
            if (found := Tree(self).found(tuple(target.split(".")))) is None:
                raise
            return found

    def get_parameter(self, target: str) -> nn.Parameter:
        """The parameter of that path, by our names or by the reference's.

        Raises:
            AttributeError: there is none, or ours are stored in another order there.
        """
        try:
            return super().get_parameter(target)
        except AttributeError:
            tree = Tree(self)
            entries = tree.below(tree.spelled(tuple(target.split("."))))
            if not entries or entries[0].rest:
                raise
            recipe = tree.keys.recipe(entries[0].ours)
            if not entries[0].alone or recipe.transposed or recipe.heads:
                names = ", ".join(dict.fromkeys(entry.ours for entry in entries))
                what = f"{target!r} of the reference holds in another order what is here {names}."
                raise MissingNameError(what, hint="Use our names.") from None
            return super().get_parameter(entries[0].ours)


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


def _found(model: ByReference, name: str) -> Any:
    """What the reference calls so at the top of the model."""
    tree = Tree(model)
    entries = tree.below((name,))
    if entries and not entries[0].rest and entries[0].alone:
        return model.state_dict(keep_vars=True)[entries[0].ours]
    return tree.made((name,), entries) if entries else None


def _replaced(model: ByReference, name: str, value: nn.Module | nn.Parameter) -> bool:
    """Whether a name is the reference's for what the model has already, and the value has taken its place."""
    tree = Tree(model)
    entries = tree.below((name,))
    own = all(entry.ours == ".".join((name, *entry.rest)) for entry in entries)
    return not own and tree.replace((name,), value)
