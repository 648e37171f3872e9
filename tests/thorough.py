"""Cases of which some run every time, and all of them with `--thorough`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def in_turn(cases: list[Any], *, whole: Sequence[Any] = (), share: int = 3) -> list[Any]:
    """One in ``share`` of the cases, and those of ``whole``; the others with ``--thorough`` alone."""
    return [
        case if number % share == 0 or case in whole else pytest.param(*case.values, id=case.id, marks=pytest.mark.thorough)
        for number, case in enumerate(cases)
    ]


def crossed(first: Iterable[Any], second: Iterable[Any], share: int) -> list[Any]:
    """Each of one with each of another as parameters of a test; all but one in ``share`` run with ``--thorough`` alone.

    What stays has every one of both as long as there are ``share`` of the other.
    """
    return [
        pytest.param(one, other, marks=[pytest.mark.thorough] * bool((i + j) % share), id=f"{_name(one)}-{_name(other)}")
        for i, one in enumerate(first)
        for j, other in enumerate(second)
    ]


def _name(value: Any) -> str:
    return str(getattr(value, "name", value))
