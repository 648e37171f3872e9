"""Lists of steps that every new token passes: those made from settings, and those a caller brings."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Self, TypeVar

from transept.errors import InputTypeError, TranseptWarning

T = TypeVar("T")


class Chain(list[T]):
    """A list of callables, applied in order."""

    def with_custom(self, custom: Iterable[T] | None) -> Self:
        """A chain in which the caller's steps take the place of those of the same class, and the others follow.

        Raises:
            InputTypeError: something that cannot be called.
        """
        steps = list(custom or ())
        for step in steps:
            if not callable(step):
                raise InputTypeError(f"{str(step)[:80]!r} of type {type(step).__name__} cannot be called on ids and scores.")
        chosen = {type(step): step for step in reversed(steps)}
        for step in self:
            if type(step) in chosen:
                name = type(step).__name__
                warnings.warn(f"The {name} passed in replaces the one made from the settings.", TranseptWarning, stacklevel=2)
        kept = [chosen.get(type(step), step) for step in self]
        return type(self)([*kept, *(step for step in steps if not any(step is other for other in kept))])
