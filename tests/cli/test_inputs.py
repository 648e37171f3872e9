"""How the command line reads what it is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from transept.cli import streams


@pytest.mark.parametrize(("text", "expected"), [(b"a", 1), (b"a\n", 1), (b"a\nb", 2), (b"a\n\nb\n", 3)])
def test_inputs_are_counted_with_or_without_a_last_line_end(tmp_path: Path, text: bytes, expected: int) -> None:
    path = tmp_path / "texts.txt"
    path.write_bytes(text)
    assert streams.count_inputs([str(path)], media=False) == expected
    assert sum(map(len, streams.from_files([str(path)], None, media=False))) == expected


def test_first_groups_are_short_so_that_answers_come_soon(tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"text {number}\n" for number in range(1500)))
    groups = list(streams.from_files([str(path)], None, media=False))
    assert [len(group) for group in groups] == [64, 128, 256, 512, 512, 28]
    assert [item.value for group in groups for item in group] == [f"text {number}" for number in range(1500)]
