"""All that there is to say about a model's checkpoint names, as one value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from transept.checkpoint.keymap import Fused, KeyMap, Stacked, Table, Transposed, Unflattened, fill, fits

__all__ = ["Child", "Fused", "Names", "Stacked", "Table", "Transposed", "Unflattened", "matches"]


@dataclass(frozen=True, eq=False)
class Names:
    """The names of a model's tensors in a checkpoint: a family states those of its network, a task those of its head.

    Patterns are dotted paths from the beginning of a name; ``*`` stands for one part of it, and a part such as
    ``cross_attn*`` for all that begin so.

    Args:
        table: stored names -> our names; see :mod:`transept.checkpoint.keymap`.
        ties: our names -> the names of ours whose tensors they share.
        legacy: other spellings of parts of stored names -> today's, ``*`` for an index. They are read and never written.
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
    ties: dict[str, str] = field(default_factory=dict)
    legacy: dict[str, str] = field(default_factory=dict)
    ignore: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()
    wide: tuple[str, ...] = ()
    heads: frozenset[str] = frozenset()
    base: str = ""
    children: tuple[Child, ...] = ()

    def below(self, ours: str, stored: str | None = None, *, loose: bool = False) -> Names:
        """These names below a prefix of our names, and of the stored ones (the same where it is not given).

        With ``loose`` a checkpoint may lack the stored prefix or its beginning, as that of a backbone alone does.
        """
        return Names(children=(Child(ours, ours if stored is None else stored, self, loose),))

    def __or__(self, other: Names) -> Names:
        """What is said of two parts of one model."""
        pairs = ((name, getattr(self, name), getattr(other, name)) for name in self.__dataclass_fields__ if name != "base")
        joined: dict[str, Any] = {name: a + b if isinstance(a, tuple) else a | b for name, a, b in pairs}
        return Names(**joined, base=self.base or other.base)

    def untied(self) -> Names:
        """The same names, of which none shares its tensor."""
        return replace(self, ties={})

    @cached_property
    def keys(self) -> KeyMap:
        """The table, ready to be asked in both directions."""
        return KeyMap(self._whole_table())

    def _whole_table(self) -> Table:
        return {child.stored: (child.ours, child.names._whole_table()) for child in self.children} | dict(self.table)

    @cached_property
    def tied(self) -> dict[str, str]:
        """Our names -> the names of ours whose tensors they share, those of all children too."""
        inner = ((child.ours, pair) for child in self.children for pair in child.names.tied.items())
        return {f"{ours}.{name}": f"{ours}.{source}" for ours, (name, source) in inner} | self.ties

    def canonical(self, stored: Iterable[str]) -> dict[str, str]:
        """The names that the table knows -> the stored names, in whatever spelling these are."""
        names = {}
        for name in stored:
            spelled = f".{name}."
            for old, new in self.legacy.items():
                spelled = _respelled(spelled, old, new) if "*" in old else spelled.replace(f".{old}.", f".{new}.")
            names[spelled[1:-1]] = name
        if self.base and any(name.startswith(f"{self.base}.") for name in names):
            names = {name.removeprefix(f"{self.base}."): file for name, file in names.items()}
        for child in self.children:
            names = child.canonical(names, self.heads)
        return names

    def group(self, name: str) -> str | None:
        """The group of our name that a checkpoint may lack as a whole; ``None`` for what must be there."""
        for child, inner in self._inside(name):
            group = child.names.group(inner)
            return None if group is None else f"{child.ours}.{group}"
        for pattern in (*self.optional, *self.absent):
            if matches(pattern, name):
                each = pattern.split(".")[-1] == "*"
                return ".".join(name.split(".")[: pattern.count(".") + 1]) if each else pattern
        return None

    def skips(self, name: str) -> bool:
        """Whether a stored name, as the table knows it, is another head's, of an optional part, or ignored."""
        if any(f".{part}." in f".{name}." for part in self.ignore):
            return True
        if any(matches(pattern, name) for pattern in (*self.optional, *self.heads)):
            return True
        inside = ((child, f"{child.stored}.".lstrip(".")) for child in self.children)
        return any(name.startswith(prefix) and child.names.skips(name.removeprefix(prefix)) for child, prefix in inside)

    def is_fixed(self, name: str) -> bool:
        """Whether our name is not trained and has a value of its own."""
        return name in self.fixed or any(child.names.is_fixed(inner) for child, inner in self._inside(name))

    def is_wide(self, name: str) -> bool:
        """Whether our name's tensor stays float32 in a model of float16."""
        wide = any(f".{part}." in f".{name}." for part in self.wide)
        return wide or any(child.names.is_wide(inner) for child, inner in self._inside(name))

    def _inside(self, name: str) -> Iterable[tuple[Child, str]]:
        """The children that our name belongs to, and what they call it."""
        for child in self.children:
            if name.startswith(f"{child.ours}."):
                yield child, name.removeprefix(f"{child.ours}.")


def _respelled(name: str, old: str, new: str) -> str:
    """A name in which the first part that an older spelling with ``*`` fits is replaced."""
    parts, wanted = name.split("."), old.split(".")
    for start in range(len(parts) - len(wanted) + 1):
        found = parts[start : start + len(wanted)]
        if all(map(fits, wanted, found)):
            indices = [part for pattern, part in zip(wanted, found) if pattern == "*"]
            return ".".join([*parts[:start], fill(new, indices), *parts[start + len(wanted) :]])
    return name


@dataclass(frozen=True, eq=False)
class Child:
    """The names of a model below a prefix; the arguments are those of :meth:`Names.below`."""

    ours: str
    stored: str
    names: Names
    loose: bool = False

    def canonical(self, names: Mapping[str, str], heads: Iterable[str]) -> dict[str, str]:
        """Names -> stored names, of which those of this model are spelled as its table knows them."""
        if self.loose:
            return self._prefixed(names, heads)
        prefix = f"{self.stored}."
        own = {name.removeprefix(prefix): file for name, file in names.items() if name.startswith(prefix)}
        found = {f"{prefix}{name}": own[spelled] for name, spelled in self.names.canonical(own).items()}
        return {name: file for name, file in names.items() if not name.startswith(prefix)} | found

    def _prefixed(self, names: Mapping[str, str], heads: Iterable[str]) -> dict[str, str]:
        """The same where the prefix, or its beginning, may be lacking: it is put before all but the names of heads."""
        # A task may store the model below no prefix, or below another one than is usual.
        prefix, usual = f"{self.stored}.".lstrip("."), f"{self.names.base}."
        if prefix != usual:
            names = {prefix + k.removeprefix(usual) if k.startswith(usual) else k: v for k, v in names.items()}
        rest = prefix
        while rest and not any(name.startswith(rest) for name in names):
            rest = rest.partition(".")[2]
        if rest or not prefix:
            lacking = prefix.removesuffix(rest)
            return {lacking + name if name.startswith(rest) else name: file for name, file in names.items()}
        return {k if any(matches(head, k) for head in heads) else prefix + k: v for k, v in names.items()}


def matches(pattern: str, name: str) -> bool:
    """Whether a dotted name is what the pattern stands for, or below it."""
    wanted, parts = pattern.split("."), name.split(".")
    fits = (part.startswith(want[:-1]) if want.endswith("*") else part == want for want, part in zip(wanted, parts))
    return len(parts) >= len(wanted) and all(fits)
