"""All that there is to say about a model's checkpoint names, as one value, whose table is read in both directions.

A table maps dotted paths of the checkpoint to ours: ``*`` stands for an index, the longest rule wins, and what no rule names
keeps its name. A value is a path, a pair ``(path, nested table)`` that scopes the rules below it, an operation that can be
undone (``Transposed``, ``Fused``, ``Stacked`` or ``Unflattened``), or a function that makes one of these from a config.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any

import torch
from torch import Tensor

from transept.checkpoint.paths import Path, fill, fits, join, matches, path_of, place_of, respell
from transept.errors import InputError

Table = Mapping[str, "str | Recipe | tuple[str, Table] | Callable[[Any], str | Recipe | tuple[str, Table]]"]


@dataclass(frozen=True, eq=False)
class Names:
    """The names of a model's tensors in a checkpoint: a family states those of its network, a task those of its head.

    Patterns are dotted paths from the beginning of a name; ``*`` stands for one part of it, and a part such as
    ``cross_attn*`` for all that begin so.

    Args:
        table: names of the tree of modules -> our names; they are the stored ones, but for those of ``files``.
        files: stored names -> names of the tree, where a file has other ones.
        ties: our names -> the names of ours whose tensors they share.
        legacy: other spellings of stored names -> today's, with paths as in ``table``; one that begins with ``**.`` fits at any
            place. A name is respelled once, by the longest that fits. Other spellings are read and never written.
        ignore: parts of stored names that are never read, such as buffers that are computed.
        optional: patterns of what either side may lack: a checkpoint as a whole, or the model.
        absent: patterns of our names that a checkpoint may lack as a group; with a last part ``*`` each name is a group.
        fixed: our names that are not trained, and have a value of their own where a checkpoint lacks them.
        wide: parts of our names whose tensors stay float32 in a model of float16.
        heads: stored names of the heads of all tasks of the family, which a model without them skips.
        base: the prefix below which task models store these names.
        children: the names of the models that this one is made of.
    """

    table: Table = field(default_factory=dict)
    files: Table = field(default_factory=dict)
    ties: dict[str, str] = field(default_factory=dict)
    legacy: Table = field(default_factory=dict)
    ignore: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()
    wide: tuple[str, ...] = ()
    heads: frozenset[str] = frozenset()
    base: str = ""
    children: tuple[Child, ...] = ()
    within: Names | None = None

    def below(self, ours: str, stored: str | None = None, *, loose: bool = False, tree: str | None = None) -> Names:
        """These names below a prefix of our names, and of the stored ones (the same where it is not given).

        With ``loose`` a checkpoint may lack the stored prefix or its beginning, as that of a backbone alone does. ``tree`` is the
        prefix in the tree of modules, where that is another than the stored one.
        """
        return Names(children=(Child(ours, ours if stored is None else stored, self, loose, tree),))

    def __or__(self, other: Names) -> Names:
        """What is said of two parts of one model."""
        pairs = (
            (name, getattr(self, name), getattr(other, name))
            for name in self.__dataclass_fields__
            if name not in ("base", "within")
        )
        joined: dict[str, Any] = {name: a + b if isinstance(a, tuple) else a | b for name, a, b in pairs}
        return Names(**joined, base=self.base or other.base)

    def of(self, config: Any) -> Names:
        """The names of a model with this config."""
        tables = {"table": _of(self.table, config), "files": _of(self.files, config)}
        return replace(self, **tables, ties=self.ties if config.tie_word_embeddings else {})

    @cached_property
    def keys(self) -> KeyMap:
        """The table, ready to be asked in both directions."""
        return KeyMap(self._whole_table())

    def _whole_table(self) -> Table:
        return {child.stored: (child.ours, child.names._whole_table()) for child in self.children} | dict(self.table)

    @cached_property
    def placement(self) -> KeyMap:
        """Where the parts of the model hang, below the places of the models that it is made of."""
        first = {child.place: child.ours for child in self.children if child.place not in self.table}
        return KeyMap(first | dict(self.table))

    def placed(self) -> Names:
        """The names of a model whose parts hang where the table says: its own are the stored ones."""
        children = tuple(replace(child, ours=child.place) for child in self.children)
        placed = replace(self, table=self.files, files={}, ties={}, children=children, within=self)
        return replace(placed, ties={placed.public(name): placed.public(source) for name, source in self.ties.items()})

    def public(self, name: str) -> str:
        """Where the tree has what the modules of a model call so."""
        if self.within is None:
            return name
        for child, inner in self.within._inside(name):
            return join(child.place, child.names.public(inner))
        return self.within.placement.place(name)

    def dialect(self, name: str) -> str:
        """What the modules of a model call what the tree has by that name."""
        if self.within is None:
            return name
        for child in self.within.children:
            if name == child.place or name.startswith(f"{child.place}."):
                return join(child.ours, child.names.dialect(name.removeprefix(child.place).removeprefix(".")))
        return self.within.placement.ours(name)[0]

    @cached_property
    def tied(self) -> dict[str, str]:
        """Our names -> the names of ours whose tensors they share, those of all children too."""
        inner = ((child.ours, pair) for child in self.children for pair in child.names.tied.items())
        return {join(ours, name): join(ours, source) for ours, (name, source) in inner} | self.ties

    def canonical(self, stored: Iterable[str]) -> dict[str, str]:
        """The names that the table knows -> the stored names, in whatever spelling these are."""
        names = {self._respelled(name): name for name in stored}
        ordered = sorted(names.items(), key=lambda item: item[0].startswith(f"{self.base}."))  # a task's namesakes give way
        names = {name.removeprefix(f"{self.base}."): file for name, file in ordered}
        for child in self.children:
            names = child.canonical(names, self.heads)
        return names

    @cached_property
    def spellings(self) -> dict[str, str]:
        """Other spellings of stored names -> today's, as whole paths."""
        return {old: rule.targets[0] for old, rule in _flatten(self.legacy).items()}

    def _respelled(self, name: str) -> str:
        """A stored name in today's spelling, with the prefix that it has."""
        prefix = f"{self.base}." if self.base and name.startswith(f"{self.base}.") else ""
        parts = name.removeprefix(prefix).split(".")
        fitting = [(old, start) for old in self.spellings if (start := place_of(old, parts)) is not None]
        if not fitting:
            return name
        old, start = max(fitting, key=lambda found: found[0].count("."))
        return prefix + respell(parts, start, old, self.spellings[old])

    def group(self, name: str) -> str | None:
        """The group of our name that a checkpoint may lack as a whole; ``None`` for what must be there."""
        if self.within is not None:
            return self.within.group(self.dialect(name))
        for child, inner in self._inside(name):
            group = child.names.group(inner)
            return None if group is None else join(child.ours, group)
        for pattern in (*self.optional, *self.absent):
            if matches(pattern, name):
                return ".".join(name.split(".")[: pattern.count(".") + 1]) if f".{pattern}".endswith(".*") else pattern
        return None

    def ignores(self, name: str) -> bool:
        """Whether a stored name is never read."""
        return any(f".{part}." in f".{name}." for part in self.ignore)

    def skips(self, name: str) -> bool:
        """Whether a stored name, as the table knows it, is another head's, of an optional part, or ignored."""
        if self.ignores(name) or any(matches(pattern, name) for pattern in (*self.optional, *self.heads)):
            return True
        inside = ((child, f"{child.stored}.".lstrip(".")) for child in self.children)
        return any(name.startswith(prefix) and child.names.skips(name.removeprefix(prefix)) for child, prefix in inside)

    def is_fixed(self, name: str) -> bool:
        """Whether our name is not trained and has a value of its own."""
        if self.within is not None:
            return self.within.is_fixed(self.dialect(name))
        return name in self.fixed or any(child.names.is_fixed(inner) for child, inner in self._inside(name))

    def is_wide(self, name: str) -> bool:
        """Whether our name's tensor stays float32 in a model of float16."""
        if self.within is not None:
            return self.within.is_wide(self.dialect(name))
        wide = any(f".{part}." in f".{name}." for part in self.wide)
        return wide or any(child.names.is_wide(inner) for child, inner in self._inside(name))

    def _inside(self, name: str) -> Iterable[tuple[Child, str]]:
        """The children that our name belongs to, and what they call it."""
        for child in self.children:
            if name.startswith(prefix := f"{child.ours}.".lstrip(".")):
                yield child, name.removeprefix(prefix)


