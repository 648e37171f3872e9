"""Checkpoint names: one table per family, read in both directions.

A table maps dotted paths of the checkpoint to ours: ``*`` stands for an index, rules are anchored at dots, the longest rule
wins and what no rule names keeps its name. A value is a path, a pair ``(path, nested table)`` that scopes the rules below
it, or an operation: ``Transposed`` and ``Fused``. Because every operation can be undone, what is loaded can be saved
back bit for bit, and two rules that would write one tensor fail when the class is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from transept.errors import InputError

Path = tuple[str, ...]


@dataclass(frozen=True)
class Transposed:
    """Our matrix is stored transposed; vectors are stored as they are."""

    target: str


@dataclass(frozen=True)
class Fused:
    """Several of our tensors are stored as one, joined along their first axis (of the stored one's last, if transposed)."""

    targets: tuple[str, ...]
    transposed: bool = False


Target = str | Transposed | Fused
Table = Mapping[str, "Target | tuple[str, Table]"]


@dataclass(frozen=True)
class Recipe:
    """How one of our tensors is stored: under which name, transposed or not, and as which part of several."""

    stored: str
    transposed: bool = False
    part: int = 0
    parts: tuple[str, ...] = ()

    def take(self, tensor: Tensor, rows: Sequence[int]) -> Tensor:
        """Our tensor out of the stored one; ``rows`` are the lengths of all parts along our first axis."""
        ours = tensor.T if self.transposed and tensor.ndim == 2 else tensor
        return torch.split(ours, list(rows))[self.part] if self.parts else ours

    def stored_shape(self, shapes: Sequence[torch.Size]) -> tuple[int, ...]:
        """The shape of the stored tensor, given the shapes of all of our parts."""
        shape = (sum(s[0] for s in shapes), *shapes[0][1:]) if self.parts else tuple(shapes[0])
        return shape[::-1] if self.transposed and len(shape) == 2 else shape

    def join(self, tensors: Sequence[Tensor]) -> Tensor:
        """The stored tensor out of ours."""
        ours = torch.cat(list(tensors)) if self.parts else tensors[0]
        return ours.T if self.transposed and ours.ndim == 2 else ours


def _flatten(table: Table, stored: str = "", ours: str = "") -> dict[str, Target]:
    flat: dict[str, Target] = {}
    for key, value in table.items():
        name = _join(stored, key)
        if isinstance(value, tuple):
            prefix = _join(ours, value[0])
            if value[0]:
                flat[name] = prefix
            flat |= _flatten(value[1], name, prefix)
        elif isinstance(value, str):
            flat[name] = _join(ours, value)
        elif isinstance(value, Transposed):
            flat[name] = Transposed(_join(ours, value.target))
        else:
            flat[name] = replace(value, targets=tuple(_join(ours, target) for target in value.targets))
    return flat


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix and name else prefix or name


class KeyMap:
    """A table, ready to be asked in both directions.

    Args:
        table: the rules, nested or flat.

    Raises:
        ValueError: two rules write one of our names.
    """

    def __init__(self, table: Table) -> None:
        self._rules: dict[Path, tuple[str, Target, int]] = {}
        for stored, target in _flatten(table).items():
            names = target.targets if isinstance(target, Fused) else (_name(target),)
            for part, ours in enumerate(names):
                path = tuple(ours.split("."))
                if path in self._rules:
                    raise ValueError(f"{stored!r} and {self._rules[path][0]!r} both map to {ours!r}")
                self._rules[path] = (stored, target, part)

    def recipe(self, name: str) -> Recipe:
        """How our tensor of that name is stored."""
        parts = name.split(".")
        path = tuple("*" if part.isdigit() else part for part in parts)
        indices = [part for part in parts if part.isdigit()]
        for length in range(len(path), 0, -1):
            if (rule := self._rules.get(path[:length])) is not None:
                break
        else:
            return Recipe(name)
        stored, target, part = rule
        rest = parts[length:]
        full: Callable[[str], str] = lambda template: ".".join([_fill(template, indices), *rest])  # noqa: E731
        if isinstance(target, Fused):
            return Recipe(full(stored), target.transposed, part, tuple(map(full, target.targets)))
        return Recipe(full(stored), isinstance(target, Transposed))

    def save(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Our state under the checkpoint's names.

        Raises:
            InputError: the state lacks a tensor that is stored as one with others.
        """
        saved: dict[str, Tensor] = {}
        for name, tensor in state.items():
            recipe = self.recipe(name)
            if recipe.stored in saved:
                continue
            if missing := [part for part in recipe.parts if part not in state]:
                raise InputError(f"{name!r} is stored with others as {recipe.stored!r}, but there is no {missing[0]!r}.")
            saved[recipe.stored] = recipe.join([state[part] for part in recipe.parts] or [tensor])
        return saved


def _name(target: Any) -> str:
    return target.target if isinstance(target, Transposed) else target


def _fill(template: str, indices: list[str]) -> str:
    for index in indices[: template.count("*")]:
        template = template.replace("*", index, 1)
    return template
