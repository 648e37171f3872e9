"""What a run leaves out another one tests: in as many turns as a share says, each case is taken."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.models.harness import EVERY, FIRST, USED
from tests.thorough import ROOT, crossed, in_turn, is_taken, turn_of_commit


def taken(cases: list[Any], turn: int) -> list[str]:
    return [case.id for case in cases if is_taken(case.marks, turn)]


LISTS = {
    "one in three": (in_turn(EVERY), 3),
    "fewer than a share": (in_turn("abc", share=5), 5),
    "another start": (in_turn(EVERY, share=4, start=3), 4),
    "pairs": (crossed(EVERY, "abcdef", 6), 6),
    "pairs with few of the other": (crossed(["a", "b"], [False, True], 5), 5),
}


@pytest.mark.parametrize(("cases", "share"), LISTS.values(), ids=LISTS)
@pytest.mark.parametrize("first", [0, 4711])
def test_each_case_is_taken_once_in_as_many_turns_as_a_share_says(cases: list[Any], share: int, first: int) -> None:
    found = Counter(name for turn in range(first, first + share) for name in taken(cases, turn))
    assert found == Counter({case.id: 1 for case in cases})
    assert all(len(taken(cases, turn)) <= -(-len(cases) // share) + 1 for turn in range(share))


def test_what_is_whole_is_taken_every_time_and_the_others_once() -> None:
    for cases, share in ((in_turn(EVERY, whole=USED, share=7), 7), (crossed(EVERY, ["a", "b"], 2, whole=USED), 2)):
        found = Counter(name for turn in range(share) for name in taken(cases, turn))
        assert found == Counter(
            {case.id: share if case.values[0] in {used.values[0] for used in USED} else 1 for case in cases}
        )


def test_a_turn_has_every_one_of_pairs() -> None:
    kinds = ["a", "b", "c"]
    for turn in range(3):
        names = [name.rpartition("-") for name in taken(crossed(FIRST, kinds, 3), turn)]
        assert [name for name, _, _ in names] == [case.id for case in FIRST]
        assert {kind for _, _, kind in names} == set(kinds)


def test_cases_of_two_lists_are_taken_in_one_turn() -> None:
    for one in range(4):
        for other in range(6):
            marks = [pytest.mark.thorough(one, 4).mark, pytest.mark.thorough(other, 6).mark]
            assert sum(is_taken(marks, turn) for turn in range(24)) == 1


def test_values_of_cases_and_their_marks_are_kept() -> None:
    (case,) = in_turn([pytest.param(1, "b", id="one", marks=pytest.mark.long)])
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