@dataclass(frozen=True, eq=False)
class Child:
    """The names of a model below a prefix; the arguments are those of :meth:`Names.below`."""

    ours: str
    stored: str
    names: Names
    loose: bool = False
    tree: str | None = None

    @property
    def place(self) -> str:
        """Where the tree of modules has it."""
        return self.stored if self.tree is None else self.tree

    def canonical(self, names: Mapping[str, str], heads: Iterable[str]) -> dict[str, str]:
        """Names -> stored names, of which those of this model are spelled as its table knows them."""
        if self.loose:
            names = self._prefixed(names, heads)
        prefix = f"{self.stored}."
        own = {name.removeprefix(prefix): file for name, file in names.items() if name.startswith(prefix)}
        found = {f"{prefix}{name}": own[spelled] for name, spelled in self.names.canonical(own).items()}
        return {name: file for name, file in names.items() if not name.startswith(prefix)} | found

    def _prefixed(self, names: Mapping[str, str], heads: Iterable[str]) -> dict[str, str]:
        """The same where the prefix may be lacking, in part, or be another than is usual: it is put before all but heads."""
        prefix, usual = f"{self.stored}.".lstrip("."), f"{self.names.base}."
        if prefix != usual:
            names = {prefix + k.removeprefix(usual) if k.startswith(usual) else k: v for k, v in names.items()}
        rest = prefix
        while rest and not any(name.startswith(rest) for name in names):
            rest = rest.partition(".")[2]
        if rest or not prefix:
            return {prefix.removesuffix(rest) + name if name.startswith(rest) else name: file for name, file in names.items()}
        others = {*heads} - (self.names.within or self.names).table.keys()  # what this model has itself is no head's
        return {k if any(matches(head, k) for head in others) else prefix + k: v for k, v in names.items()}


