"""Tables of names that are read in both directions, and operations on stored tensors that can be undone."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from transept.checkpoint.paths import Path, PathTree, fill, indices_of, join, path_of
from transept.errors import InputError

Table = Mapping[str, "str | Recipe | tuple[str, Table] | Callable[[Any], str | Recipe | tuple[str, Table]]"]


@dataclass(frozen=True)
class Recipe:
    """How some of our tensors are stored as one, ``stored``; ``part`` says which of ``targets`` is meant.

    ``axis`` is the one that several are joined along, ``groups`` how many pieces each is cut into before. ``row`` tells that it
    is a row of a stacked tensor, or one of so many equal ``pieces`` of a row, ``piece``; ``cut``, where not zero, that
    the rows are so many equal parts of our tensor, and ``heads``, where not zero, that the stored one has its last axis as two,
    the first of so many.
    """

    targets: tuple[str, ...]
    transposed: bool = False
    groups: int = 1
    axis: int = 0
    row: bool = False
    piece: int = 0
    pieces: int = 1
    cut: int = 0
    heads: int = 0
    stored: str = ""
    part: int = 0

    @cached_property
    def is_plain(self) -> bool:
        """Whether our tensor is stored as it is, by itself."""
        return len(self.targets) == 1 and not (self.transposed or self.row or self.heads or self.groups > 1 or self.axis)

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """Our tensors, where several are stored as one."""
        return self.targets if len(self.targets) > 1 else ()

    def rearranges(self, tensor: Tensor) -> bool:
        """Whether our tensor has its numbers in another order than the stored one, or among others."""
        return self.row or self.groups > 1 or self.axis > 0 or (self.transposed and tensor.ndim == (3 if self.heads else 2))

    def lengths(self, state: Mapping[str, Tensor]) -> list[int]:
        """How long each part is along the axis that they are joined along; nothing where there are no parts."""
        return [state[part].shape[self.axis] for part in self.parts]

    def take(self, tensor: Tensor, lengths: Sequence[int]) -> Tensor:
        """Our tensor out of the stored one, given the lengths of all parts."""
        tensor = tensor.flatten(-2) if self.heads else tensor
        ours = tensor.T if self.transposed and tensor.ndim == 2 else tensor
        if not self.parts:
            return ours
        pieces = torch.split(self._grouped(ours), [length // self.groups for length in lengths], dim=self.axis + 1)
        return pieces[self.part].flatten(self.axis, self.axis + 1)

    def stored_shape(self, shapes: Sequence[torch.Size]) -> tuple[int, ...]:
        """The shape of the stored tensor, given the shapes of all of our parts."""
        shape = list(shapes[0])
        if self.parts:
            shape[self.axis] = sum(part[self.axis] for part in shapes)
        shape = shape[::-1] if self.transposed and len(shape) == 2 else shape
        return (*shape[:-1], self.heads, shape[-1] // self.heads) if self.heads else tuple(shape)

    def join(self, tensors: Sequence[Tensor]) -> Tensor:
        """The stored tensor out of ours."""
        ours = tensors[0]
        if self.parts:
            ours = torch.cat([self._grouped(tensor) for tensor in tensors], dim=self.axis + 1).flatten(self.axis, self.axis + 1)
        ours = ours.T if self.transposed and ours.ndim == 2 else ours
        return ours.reshape(*ours.shape[:-1], self.heads, -1) if self.heads else ours

    def _grouped(self, tensor: Tensor) -> Tensor:
        before, size, after = tensor.shape[: self.axis], tensor.shape[self.axis], tensor.shape[self.axis + 1 :]
        return tensor.reshape(*before, self.groups, size // self.groups, *after)


def Transposed(target: str) -> Recipe:  # noqa: N802 (operations are written like types in a table)
    """Our matrix is stored transposed; vectors are stored as they are."""
    return Recipe((target,), transposed=True)


def Fused(targets: tuple[str, ...], transposed: bool = False, groups: int = 1, axis: int = 0) -> Recipe:  # noqa: N802
    """Several of our tensors are stored as one, joined along an axis of ours (of the stored one's other, if transposed).

    With ``groups``, such as heads, each is cut into so many and the first pieces of all stand before the second ones.
    """
    return Recipe(targets, transposed, groups, axis)


def Stacked(target: str, piece: int = 0, pieces: int = 1) -> Recipe:  # noqa: N802
    """One of our tensors is stored row by row, each under a name whose last index is the row's.

    Where rows are stored in equal ``pieces``, each piece has a rule. Where a checkpoint has the tensor as one, by another rule
    or under our name, it is read so; it is always saved row by row.
    """
    return Recipe((target,), row=True, piece=piece, pieces=pieces)


def Cut(target: str, part: int, parts: int) -> Recipe:  # noqa: N802
    """One of our tensors is stored in equal parts of its first axis, each under a name of its own, which has a rule."""
    return Recipe((target,), row=True, part=part, cut=parts)


def rows_of(tensor: Tensor, cut: int) -> Tensor:
    """The rows of a stacked tensor, which are equal parts where it is ``cut``."""
    return tensor.view(cut, -1, *tensor.shape[1:]) if cut else tensor


def slot_name(name: str, row: int | str, piece: int, pieces: int) -> str:
    """What a row of a stacked tensor is called, or one of several pieces of it."""
    return f"{name}.{row}.{piece}" if pieces > 1 else f"{name}.{row}"


def Unflattened(target: str, size: int, transposed: bool = False) -> Recipe:  # noqa: N802
    """Our matrix, or its transposed one, is stored with two axes in place of its last one: ``size`` heads and what each has."""
    return Recipe((target,), transposed, heads=size)


def made_for(table: Table, config: Any) -> Table:
    """The table in which the rules are made that depend on a config."""
    rules = {stored: rule(config) if callable(rule) else rule for stored, rule in table.items()}
    return {stored: (rule[0], made_for(rule[1], config)) if isinstance(rule, tuple) else rule for stored, rule in rules.items()}


def flattened(table: Table, stored: str = "", ours: str = "") -> dict[str, Recipe]:
    """Stored paths -> rules, of a nested table."""
    flat: dict[str, Recipe] = {}
    for key, value in table.items():
        name = join(stored, key)
        if isinstance(value, tuple):
            prefix = join(ours, value[0])
            if value[0]:
                flat[name] = Recipe((prefix,), stored=name)
            flat |= flattened(value[1], name, prefix)
        elif isinstance(value, str):
            flat[name] = Recipe((join(ours, value),), stored=name)
        elif isinstance(value, Recipe):
            flat[name] = replace(value, stored=name, targets=tuple(join(ours, target) for target in value.targets))
    return flat


class KeyMap:
    """A table, ready to be asked in both directions; two rules that write one of our names are a ``ValueError``."""

    def __init__(self, table: Table) -> None:
        self.rules = PathTree[Recipe]()  # by our paths
        self.stored = PathTree[tuple[str, ...]]()  # our paths by stored ones
        self._recipes: dict[str, Recipe] = {}
        self._levels: dict[Path, int] = {}  # numbers at the end of a slot's name
        self._pieces: dict[Path, int] = {}
        self._cuts: dict[Path, int] = {}
        for stored, rule in flattened(table).items():
            self.stored.add(tuple(stored.split(".")) if stored else (), rule.targets)
            for part, target in enumerate(rule.targets):
                row = f"{rule.part}" if rule.cut else "*"
                ours = slot_name(target, row, rule.piece, rule.pieces) if rule.row else target
                if before := self.rules.add(tuple(ours.split(".")) if ours else (), replace(rule, part=part) if part else rule):
                    raise ValueError(f"{stored!r} and {before.stored!r} both map to {ours!r}")
                if rule.row:
                    self._levels[path_of(ours)] = 2 if rule.pieces > 1 else 1
                    self._pieces[path_of(target)] = rule.pieces
                    self._cuts[path_of(target)] = rule.cut

    def ours(self, stored: str) -> tuple[str, ...]:
        """The path or paths of ours that a stored path, of a module or a tensor, stands for; of a list that of its elements.

        The longest rule that fits its beginning counts, and of two alike the one with fewer ``*``.
        """
        parts = tuple(stored.split(".")) if stored else ()
        if self.stored.at((*parts, "*")) is not None:
            return tuple(path.removesuffix(".*") for path in self.ours(f"{stored}.*"))
        node, _ = self.stored.walk(parts)
        if node is None or node.value is None:
            return (stored,)
        indices, rest = indices_of(node.path, parts), ".".join(parts[len(node.path) :])
        return tuple(join(fill(target, indices), rest) for target in node.value)

    def place(self, ours: str, *, is_list: bool = False) -> str:
        """The stored path of a module or tensor of ours; of a list that of its elements, without their indices."""
        if is_list:
            return self.place(f"{ours}.0").removesuffix(".0")
        return self.recipe(ours).stored.strip(".")

    def reaches_into(self, ours: str, stored: str) -> bool:
        """Whether a rule names something inside of what we have at one path and the tree at another."""
        inside, outside = self.rules.walk(ours.split("."))[1], self.stored.walk(stored.split("."))[1]
        return any(node.below for node in inside) or any(node.below for node in outside)

    def beginnings(self) -> tuple[str, ...]:
        """The first parts of all stored paths that a rule names."""
        return tuple(self.stored.root.below)

    def slots(self, state: Mapping[str, Tensor], stored: Container[str] = ()) -> dict[str, Tensor]:
        """Our state with stacked tensors in rows or pieces of these, but for those that are stored as one.

        A row is called ``name.0``, ``name.1`` ..., and its pieces ``name.0.0``, ``name.0.1`` ...
        """
        slots: dict[str, Tensor] = {}
        if not self._pieces:
            return dict(state)
        for name, tensor in state.items():
            if (pieces := self._pieces.get(path_of(name))) is None or self.recipe(name).stored in stored:
                slots[name] = tensor
                continue
            for row, whole in enumerate(rows_of(tensor, self._cuts[path_of(name)])):
                cut = whole.chunk(pieces) if pieces > 1 else (whole,)
                slots |= {slot_name(name, row, piece, pieces): part for piece, part in enumerate(cut)}
        return slots

    def owner(self, slot: str) -> str:
        """The name of the tensor that a slot is a row of, or a piece of one; itself, where it is none."""
        return slot.rsplit(".", self._levels.get(path_of(slot), 0))[0] if self._levels else slot

    def stack(self, slots: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Our state out of slots."""
        rows: dict[str, list[Tensor]] = {}
        for slot, tensor in slots.items():
            rows.setdefault(self.owner(slot), []).append(tensor)
        return {name: tensors[0] if name in slots else self._stacked(name, tensors) for name, tensors in rows.items()}

    def _stacked(self, name: str, tensors: list[Tensor]) -> Tensor:
        if self._cuts[path_of(name)]:
            return torch.cat(tensors)
        pieces = self._pieces[path_of(name)]
        rows = torch.stack(tensors)
        return rows.view(-1, pieces * rows.shape[1], *rows.shape[2:])

    def recipe(self, name: str) -> Recipe:
        """How our tensor, or a row of a stacked one, is stored."""
        if (known := self._recipes.get(name)) is not None:
            return known
        parts = name.split(".")
        node, _ = self.rules.walk(parts)
        if node is None or node.value is None:
            return self._recipes.setdefault(name, Recipe((name,), stored=name))
        rule, rest = node.value, ".".join(parts[len(node.path) :])
        stored, targets = rule.stored, rule.targets
        if indices := indices_of(node.path, parts):
            stored, targets = fill(stored, indices), tuple(fill(target, indices) for target in targets)
        if rest:
            stored, targets = join(stored, rest), tuple(join(target, rest) for target in targets)
        found = replace(rule, stored=stored, targets=targets)
        return self._recipes.setdefault(name, found)

    def save(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Our state, in which no tensor may be lacking that is stored as one with others, under the checkpoint's names."""
        saved: dict[str, Tensor] = {}
        for name, tensor in self.slots(state).items():
            recipe = self.recipe(name)
            if recipe.stored in saved:
                continue
            if missing := [part for part in recipe.parts if part not in state]:
                raise InputError(f"{name!r} is stored with others as {recipe.stored!r}, but there is no {missing[0]!r}.")
            saved[recipe.stored] = recipe.join([state[part] for part in recipe.parts] or [tensor])
        return saved
