"""Rows that lie in files: the same as in memory, in flat memory, and gone afterwards."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from transept.errors import FileError, FormatError, InputError, MissingExtraError
from transept.tables import arrow
from transept.tables.arrow import ArrowRows, RowWriter
from transept.tables.dataset import TableDataset, split_by_hash
from transept.tables.files import load_dataset_file
from transept.training.data.checks import warn_of_equal_rows
from transept.training.data.loader import lengths_of

ROWS: list[dict[str, Any]] = [
    {"text": "one", "number": 1, "share": 0.5, "ids": [1, 2, 3], "is": True, "mixed": 1},
    {"text": None, "number": 2**70, "share": 1.0, "ids": [], "is": False, "mixed": "a"},
    {"text": "zwei €", "more": {"a": [1, {"b": None}]}, "ids": [2**40], "mixed": [0.5]},
    {"text": "", "number": -1, "ids": [7], "chat": [{"role": "user", "content": "x"}, {"role": "assistant"}]},
    {"ids": None, "number": None, "is": None, "mixed": False, "text": "five", "share": 3.0},
]


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are begun by the second row."""
    monkeypatch.setattr(arrow, "BATCH_BYTES", 60)


def written(rows: list[dict[str, Any]]) -> Any:
    writer = RowWriter()
    for row in rows:
        writer.add(row)
    return TableDataset(writer.finish(), list(writer.columns))


def test_rows_in_files_are_those_in_memory(small_batches: None) -> None:
    rows = ROWS * 5
    plain, filed = TableDataset(rows), written(rows)
    assert isinstance(filed.rows, ArrowRows)
    assert filed.column_names == plain.column_names
    assert [*filed] == [*plain]
    assert filed.keys().tolist() == plain.keys().tolist()
    assert filed.column("mixed") == plain.column("mixed")
    assert [repr(value) for value in filed.column("number")] == [repr(value) for value in plain.column("number")]
    for part in (slice(3, 20, 4), slice(None, None, -1), slice(7, 7)):
        assert [*filed[part]] == [*plain[part]]
        assert [*filed[part].select([1, 0])] == [*plain[part].select([1, 0])] if len(plain[part]) else True
    assert [*filed.select([3, -1, 3])] == [*plain.select([3, -1, 3])]
    odd = filed.select(range(1, 25, 2)).select([5, 2, -1])
    assert [*odd] == [plain[11], plain[5], plain[23]]
    assert [*odd[1:]] == [*odd.select([1, 2])] == [plain[5], plain[23]]
    assert [filed[2:9].place(index) for index in range(2)] == ["data, row 3", "data, row 4"]
    assert [list(part) for part in split_by_hash(filed, 0.4)] == [list(part) for part in split_by_hash(plain, 0.4)]
    assert [*pickle.loads(pickle.dumps(filed))] == [*plain]
    kinds = [[str(column.array.type) for column in filed.rows._batch(n).values()] for n in range(len(filed.rows.batches))]
    assert sum(before != after for before, after in pairwise(kinds)) < 12  # a column of several kinds is one of JSON for good


def test_lengths_are_known_without_reading(small_batches: None) -> None:
    rows = [{"input_ids": [1] * n, "labels": n} for n in range(1, 40)]
    filed = written(rows)
    assert lengths_of(filed[3:], "length", "input_ids").tolist() == list(range(4, 40))
    assert lengths_of(filed, "labels", "input_ids").tolist() == list(range(1, 40))


CONTENT = {
    "a.jsonl": "\n\n".join(json.dumps({"text": f"row {n}", "label": n % 3}) for n in range(90)),
    "b.csv": "text,label\n" + "".join(f'"row\n{n}",{n % 3}\n' for n in range(90)),
    "c.tsv": "text\tlabel\n" + "".join(f"row {n}\t{n % 3 if n % 4 else ''}\n" for n in range(90)),
    "d.txt": "".join(f"row {n}\n\n" for n in range(90)),
    "e.conll": "\n".join(f"row O\n{n} B-X\n" for n in range(90)),
}


@pytest.mark.parametrize("name", CONTENT)
def test_large_files_are_read_as_small_ones(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / name
    path.write_text(CONTENT[name])
    plain = load_dataset_file(path)
    monkeypatch.setattr(arrow, "BATCH_BYTES", 200)
    filed = load_dataset_file(path)
    assert isinstance(filed.rows, ArrowRows)
    assert not isinstance(plain.rows, ArrowRows)
    assert [*filed] == [*plain]
    assert filed.lines == plain.lines
    assert filed.place(50) == plain.place(50)
    assert warn_of_equal_rows(filed[:5], filed[10:]) == 0


def test_files_go_with_the_rows_and_the_process(small_batches: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    filed: Any = written(ROWS * 3)
    file = filed.rows.file
    part = filed[2:4]
    del filed
    assert len([*part]) == 2
    assert not os.listdir(tmp_path)  # it has no name that a killed process could leave behind
    del part
    assert file.closed
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(FileError, match=r"none: cannot be written .*TMPDIR"):
        written(ROWS * 3)


def test_many_rows_without_the_package(monkeypatch: pytest.MonkeyPatch, small_batches: None) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert len(written(ROWS[:1])) == 1
    with pytest.raises(MissingExtraError, match=r"transept\[train\]"):
        written(ROWS * 3)


def test_names_of_columns_that_are_no_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the name of a column, 'a\\ud800', holds half of a surrogate pair"):
        TableDataset([{"a\ud800": 1}])
    path = tmp_path / "a.csv"
    path.write_text("a\\ud800,b\n1,2\n")
    with pytest.raises(FormatError, match=r"a.csv:1: the line is not text in unicode.escape"):
        load_dataset_file(path, encoding="unicode_escape")
    path = tmp_path / "a.jsonl"
    path.write_text('{"a\\ud800": 1}\n')
    with pytest.raises(FormatError, match=r"a.jsonl:1: holds half of a surrogate pair"):
        load_dataset_file(path)


PROBE = """
import sys
import pyarrow, pyarrow.ipc
from transept.tables.files import load_dataset_file
from transept.tables.dataset import split_by_hash
def anonymous():
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("RssAnon"))
load_dataset_file(sys.argv[1])  # what is allocated once
before = anonymous()
dataset = load_dataset_file(sys.argv[2])
train, held_out = split_by_hash(dataset, 0.1)
print(len(dataset), anonymous() - before)
"""


@pytest.mark.skipif(
    not os.path.exists("/proc/self/status"), reason="the system does not tell how much memory a process has used"
)
@pytest.mark.parametrize("kind", ["txt", "jsonl", "csv"])
def test_memory_does_not_grow_with_the_file(kind: str, tmp_path: Path) -> None:
    """Beside the files' own pages, a row takes some bytes for the order of a split: far less than its text."""
    lines = {"txt": "{0}", "jsonl": '{{"text": "{0}", "label": 1}}', "csv": "{0},1"}[kind]
    paths = []
    for number, count in enumerate((8_000, 24_000)):
        paths.append(tmp_path / f"{number}.{kind}")
        paths[-1].write_text(
            "text,label\n" * (kind == "csv") + "".join(lines.format(f"{n} " + "word " * 200) + "\n" for n in range(count))
        )
    found = subprocess.run([sys.executable, "-c", PROBE, *map(str, paths)], capture_output=True, text=True, check=True).stdout
    rows, grown = map(int, found.split())
    assert rows == 24_000
    assert grown < paths[1].stat().st_size / 2  # 24 MB of text; as Python's objects it took 3 to 5 times as much
