"""The tree of modules that PyTorch knows: a model's parts, registered under the names that its checkpoints have.

A family writes its modules in one vocabulary (``layers.0.self_attn.q_proj``) and says in a table where each part hangs
(``encoder.layer.0.attention.self.query``). Once a model is built its parts are moved there, in the order of the table; the
modules find them by links (:class:`transept.layers.links.Linked`).
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from operator import attrgetter
from typing import Any

from torch import nn

from transept.checkpoint.keys import KeyMap
from transept.checkpoint.paths import Node, below, join
from transept.layers.links import Container, ContainerList, Linked, Step

_RANK = attrgetter("rank")


def place(model: Linked, keys: KeyMap) -> None:
    """Register the parts of a model where a table says.

    A module goes where a rule names it; one that no rule names stays with the module around it, and its own parts may still
    hang elsewhere. What was registered under a name of the table before, by a subclass for example, takes that part's place.
    """
    Placement(model, keys).run()


class Placement:
    """The places of a model's parts, while they are moved."""

    def __init__(self, model: Linked, keys: KeyMap) -> None:
        self.model, self.keys = model, keys
        self.homes: dict[str, str] = {"": ""}  # own path of a module -> its path in the tree
        self.modules: dict[str, nn.Module] = {"": model}  # path in the tree -> module
        self.moves: list[tuple[str, str, str, Any]] = []  # own path of the holder, own name, path in the tree, part
        self.steps: dict[str, tuple[type[Step], Linked]] = {}  # path in the tree -> what computes there, for which module

    def run(self) -> None:
        self.settle("", self.model, "", [self.keys.rules.root])
        for path, name, home, part in self.moves:
            parent, _, key = home.rpartition(".")
            holder = self.holder(parent, key)
            self.owner(path).link(name, holder, key)
            hold(holder, key, part)
        sort(self.model, [self.keys.stored.root])

    def settle(self, path: str, module: nn.Module, ruled: str, nodes: Sequence[Node[Any]]) -> None:
        """Decide where the parts of a module go, and take those from it that leave.

        ``ruled`` is where the table has the module itself, which may be elsewhere than at its home; ``nodes`` are the places of
        the rules that say where its parts go.
        """
        home, prefix = self.homes[path], f"{path}." if path else ""
        if isinstance(module, Linked) and (steps := module.step_classes()):
            self.steps |= {join(home, place): (kind, module) for place, kind in steps.items()}
        for name, child in list(module._modules.items()):
            if child is None:
                continue
            own, inner = f"{prefix}{name}", below(nodes, name)
            by_rule = wanted = self.wanted(own, ruled, name, inner, child)
            stay = f"{home}.{name}" if home else name
            if wanted in self.modules:  # a module around it is there: it stays where it is built
                wanted = stay
            if self.assigned(wanted) not in (None, child):
                del module._modules[name]
                parent, _, key = wanted.rpartition(".")
                self.owner(path).link(name, self.model.get_submodule(parent), key)
                continue
            self.homes[own], self.modules[wanted] = wanted, child
            if wanted != stay:
                self.moves.append((path, name, wanted, module._modules.pop(name)))
            if "_is_placed" not in child.__dict__ or self.keys.reaches_into(own, wanted):
                self.settle(own, child, by_rule, inner)
        for held in (module._parameters, module._buffers):
            for name, tensor in [*held.items()]:
                if tensor is None:
                    continue
                wanted = self.wanted(f"{prefix}{name}", ruled, name, below(nodes, name))
                if wanted != (f"{home}.{name}" if home else name):
                    self.moves.append((path, name, wanted, held.pop(name)))

    def wanted(self, own: str, ruled: str, name: str, nodes: Sequence[Node[Any]], part: Any = None) -> str:
        """Where the table has a part: by a rule of its own, or below the module around it."""
        if isinstance(part, nn.ModuleList):
            return self.keys.place(own, is_list=True)
        for node in nodes:
            if node.value is not None:
                return self.keys.place(own)
        return join(ruled, name)

    def assigned(self, path: str) -> nn.Module | None:
        """What a subclass has put where a part is to hang, which takes its place."""
        module: nn.Module = self.model
        for name in path.split("."):
            if (inner := module._modules.get(name)) is None:
                return None
            module = inner
        return module if self.keys.place(path) == path else None

    def owner(self, path: str) -> Linked:
        module = self.modules[self.homes[path]]
        assert isinstance(module, Linked), f"{type(module).__name__} at {path!r} has parts elsewhere, but cannot find them"
        return module

    def holder(self, path: str, key: str) -> nn.Module:
        """What is registered at a path of the tree, to hold a part; a step or a container where there is nothing."""
        if path not in self.modules:
            parent, _, name = path.rpartition(".")
            kind, owner = self.steps.get(path, (None, None))
            container = ContainerList() if key.isdigit() else Container() if kind is None or owner is None else kind(owner)
            self.modules[path] = container
            self.holder(parent, name)._modules[name] = container  # where a class has an attribute of that name, too
        return self.modules[path]


def sort(module: nn.Module, nodes: Sequence[Node[Any]]) -> None:
    """Put what a table names, here and below, into its order; the others keep their places among it."""
    tables: tuple[MutableMapping[str, Any], ...] = (module._modules, module._parameters)
    for held in tables:
        named = {name: found for name in held if (found := below(nodes, name))}
        if len(named) > 1:
            ordered = iter(sorted(named, key=lambda name: min(map(_RANK, named[name]))))
            items = {(chosen := next(ordered) if name in named else name): held[chosen] for name in list(held)}
            held.clear()
            held.update(items)
        for name, found in named.items():
            if isinstance(child := held[name], nn.Module):
                sort(child, found)


def hold(holder: nn.Module, key: str, part: Any) -> None:
    """Register a module, parameter or buffer."""
    if isinstance(part, nn.Parameter):
        holder.register_parameter(key, part)
    elif isinstance(part, nn.Module):
        holder.add_module(key, part)
    else:
        holder.register_buffer(key, part)
