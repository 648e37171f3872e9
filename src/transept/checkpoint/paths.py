"""Dotted paths of modules and tensors, in which ``*`` stands for an index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

Path = tuple[str, ...]
Value = TypeVar("Value")


def join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix and name else prefix or name


class Node(Generic[Value]):
    """A part of the paths of a table: what stands below it, and the value of the path that ends here, if one does."""

    __slots__ = ("below", "path", "rank", "value")

    def __init__(self, rank: int) -> None:
        self.below: dict[str, Node[Value]] = {}
        self.rank = rank  # which path of the table was the first to come through here
        self.path: Path = ()
        self.value: Value | None = None


def below(nodes: Sequence[Node[Value]], part: str) -> list[Node[Value]]:
    """Where one part of a name leads from each of some nodes: to that of an index itself before that of ``*``."""
    reached = []
    for node in nodes:
        if part in node.below:
            reached.append(node.below[part])
        if "*" in node.below and part.isdigit():
            reached.append(node.below["*"])
    return reached


class PathTree(Generic[Value]):
    """Values by paths in which ``*`` stands for an index; a path with the index itself comes before it."""

    def __init__(self) -> None:
        self.root: Node[Value] = Node(0)
        self.size = 0

    def add(self, path: Path, value: Value) -> Value | None:
        """Put a value at a path, and give the one that was there."""
        node = self.root
        for part in path:
            if part not in node.below:
                node.below[part] = Node(self.size)
            node = node.below[part]
        self.size += 1
        before, node.path, node.value = node.value, path, value
        return before

    def at(self, path: Path) -> Value | None:
        """The value at a path, in which ``*`` is written as it is."""
        node = self.root
        for part in path:
            if part not in node.below:
                return None
            node = node.below[part]
        return node.value

    def walk(self, parts: Sequence[str]) -> tuple[Node[Value] | None, list[Node[Value]]]:
        """The node of the longest path that the parts begin with, and the nodes that all of them lead to.

        There may be several: for each index one with itself and one with ``*``.
        """
        nodes = [self.root]
        longest = None if self.root.value is None else self.root
        for part in parts:
            if len(nodes) == 1 and not part.isdigit():  # so are most, without a call
                nodes = [nodes[0].below[part]] if part in nodes[0].below else []
            else:
                nodes = below(nodes, part)
            if not nodes:
                break
            for node in reversed(nodes):
                longest = longest if node.value is None else node
        return longest, nodes


def path_of(name: str) -> Path:
    """The parts of a name, with ``*`` for its indices."""
    return tuple("*" if part.isdigit() else part for part in name.split("."))


def indices_of(path: Path, parts: Sequence[str]) -> list[str]:
    """The indices that stand in a name where the path that fits its beginning has ``*``."""
    return [part for wanted, part in zip(path, parts) if wanted == "*"] if "*" in path else []


def fill(template: str, indices: Sequence[str]) -> str:
    """A path with indices in the place of its ``*``, as far as there are some."""
    for index in indices[: template.count("*")]:
        template = template.replace("*", index, 1)
    return template


def matches(pattern: str, name: str) -> bool:
    """Whether a dotted name is what the pattern stands for, or below it."""
    wanted, parts = pattern.split("."), name.split(".")
    fitting = (part.startswith(want[:-1]) if want.endswith("*") else part == want for want, part in zip(wanted, parts))
    return len(parts) >= len(wanted) and all(fitting)


def respell(parts: Sequence[str], start: int, old: Path, new: str) -> str:
    """A name in which the spelling that fits at a place is replaced by another."""
    rest = parts[start:]
    return ".".join([*parts[:start], *filter(None, [fill(new, indices_of(old, rest))]), *rest[len(old) :]])
