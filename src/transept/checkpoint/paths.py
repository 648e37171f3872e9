"""Dotted paths of modules and tensors, in which ``*`` stands for an index."""

from __future__ import annotations

from collections.abc import Sequence

Path = tuple[str, ...]


def join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix and name else prefix or name


def path_of(name: str) -> Path:
    """The parts of a name, with ``*`` for its indices."""
    return tuple("*" if part.isdigit() else part for part in name.split("."))


def fits(wanted: str, part: str) -> bool:
    return part == wanted or (wanted == "*" and part.isdigit())


def fill(template: str, indices: list[str]) -> str:
    """A path with indices in the place of its ``*``, as far as there are some."""
    for index in indices[: template.count("*")]:
        template = template.replace("*", index, 1)
    return template


def matches(pattern: str, name: str) -> bool:
    """Whether a dotted name is what the pattern stands for, or below it."""
    wanted, parts = pattern.split("."), name.split(".")
    fitting = (part.startswith(want[:-1]) if want.endswith("*") else part == want for want, part in zip(wanted, parts))
    return len(parts) >= len(wanted) and all(fitting)


def place_of(spelling: str, parts: Sequence[str]) -> int | None:
    """Where in a name a spelling begins to fit: at its first part, or anywhere behind ``**.``; ``None`` where it does not."""
    wanted = spelling.removeprefix("**.").split(".")
    last = len(parts) - len(wanted) if spelling.startswith("**.") else 0
    starts = (start for start in range(last + 1) if len(wanted) <= len(parts) and all(map(fits, wanted, parts[start:])))
    return next(starts, None)


def respell(parts: Sequence[str], start: int, old: str, new: str) -> str:
    """A name in which the spelling that fits at a place is replaced by another."""
    wanted = old.removeprefix("**.").split(".")
    stop = start + len(wanted)
    indices = [part for pattern, part in zip(wanted, parts[start:stop], strict=True) if pattern == "*"]
    return ".".join([*parts[:start], *filter(None, [fill(new, indices)]), *parts[stop:]])
