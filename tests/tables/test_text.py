"""Rows of files that are read as they are worked on: what is in them, what is wrong with them, and how much is held."""

from __future__ import annotations

import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from transept.errors import FormatError, TranseptError
from transept.tables import text as tables
from transept.tables.parquet import parquet_columns, read_parquet
from transept.tables.text import PlacedRow, read_rows


def read(text: str | bytes, kind: str) -> list[PlacedRow]:
    data = text.encode() if isinstance(text, str) else text
    return [row for group in read_rows(io.BytesIO(data), "a", kind) for row in group]


def values(text: str | bytes, kind: str) -> list[Any]:
    return [str(row.value) if isinstance(row.value, TranseptError) else row.value for row in read(text, kind)]


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("a,b\n1,2\n3,4", "csv", [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]),
        ("\ufeffa,b\r\n1,2\r\n", "csv", [{"a": "1", "b": "2"}]),
        ('a,b\n"x, y","p\nq"\n\n"say ""so""",\n', "csv", [{"a": "x, y", "b": "p\nq"}, {"a": 'say "so"', "b": ""}]),
        ("a;b\n1,5;2\n", "csv", [{"a": "1,5", "b": "2"}]),
        ("a,,c\n1,2,3\n", "csv", [{"a": "1", "column2": "2", "c": "3"}]),
        ("a\n", "csv", []),
        ('a\tb\n"x\ty\n', "tsv", [{"a": '"x', "b": "y"}]),
        ('{"a": 1}\n\n"x"\n[2]\n', "jsonl", [{"a": 1}, "x", [2]]),
        ("x\n\ny", "lines", ["x", "", "y"]),
    ],
)
def test_rows_are_what_the_files_hold(text: str, kind: str, expected: list[Any]) -> None:
    assert values(text, kind) == expected


def test_rows_know_their_lines() -> None:
    found = read('a,b\n1,2\n"x\ny",3\n\n5\n6,7\n', "csv")
    assert [row.where for row in found] == ["a:2", "a:3", "a:6", "a:7"]
    assert str(found[2].value) == "the line has 1 values, but the first one has 2."
    assert [row.where for row in read('"x"\n\n{\n', "jsonl")] == ["a:1", "a:3"]


def test_a_bad_row_is_an_error_in_its_place() -> None:
    assert values(b"a,b\n1,\xff\n2,3,4\n5,6\n", "csv") == [
        "is not UTF-8 text (byte 1).",
        "the line has 3 values, but the first one has 2. Put values that hold the separator between double quotes.",
        {"a": "5", "b": "6"},
    ]
    assert values(b'{"a": 1, "a": 2}\n\xff\n3\n', "jsonl") == [
        "holds the key 'a' twice in one object.",
        "is not UTF-8 text (byte 0).",
        3,
    ]


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (b"", "csv", "a: is empty"),
        (b"", "lines", "a: is empty"),
        (b"a\0b", "csv", "a: is no text file"),
        ("a,b\n1,2\n".encode("utf-16"), "csv", "a: is no text file"),
        (b"a,b,a\n1,2,3\n", "csv", "a:1: has two columns of the name 'a'"),
        (b"a,\xff\n1,2\n", "csv", "a:1: is not UTF-8 text"),
        (b'a,b\n1,2\n3,"x" y\n', "csv", "a:3: is not CSV"),
        (b'a,b\n1,2\n3,"x\n5,6\n', "csv", "a:4: is not CSV: unexpected end of data"),
    ],
)
def test_a_bad_file_is_an_error_that_names_the_place(text: bytes, kind: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read(text, kind)


@pytest.mark.parametrize("text", [b"a,b\n" + b"x" * 3000, b'a,b\n"' + b"x\n" * 3000, b'"x\n","x\n",' * 500], ids=[0, 1, 2])
def test_no_row_is_longer_than_what_is_held(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    monkeypatch.setattr(tables, "MAX_LINE", 1000)
    monkeypatch.setattr(tables, "BLOCK", 100)
    with pytest.raises(FormatError, match=r"more than 1000 characters|larger than field limit"):
        read(text, "csv")


def test_parquet_has_its_own_types(tmp_path: Path) -> None:
    path = str(tmp_path / "a.parquet")
    parquet.write_table(pyarrow.table({"id": [7, 8], "text": ["x", None], "more": [[1.5], []]}), path)
    assert parquet_columns(path) == (["id", "text", "more"], 2)
    (found,) = read_parquet(path)
    assert [row.value for row in found] == [{"id": 7, "text": "x", "more": [1.5]}, {"id": 8, "text": None, "more": []}]
    assert [row.where for row in found] == [f"{path}:1", f"{path}:2"]
    Path(path).write_bytes(Path(path).read_bytes()[:-20])
    for look in (parquet_columns, lambda path: next(read_parquet(path))):
        with pytest.raises(FormatError, match="cannot be read as Parquet"):
            look(path)
    parquet.write_table(pyarrow.Table.from_arrays([pyarrow.array([1]), pyarrow.array([2])], names=["a", "a"]), path)
    with pytest.raises(FormatError, match="two columns of the name 'a'"):
        parquet_columns(path)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_a_file_is_not_held_as_a_whole(tmp_path: Path, kind: str) -> None:
    path, text = tmp_path / f"a.{kind}", "word " * 200
    if kind == "csv":
        path.write_text("id,text\n" + "".join(f"{number},{text}\n" for number in range(20000)))
    elif kind == "jsonl":
        path.write_text("".join(json.dumps({"id": number, "text": text}) + "\n" for number in range(20000)))
    else:  # of one dictionary, which takes no room
        parquet.write_table(pyarrow.table({"id": range(20000), "text": [text] * 20000}), path)
    tracemalloc.start()
    try:
        count = 0
        with open(path, "rb") as file:
            for group in read_parquet(str(path)) if kind == "parquet" else read_rows(file, "a", kind):
                count += len(group)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 20000
    assert most < 4 * 2**20  # of 20 MB