@dataclass(frozen=True)
class Recipe:
    """How some of our tensors are stored as one, ``stored``; ``part`` says which of ``targets`` is meant.

    ``axis`` is the one that several are joined along, ``groups`` how many pieces each is cut into before. ``row`` tells that it
    is a row of a stacked tensor, or one of so many equal ``pieces`` of a row, ``piece``; ``heads``, where not zero, that
    the stored one has its last axis as two, the first of so many.
    """

    targets: tuple[str, ...]
    transposed: bool = False
    groups: int = 1
    axis: int = 0
    row: bool = False
    piece: int = 0
    pieces: int = 1
    heads: int = 0
    stored: str = ""
    part: int = 0

    @property
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


def slot_name(name: str, row: int | str, piece: int, pieces: int) -> str:
    """What a row of a stacked tensor is called, or one of several pieces of it."""
    return f"{name}.{row}.{piece}" if pieces > 1 else f"{name}.{row}"


def Unflattened(target: str, size: int, transposed: bool = False) -> Recipe:  # noqa: N802
    """Our matrix, or its transposed one, is stored with two axes in place of its last one: ``size`` heads and what each has."""
    return Recipe((target,), transposed, heads=size)


def _of(table: Table, config: Any) -> Table:
    """The table in which the rules are made that depend on a config."""
    rules = {stored: rule(config) if callable(rule) else rule for stored, rule in table.items()}
    return {stored: (rule[0], _of(rule[1], config)) if isinstance(rule, tuple) else rule for stored, rule in rules.items()}


def _flatten(table: Table, stored: str = "", ours: str = "") -> dict[str, Recipe]:
    """Stored paths -> rules, of a nested table."""
    flat: dict[str, Recipe] = {}
    for key, value in table.items():
        name = join(stored, key)
        if isinstance(value, tuple):
            prefix = join(ours, value[0])
            if value[0]:
                flat[name] = Recipe((prefix,), stored=name)
            flat |= _flatten(value[1], name, prefix)
        elif isinstance(value, str):
            flat[name] = Recipe((join(ours, value),), stored=name)
        elif isinstance(value, Recipe):
            flat[name] = replace(value, stored=name, targets=tuple(join(ours, target) for target in value.targets))
    return flat


