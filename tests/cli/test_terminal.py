"""Aligned, shortened, counted."""

from __future__ import annotations

import sys

import pytest

from transept.cli.terminal import Style, bar, columns, shorten, table
from transept.environment.units import count, size


def test_tables_align_wide_and_coloured_cells():
    style = Style(sys.stdout)
    style.on = True
    lines = table([["a", style("1", "red")], ["日本", "22"], ["e\u0301", "3"]], right=(1,))
    assert [columns(line) for line in lines] == [8, 8, 8]
    assert table([]) == []
    assert table([["a"], ["b", "c"]]) == ["a", "b  c"]


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("short", 5, "short"),
        ("longer", 5, "long…"),
        ("日本語日本語", 5, "日本…"),
        ("a\nb\x1b[31m", 20, "a b [31m"),
        ("", 5, ""),
    ],
)
def test_texts_are_shortened(text, width, expected):
    assert shorten(text, width) == expected
    assert columns(shorten(text, width)) <= width


def test_bars():
    assert bar(0) == ""
    assert bar(1, 4) == bar(7, 4) == "████"
    assert bar(1e-9, 4) == "▏"
    assert bar(0.5, 3) == "█▌"


@pytest.mark.parametrize(("number", "expected"), [(0, "0"), (1234, "1.234 k"), (22713216, "22.71 M"), (7 * 10**9, "7 B")])
def test_counts(number, expected):
    assert count(number) == expected


@pytest.mark.parametrize(("number", "expected"), [(0, "0 B"), (999, "999 B"), (90868376, "90.9 MB"), (5e15, "5e+03 TB")])
def test_sizes(number, expected):
    assert size(number) == expected
