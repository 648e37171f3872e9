"""Cases of which a run of the tests takes a share, in turns, and all of them with `--thorough`.

The turn is a number that the commit gives, so that each commit tests another share. Pytest's header tells it, and `--turn` sets
it, which repeats the choice of a run that failed. A list says how many of its cases a run takes at most, and the share follows:
where there are more families a run takes no more time, but more turns pass until each case was tested once.
"""

from __future__ import annotations

import math
import subprocess
from collections.abc import Container, Iterable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet

ROOT = Path(__file__).parents[1]


def in_turn(cases: Iterable[Any], most: float, *, whole: Container[Any] = (), start: int = 0) -> list[Any]:
    """The cases as parameters of a test, of which each run takes those of `whole` and `most` of the others at most.

    Neighbours are taken in different turns, so that some of a family with many classes run often. Tests of the same cases that
    begin to count at another `start` take different ones.
    """
    cases, number = list(cases), count(start)
    share = _share(sum(case not in whole for case in cases), most)
    return [_param([case], None if case in whole else next(number), share) for case in cases]


def crossed(first: Iterable[Any], second: Iterable[Any], most: float, *, whole: Container[Any] = ()) -> list[Any]:
    """Each of one with each of another as parameters of a test, of which each run takes `most` at most.

    All of `whole`, which are some of the first, are taken every time. What is taken of the others has every one of the second.
    """
    first, second, pairs = list(first), list(second), list[Any]()
    width, places = len(second), count()
    share = _share(sum(case not in whole for case in first) * width, most)
    apart = -(-share // width)  # of so many of the first a run takes one
    for case in first:
        place = None if case in whole else next(places)
        for other, value in enumerate(second):
            number = None if place is None else place * width + (place // apart + other) % width
            pairs.append(_param([case, value], number, share))
    return pairs


def _share(cases: int, most: float) -> int:
    """In how many turns all cases are tested, of which each takes that many at most; a quarter is one case in four turns."""
    return max(1, math.ceil(cases / most))


def _param(cases: list[Any], number: int | None, share: int) -> Any:
    """One parameter set of several, which is taken in every turn or in those of its number."""
    sets = [case if isinstance(case, ParameterSet) else pytest.param(case, id=_name(case)) for case in cases]
    marks = [mark for each in sets for mark in each.marks]
    if number is not None:
        marks.append(pytest.mark.thorough(number, share))
    return pytest.param(
        *(value for each in sets for value in each.values), id="-".join(str(each.id) for each in sets), marks=marks
    )


def _name(value: Any) -> str:
    return str(getattr(value, "name", getattr(value, "__name__", value)))


def is_taken(marks: Iterable[pytest.Mark], turn: int) -> bool:
    """Whether a run of this turn takes a case with these marks: one of each list of cases that it stands in."""
    given = [mark.args for mark in marks]
    return (turn + sum(number for number, _ in given)) % math.prod(share for _, share in given) == 0


def turn_of_commit(root: Path = ROOT) -> int:
    """A number made of the hash of the commit that is checked out; 0 where there is no repository."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
    except OSError:  # no git
        return 0
    return int(done.stdout[:4], 16) if done.returncode == 0 else 0
