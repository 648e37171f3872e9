"""Modules whose parts are registered elsewhere, under the names that checkpoints and other libraries know.

A compute module is written in one vocabulary (``self.q_proj``), while PyTorch's tree of modules, its ``state_dict()`` and its
``named_parameters()`` have another (``attention.self.query``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from transept.errors import UnsupportedError

SideBySide = tuple[tuple[str, ...], str]
"""The names of layers that read one input, and the name of one product that can stand in their place."""


class Linked(nn.Module):
    """A module that finds some of its parts by links: own name -> the module that holds the part, and its name there.

    A part is looked up at each access, so that one that was replaced in the tree is the one that computes, and what is assigned
    to the own name is registered in the tree. A part of a part may have a name here, too: an alias, which is its path.
    """

    _links: dict[str, tuple[nn.Module, str]]
    _aliases: dict[str, str]
    by_steps: bool = False  # whether it computes by what is at the places of its steps; see `Step`

    def side_by_side(self) -> SideBySide | None:
        """The layers that one product can stand for; ``None`` where there are none, or the class computes by each alone."""
        return None

    def step_classes(self) -> Mapping[str, type[Step]]:
        """The steps of its work that the reference has a module for: path in the tree, below this module -> class."""
        return {}

    def step_at(self, path: str) -> nn.Module | None:
        """What the tree has at the place of a step, if it computes by steps and has such a place."""
        module: nn.Module | None = self if self.by_steps else None
        for name in path.split("."):
            module = None if module is None else module._modules.get(name)
        return module

    def __getattr__(self, name: str) -> Any:
        held = self.__dict__
        if "_modules" in held and name in held["_modules"]:  # most of what is asked for
            return held["_modules"][name]
        if "_links" in held and name in held["_links"]:
            holder, key = held["_links"][name]
            modules = holder.__dict__["_modules"]
            return modules[key] if key in modules else getattr(holder, key)
        if "_aliases" in held and name in held["_aliases"]:
            return self.get_submodule(held["_aliases"][name])
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        links = self.__dict__.get("_links")
        if links is not None and name in links:
            holder, key = links[name]
            setattr(holder, key, value)
        elif name in self.__dict__.get("_aliases", ()):
            path, _, key = self._aliases[name].rpartition(".")
            setattr(self.get_submodule(path), key, value)
        else:
            if name in self.__dict__.get("_modules", ()):
                check_replaced(self, name)
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        links = self.__dict__.get("_links")
        if links is not None and name in links:
            holder, key = links.pop(name)
            delattr(holder, key)
        else:
            super().__delattr__(name)

    def alias(self, name: str, path: str) -> None:
        """Call the part at a path of the tree below this module by a name of its own."""
        self.__dict__.setdefault("_aliases", {})[name] = path

    def link(self, name: str, holder: nn.Module, key: str) -> None:
        """Find the part of that name in ``holder`` from now on."""
        self.__dict__.setdefault("_links", {})[name] = (holder, key)


def links(module: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """Where a module's parts hang that do not hang in itself, by the names that itself has for them."""
    found: dict[str, tuple[nn.Module, str]] = module.__dict__.get("_links", {})
    return found


def parts(module: nn.Module) -> dict[str, nn.Module]:
    """The modules that a module is made of, by the names that itself has for them."""
    linked = {name: part for name in links(module) if isinstance(part := getattr(module, name), nn.Module)}
    known = {id(part) for part in linked.values()}
    for inner in module.modules():  # what only hangs here, and is a part of another
        if inner is not module:
            known |= {id(holder._modules.get(key)) for holder, key in links(inner).values()}
    rest = {name: part for name, part in module.named_children() if id(part) not in known and not isinstance(part, Container)}
    return linked | rest