class KeyMap:
    """A table, ready to be asked in both directions; two rules that write one of our names are a ``ValueError``."""

    def __init__(self, table: Table) -> None:
        self._rules: dict[Path, Recipe] = {}
        self._stored: dict[Path, tuple[str, ...]] = {}
        for stored, rule in _flatten(table).items():
            self._stored[tuple(stored.split(".")) if stored else ()] = rule.targets
            for part, target in enumerate(rule.targets):
                ours = slot_name(target, "*", rule.piece, rule.pieces) if rule.row else target
                path = tuple(ours.split("."))
                if path in self._rules:
                    raise ValueError(f"{stored!r} and {self._rules[path].stored!r} both map to {ours!r}")
                self._rules[path] = replace(rule, part=part) if part else rule
        self._recipes: dict[str, Recipe] = {}
        self._ranks: dict[Path, int | None] = {}
        rows = {path_of(".".join(path)): rule for path, rule in self._rules.items() if rule.row}
        self._levels = {path: 2 if rule.pieces > 1 else 1 for path, rule in rows.items()}  # numbers at the end of a slot's name
        self._pieces = {path_of(rule.targets[0]): rule.pieces for rule in rows.values()}

    def ours(self, stored: str) -> tuple[str, ...]:
        """The path or paths of ours that a stored path, of a module or a tensor, stands for; of a list that of its elements.

        The longest rule that fits its beginning counts, and of two alike the one with fewer ``*``.
        """
        parts = tuple(stored.split(".")) if stored else ()
        if any((*parts, "*") == rule for rule in self._stored):
            return tuple(path.removesuffix(".*") for path in self.ours(f"{stored}.*"))
        fitting = [rule for rule in self._stored if len(rule) <= len(parts) and all(map(fits, rule, parts))]
        if not fitting:
            return (stored,)
        rule = max(fitting, key=lambda rule: (len(rule), -rule.count("*")))
        indices = [part for wanted, part in zip(rule, parts) if wanted == "*"]
        rest = parts[len(rule) :]
        return tuple(".".join([fill(target, indices), *rest]).removeprefix(".") for target in self._stored[rule])

    def place(self, ours: str, *, is_list: bool = False) -> str:
        """The stored path of a module or tensor of ours; of a list that of its elements, without their indices."""
        if is_list:
            return self.place(f"{ours}.0").removesuffix(".0")
        return self.recipe(ours).stored.strip(".")

    def rank(self, stored: str) -> int | None:
        """Which of the rules is the first for a stored path or what is below it; ``None`` where no rule names it."""
        path = path_of(stored)
        if path not in self._ranks:
            begin = ((rank, rule[: len(path)]) for rank, rule in enumerate(self._stored))
            self._ranks[path] = next((rank for rank, rule in begin if rule == path), None)
        return self._ranks[path]

    def beginnings(self) -> frozenset[str]:
        """The first parts of all stored paths that a rule names."""
        return frozenset(rule[0] for rule in self._stored if rule)

    def slots(self, state: Mapping[str, Tensor], stored: Container[str] = ()) -> dict[str, Tensor]:
        """Our state with stacked tensors in rows or pieces of these, but for those that are stored as one.

        A row is called ``name.0``, ``name.1`` ..., and its pieces ``name.0.0``, ``name.0.1`` ...
        """
        slots: dict[str, Tensor] = {}
        for name, tensor in state.items():
            if (pieces := self._pieces.get(path_of(name))) is None or self.recipe(name).stored in stored:
                slots[name] = tensor
                continue
            for row, whole in enumerate(tensor):
                cut = whole.chunk(pieces) if pieces > 1 else (whole,)
                slots |= {slot_name(name, row, piece, pieces): part for piece, part in enumerate(cut)}
        return slots

    def owner(self, slot: str) -> str:
        """The name of the tensor that a slot is a row of, or a piece of one; itself, where it is none."""
        return slot.rsplit(".", self._levels.get(path_of(slot), 0))[0]

    def stack(self, slots: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Our state out of slots."""
        rows: dict[str, list[Tensor]] = {}
        for slot, tensor in slots.items():
            rows.setdefault(self.owner(slot), []).append(tensor)
        return {name: tensors[0] if name in slots else self._stacked(name, tensors) for name, tensors in rows.items()}

    def _stacked(self, name: str, tensors: list[Tensor]) -> Tensor:
        pieces = self._pieces[path_of(name)]
        rows = [torch.cat(tensors[start : start + pieces]) for start in range(0, len(tensors), pieces)]
        return torch.stack(rows)

    def recipe(self, name: str) -> Recipe:
        """How our tensor, or a row of a stacked one, is stored."""
        if (known := self._recipes.get(name)) is not None:
            return known
        parts = name.split(".")
        spelled = [(part, "*") if part.isdigit() else (part,) for part in parts]  # rules may name a number
        lengths = range(len(parts), 0, -1)
        path = next((path for length in lengths for path in product(*spelled[:length]) if path in self._rules), None)
        if path is None:
            return Recipe((name,), stored=name)
        rule, rest = self._rules[path], parts[len(path) :]
        indices = [part for part, wanted in zip(parts, path) if wanted == "*"]
        stored, *targets = (".".join([fill(template, indices), *rest]) for template in (rule.stored, *rule.targets))
        return self._recipes.setdefault(name, replace(rule, stored=stored, targets=tuple(targets)))

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
