"""What a run leaves out another one tests: over all turns each case is taken, and in one no more than a list says."""

from __future__ import annotations

import math
import re
import subprocess
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.models.harness import EVERY, FIRST, USED
from tests.thorough import ROOT, crossed, in_turn, is_taken, turn_of_commit


def taken(cases: list[Any], turn: int) -> list[str]:
    return [case.id for case in cases if is_taken(case.marks, turn)]


MANY = [pytest.param(number, id=str(number)) for number in range(len(EVERY) // 2)]
LISTS = {
    "some of many": (in_turn(EVERY, 60), 60),
    "fewer than a run takes": (in_turn("abc", 5), 5),
    "another start": (in_turn(EVERY, 100, start=3), 100),
    "one case in some turns": (in_turn("abc", 0.4), 0.4),
    "pairs": (crossed(EVERY, "abcdef", len(EVERY)), len(EVERY)),
    "pairs of some of the first": (crossed(EVERY, "abcdef", 100), 100),
    "several pairs of each": (crossed(EVERY, "abcdef", 3 * len(EVERY)), 3 * len(EVERY)),
    "few pairs": (crossed(["a", "b"], [False, True], 1), 1),
}


def turns(cases: list[Any]) -> int:
    """In how many turns each case is taken, by its mark."""
    (share,) = {mark.args[1] for case in cases for mark in case.marks if mark.name == "thorough"}
    return share


@pytest.mark.parametrize(("cases", "most"), LISTS.values(), ids=LISTS)
@pytest.mark.parametrize("first", [0, 4711])
def test_each_case_is_taken_once_in_as_many_turns_as_a_list_needs(cases: list[Any], most: float, first: int) -> None:
    share = turns(cases)
    assert share == max(1, math.ceil(len(cases) / most))
    found = Counter(name for turn in range(first, first + share) for name in taken(cases, turn))
    assert found == Counter({case.id: 1 for case in cases})
    assert all(len(taken(cases, turn)) <= math.ceil(most) for turn in range(share))


@pytest.mark.parametrize("make", [in_turn, partial(crossed, second="abcdef")])
def test_a_run_takes_as_many_cases_however_many_there_are(make: Callable[..., list[Any]]) -> None:
    for few, many in ((MANY[:50], MANY), (MANY, EVERY)):
        assert turns(make(few, most=20)) < turns(make(many, most=20))
        for cases in (make(few, most=20), make(many, most=20)):
            assert {len(taken(cases, turn)) for turn in range(turns(cases))} <= {16, 17, 18, 19, 20}


def test_what_is_whole_is_taken_every_time_and_the_others_once() -> None:
    for cases in (in_turn(EVERY, 80, whole=USED), crossed(EVERY, ["a", "b"], 500, whole=USED)):
        share = turns(cases)
        found = Counter(name for turn in range(share) for name in taken(cases, turn))
        assert found == Counter(
            {case.id: share if case.values[0] in {used.values[0] for used in USED} else 1 for case in cases}
        )


@pytest.mark.parametrize("most", [len(FIRST), 2 * len(FIRST) // 3, len(FIRST) // 2, len(FIRST) // 5])
def test_a_turn_has_every_one_of_pairs(most: int) -> None:
    kinds = ["a", "b", "c"]
    cases = crossed(FIRST, kinds, most)
    for turn in range(turns(cases)):
        names = [name.rpartition("-") for name in taken(cases, turn)]
        assert len({name for name, _, _ in names}) == len(names)
        assert {kind for _, _, kind in names} == set(kinds)
        if most == len(FIRST):
            assert [name for name, _, _ in names] == [case.id for case in FIRST]


def test_cases_of_two_lists_are_taken_in_one_turn() -> None:
    for one in range(4):
        for other in range(6):
            marks = [pytest.mark.thorough(one, 4).mark, pytest.mark.thorough(other, 6).mark]
            assert sum(is_taken(marks, turn) for turn in range(24)) == 1


def test_values_of_cases_and_their_marks_are_kept() -> None:
    (case,) = in_turn([pytest.param(1, "b", id="one", marks=pytest.mark.long)], 1)
    assert (case.values, case.id) == ((1, "b"), "one")
    assert [mark.name for mark in case.marks] == ["long", "thorough"]


def test_the_commit_gives_the_turn(tmp_path: Path) -> None:
    assert turn_of_commit(tmp_path) == 0
    for command in ("init -q", "-c user.name=a -c user.email=a@b commit -q --allow-empty -m first"):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert turn_of_commit(tmp_path) == int(head[:4], 16)


def test_cases_are_left_out_by_lists_alone() -> None:
    """No mark beside those that `tests/thorough.py` sets, which could leave a case out for good."""
    pattern = re.compile(r"mark\.thorough\b")
    assert {path.name for path in (ROOT / "tests").rglob("*.py") if pattern.search(path.read_text())} == {
        "thorough.py",
        "test_thorough.py",
    }