def tensors(module: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers that a module itself works with, by the names that itself has for them."""
    held = {**module._parameters, **module._buffers, **{name: getattr(module, name) for name in links(module)}}
    return {name: tensor for name, tensor in held.items() if isinstance(tensor, Tensor)}


def lent(model: nn.Module, blocks: Iterable[nn.Module]) -> list[nn.Module]:
    """The modules that hang in one of some blocks of a model, inner ones first, and are parts of what is outside of it."""
    inside: dict[int, nn.Module] = {}
    found: list[nn.Module] = []
    for block in blocks:
        for module in block.modules():
            inside.setdefault(id(module), block)
    for module in model.modules():
        for holder, key in links(module).values():
            home = inside.get(id(holder))
            if home is not None and key in holder._modules and inside.get(id(module)) is not home:
                found.append(getattr(holder, key))
    return found


def adopt(module: Linked, source: Linked) -> None:
    """Give a module that takes the place of another its parts, where they hang."""
    module._modules.update(source._modules)
    for name, (holder, key) in links(source).items():
        module.link(name, module if holder is source else holder, key)


class Layer(Linked):
    """What a backbone runs one after another, and with gradient checkpointing once more in the backward pass."""


class Container(nn.Module):
    """A place in the tree that holds parts of modules elsewhere, and computes nothing itself."""

    def forward(self, *args: Any, **inputs: Any) -> Any:
        raise self._refused("is called")

    def register_forward_hook(self, *args: Any, **options: Any) -> Any:
        raise self._refused("runs a hook")

    register_forward_pre_hook = register_full_backward_hook = register_full_backward_pre_hook = register_forward_hook

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "forward":
            raise self._refused("has another forward")
        check_replaced(self, name)
        super().__setattr__(name, value)

    def _refused(self, what: str) -> UnsupportedError:
        names = ", ".join((*self._modules, *self._parameters))
        message = f"this part of the model only holds others ({names}), and computes nothing that {what}."
        return UnsupportedError(message, hint="Use one of these, or the model.")


class ContainerList(Container, nn.ModuleList):
    """The same, where the parts have numbers; some may be missing, of modules that have no parameters in the reference."""

    def _get_abs_string_index(self, idx: int) -> str:
        """The name of the part with a number; from the end, parts are counted."""
        names = [*self._modules]
        return str(idx) if str(idx) in names else names[idx if idx < 0 else len(names)]

    # A list is never called, here and in the reference, whose hooks on it never run.
    register_forward_hook = nn.Module.register_forward_hook
    register_forward_pre_hook = nn.Module.register_forward_pre_hook
    register_full_backward_hook = nn.Module.register_full_backward_hook
    register_full_backward_pre_hook = nn.Module.register_full_backward_pre_hook


def _taking_part(register: Callable[..., Any]) -> Any:
    """The registration of a hook on a step, which its owner calls from then on."""

    def call(self: Step, *args: Any, **options: Any) -> Any:
        self.takes_part()
        return register(self, *args, **options)

    return call


class Step(Container):
    """A place in the tree that holds parts of its ``owner``, and computes one step of the owner's work.

    The owner computes the step by itself, until it has a hook or another ``forward``, or another module takes its place: from
    then on the owner calls what the tree has at the places of its steps (:attr:`Linked.by_steps`).

    ``lends`` are attributes that the reference has here -> where the owner has them; a module among them is in the mode
    (training or not) that this one is put in, and so are those of ``follow``.
    """

    owner: Any
    lends: ClassVar[Mapping[str, str]] = {}
    follow: ClassVar[tuple[str, ...]] = ()

    def __init__(self, owner: Linked) -> None:
        super().__init__()
        self.__dict__["owner"] = owner  # which is no part of it

    def takes_part(self) -> None:
        """Let the owner call what is at this place."""
        self.owner.by_steps = True

    register_forward_hook = _taking_part(nn.Module.register_forward_hook)
    register_forward_pre_hook = _taking_part(nn.Module.register_forward_pre_hook)
    register_full_backward_hook = _taking_part(nn.Module.register_full_backward_hook)
    register_full_backward_pre_hook = _taking_part(nn.Module.register_full_backward_pre_hook)

    def __getattr__(self, name: str) -> Any:
        if name in type(self).lends and name not in self._modules:
            return attribute(self.owner, type(self).lends[name])
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "forward":
            self.takes_part()
            nn.Module.__setattr__(self, name, value)
        elif name in type(self).lends:
            path, _, key = type(self).lends[name].rpartition(".")
            setattr(attribute(self.owner, path), key, value)
        else:
            super().__setattr__(name, value)

    def train(self, mode: bool = True) -> Any:
        for path in (*type(self).follow, *type(self).lends.values()):
            if isinstance(part := attribute(self.owner, path), nn.Module):
                part.train(mode)
        return super().train(mode)


def attribute(module: Any, path: str, *default: Any) -> Any:
    """What a dotted path of attributes leads to, or the default, where there is one."""
    for name in path.split(".") if path else ():
        module = getattr(module, name, *default)
    return module


def check_replaced(holder: nn.Module, name: str) -> None:
    """Refuse to replace a container, whose parts are looked up in it by others; what takes the place of a step is called."""
    place = holder.__dict__.get("_modules", {}).get(name)
    if isinstance(place, Step):
        place.takes_part()
    elif isinstance(place, Container):
        names = ", ".join((*place._modules, *place._parameters))
        message = f"{name!r} only holds parts of the model, and what takes its place would not be used."
        raise UnsupportedError(message, hint=f"Replace its parts: {names}.")
