"""All that there is to say about a model's checkpoint names, as one value, whose tables are read in both directions.

A table maps dotted paths of the checkpoint, or of the tree of modules, to ours: ``*`` stands for an index, the longest rule
wins, and what no rule names keeps its name. A value is a path, a pair ``(path, nested table)`` that scopes the rules below it,
an operation that can be undone (see :mod:`transept.checkpoint.keys`), or a function that makes one of these from a config.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from transept.checkpoint.keys import KeyMap, Table, flattened, made_for
from transept.checkpoint.paths import PathTree, join, matches, respell


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
        exact: parts of our names whose tensors stay float32 in a model of bfloat16, too.
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
    exact: tuple[str, ...] = ()
    heads: frozenset[str] = frozenset()
    base: str = ""
    children: tuple[Child, ...] = ()
    within: Names | None = None

    def below(self, ours: str, stored: str | None = None, *, loose: bool = False, tree: str | None = None) -> Names:
        """These names below a prefix of our names, and of the stored ones (the same where it is not given).

        With ``loose`` a checkpoint may lack the stored prefix or its beginning, as that of a backbone alone does. ``tree`` is
        the prefix in the tree of modules, where that is another than the stored one.
        """
        return Names(children=(Child(ours, ours if stored is None else stored, self, loose, tree),))

    def __or__(self, other: Names) -> Names:
        """What is said of two parts of one model."""
        joined: dict[str, Any] = {}
        for name in _JOINED:
            one, more = getattr(self, name), getattr(other, name)
            joined[name] = one + more if isinstance(one, tuple) else one | more
        return Names(**joined, base=self.base or other.base)

    def of(self, config: Any) -> Names:
        """The names of a model with this config."""
        ties = self.ties if config.tie_word_embeddings else {}
        return replace(self, table=made_for(self.table, config), files=made_for(self.files, config), ties=ties)

    @cached_property
    def keys(self) -> KeyMap:
        """The table, ready to be asked in both directions."""
        return KeyMap(self._whole_table())

    def _whole_table(self) -> Table:
        children = {child.stored: (child.ours, {"": "", **child.names._whole_table()}) for child in self.children}
        return children | dict(self.table)

    @cached_property
    def placement(self) -> KeyMap:
        """Where the parts of the model hang, below the places of the models that it is made of."""
        first = {child.place: child.ours for child in self.children if child.place not in self.table}
        for child in self.children:
            if not child.place and child.names.within:  # its parts are this model's, in its order
                first |= {name: join(child.ours, name) for name in child.names.within.placement.beginnings()}
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
        own = self.within.placement.ours(name)[0]
        for child in self.within.children:
            if not child.place and own.startswith(f"{child.ours}."):
                return join(child.ours, child.names.dialect(own.removeprefix(f"{child.ours}.")))
        return own

    @cached_property
    def tied(self) -> dict[str, str]:
        """Our names -> the names of ours whose tensors they share, those of all children too."""
        inner = ((child.ours, pair) for child in self.children for pair in child.names.tied.items())
        return {join(ours, name): join(ours, source) for ours, (name, source) in inner} | self.ties

    def is_written(self, name: str) -> bool:
        """Whether a file holds our name: not what is tied, and not what is computed and never read."""
        return name not in self.tied and not (self.is_fixed(name) and self._leaves_out(self.keys.recipe(name).stored))

    def _leaves_out(self, name: str) -> bool:
        """Whether a stored name is never read, here or as a child's."""
        return self.ignores(name) or any(child.names._leaves_out(inner) for child, inner in self._stored_inside(name))

    def canonical(self, stored: Iterable[str]) -> dict[str, str]:
        """The names that the table knows -> the stored names, in whatever spelling these are."""
        spelled = {name: self._respelled(name) for name in stored}
        names = {new: name for name, new in sorted(spelled.items(), key=lambda pair: pair[0] == pair[1])}  # today's counts
        if self.base:
            ordered = sorted(names.items(), key=lambda item: item[0].startswith(f"{self.base}."))  # a task's namesakes give way
            names = {name.removeprefix(f"{self.base}."): file for name, file in ordered}
        for child in self.children:
            names = child.canonical(names, self.heads)
        return names

    @cached_property
    def _spellings(self) -> tuple[PathTree[str], PathTree[str]]:
        """Other spellings of stored names -> today's: whole paths, and what may stand at any place.

        The names of the tree are read too.
        """
        rules = flattened(self.files if self.within is None else self.table)
        tree = {rule.targets[0]: name for name, rule in rules.items() if rule.is_plain}
        tree |= {child.place: child.stored for child in self.children}
        inside = {place for place, stored in tree.items() if f"{stored}.".startswith(f"{place}.")}
        tree = {place.removeprefix(f"{self.base}."): tree[place] for place in tree.keys() - rules.keys() - inside}
        whole, anywhere = PathTree[str](), PathTree[str]()
        for old, new in (tree | {old: rule.targets[0] for old, rule in flattened(self.legacy).items()}).items():
            path = tuple(old.removeprefix("**.").split("."))
            (anywhere if old.startswith("**.") else whole).add(path, new)
        return whole, anywhere

    def _respelled(self, name: str) -> str:
        """A stored name in today's spelling, with the prefix that it has; of several spellings the longest counts."""
        whole, anywhere = self._spellings
        prefix = f"{self.base}." if self.base and name.startswith(f"{self.base}.") else ""
        parts = name.removeprefix(prefix).split(".")
        best = whole.walk(parts)[0] if parts[0] in whole.root.below or "*" in whole.root.below else whole.root
        size, start = len(best.path) if best is not None else 0, 0
        for place, part in enumerate(parts):
            node = anywhere.walk(parts[place:])[0] if part in anywhere.root.below else None
            if node is not None and len(node.path) >= size:
                best, size, start = node, len(node.path) + 1, place
        return name if best is None or best.value is None else prefix + respell(parts, start, best.path, best.value)

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
        return any(child.names.skips(inner) for child, inner in self._stored_inside(name))

    def is_fixed(self, name: str) -> bool:
        """Whether our name is not trained and has a value of its own."""
        if self.within is not None:
            return self.within.is_fixed(self.dialect(name))
        return name in self.fixed or any(child.names.is_fixed(inner) for child, inner in self._inside(name))

    def is_wide(self, name: str, *, in_bfloat16: bool = False) -> bool:
        """Whether our name's tensor stays float32 in a model of float16, or in one of bfloat16."""
        if self.within is not None:
            return self.within.is_wide(self.dialect(name), in_bfloat16=in_bfloat16)
        wide = any(f".{part}." in f".{name}." for part in (*self.exact, *(() if in_bfloat16 else self.wide)))
        return wide or any(child.names.is_wide(inner, in_bfloat16=in_bfloat16) for child, inner in self._inside(name))

    def _inside(self, name: str) -> Iterable[tuple[Child, str]]:
        """The children that our name belongs to, and what they call it."""
        for child in self.children:
            if name.startswith(prefix := f"{child.ours}.".lstrip(".")):
                yield child, name.removeprefix(prefix)

    def _stored_inside(self, name: str) -> Iterable[tuple[Child, str]]:
        """The children that a stored name belongs to, and the name in their files."""
        for child in self.children:
            if name.startswith(prefix := f"{child.stored}.".lstrip(".")):
                yield child, name.removeprefix(prefix)


_JOINED = tuple(name for name in Names.__dataclass_fields__ if name not in ("base", "within"))


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
