"""Rows of answers: what each belongs to, as JSON lines, comma-separated values and Parquet."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet

from transept.batch.answers import Ranking, Rows, Vectors, row_of
from transept.batch.inputs import Item
from transept.batch.output_file import OutputFile
from transept.errors import InputError

ERROR = InputError("it is wrong.")
ITEMS = [
    Item("x", "a:1", {"id": 7, "stars": 5, "tags": ["p"]}),
    Item("y", "a:2", {"id": 8, "stars": 1.5, "tags": None}),
    Item(ERROR, "a:3", {"number": 3}),
    Item("z", "a:4", {"id": "nine", "stars": 2**60, "more": {"deep": [1]}}),
]
ANSWERS: list[Any] = [{"label": "A", "score": 0.5}, {"label": "B", "score": 0.25}, ERROR, {"label": "C", "score": float("nan")}]


def written(path: Path, answers: Sequence[Any] = ANSWERS, name: str = "answer") -> Path:
    with OutputFile(str(path)) as file:
        rows = Rows(file, name)
        rows.begin()
        rows.write([*zip(ITEMS[:2], answers[:2])])
        rows.write([*zip(ITEMS[2:], answers[2:])])
        rows.end()
        assert rows.failed == 1
    return path


def test_lines_of_json(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in written(tmp_path / "a.jsonl").read_text().splitlines()]
    assert rows == [
        {"id": 7, "stars": 5, "tags": ["p"], "answer": {"label": "A", "score": 0.5}},
        {"id": 8, "stars": 1.5, "tags": None, "answer": {"label": "B", "score": 0.25}},
        {"number": 3, "error": {"code": "input", "message": "it is wrong."}},
        {"id": "nine", "stars": 2**60, "more": {"deep": [1]}, "answer": {"label": "C", "score": None}},
    ]
    assert [*tmp_path.iterdir()] == [tmp_path / "a.jsonl"]


def test_comma_separated_values(tmp_path: Path) -> None:
    with open(written(tmp_path / "a.csv"), newline="") as file:
        header, *rows = csv.reader(file)
    names = ["id", "stars", "tags", "answer.label", "answer.score", "number", "error.code", "error.message", "more.deep"]
    assert header == names
    assert rows == [
        ["7", "5", '["p"]', "A", "0.5", "", "", "", ""],
        ["8", "1.5", "", "B", "0.25", "", "", "", ""],
        ["", "", "", "", "", "3", "input", "it is wrong.", ""],
        ["nine", str(2**60), "", "C", "", "", "", "", "[1]"],
    ]
    assert [*tmp_path.iterdir()] == [tmp_path / "a.csv"]


def test_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns of several kinds of values are texts, whichever group of rows they come up in."""
    whole = parquet.read_table(written(tmp_path / "a.parquet"))
    monkeypatch.setattr("transept.batch.answers.GROUP", 1)
    alone = parquet.read_table(written(tmp_path / "b.parquet"))
    assert whole.schema == alone.schema
    assert whole.to_pylist() == alone.to_pylist()
    assert whole["id"].to_pylist() == ["7", "8", None, "nine"]
    assert whole["stars"].to_pylist() == [5, 1.5, None, 2**60]
    assert whole["tags"].to_pylist() == [["p"], None, None, None]
    assert whole["more.deep"].to_pylist() == [None, None, None, [1]]
    assert whole["answer.score"].to_pylist() == [0.5, 0.25, None, None]
    assert whole["error.message"].to_pylist() == [None, None, "it is wrong.", None]


def test_a_column_with_the_name_of_the_answer_is_kept_too() -> None:
    item = Item("x", "", {"answer": "gold", "error": 1, "id": 7})
    assert row_of(item, "answer", 3) == {"input_answer": "gold", "input_error": 1, "id": 7, "answer": 3}


@pytest.mark.parametrize("ending", [".npy", ".parquet"])
def test_vectors_with_what_they_belong_to(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a{ending}"
    vectors = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    with OutputFile(str(path)) as file, OutputFile(str(tmp_path / "a.index.jsonl")) as index:
        sink = Vectors(file, index, 3)
        sink.begin()
        sink.write([(item, item.value if item is ITEMS[2] else vector) for item, vector in zip(ITEMS, vectors)])
        sink.end()
        assert sink.failed == 1
    if ending == ".npy":
        np.testing.assert_array_equal(np.load(path)[[0, 1, 3]], vectors[[0, 1, 3]])
        assert np.isnan(np.load(path)[2]).all()
        rows = [json.loads(line) for line in (tmp_path / "a.index.jsonl").read_text().splitlines()]
        assert rows[0] == dict(ITEMS[0].about)
        assert rows[2] == {"number": 3, "error": {"code": "input", "message": "it is wrong."}}
    else:
        found = parquet.read_table(path)
        np.testing.assert_array_equal(np.stack(found["embedding"].take([0, 1, 3]).to_numpy()), vectors[[0, 1, 3]])
        assert found["embedding"][2].as_py() is None
        assert found["id"].to_pylist() == ["7", "8", None, "nine"]
        assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("ending", [".jsonl", ".csv"])
def test_a_ranking_is_sorted_at_its_end(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a{ending}"
    with OutputFile(str(path)) as file:
        ranking = Ranking(file, 2)
        ranking.begin()
        ranking.write([(item, score) for item, score in zip(ITEMS, (0.1, 0.3, ERROR, 0.2))])
        ranking.end()
    first, *rest = path.read_text().splitlines()
    if ending == ".csv":
        assert first == "rank,score,index,id,stars,tags,more.deep"
        assert len(rest) == 2
    else:
        assert json.loads(first) == {"rank": 1, "score": 0.3, "index": 1, "id": 8, "stars": 1.5, "tags": None}
        assert json.loads(rest[0])["id"] == "nine"


def test_going_on_needs_the_inputs_that_were_answered(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    partial = written(path).rename(f"{path}.partial")
    whole = partial.read_bytes()

    def resumed(items: list[Item]) -> int:
        with OutputFile(str(path), resume=True) as file:
            rows = Rows(file)
            count = rows.begin()
            rows.check(items[:count])
            rows.write([*zip(items[count:], ANSWERS[count:])])
            rows.end()
            assert rows.failed == 1
        return count

    for cut, kept in ((0, 4), (9, 3), (len(whole) - 5, 0)):
        partial.write_bytes(whole[: len(whole) - cut])
        assert resumed(ITEMS) == kept
        assert path.read_bytes() == whole
    for wrong in (
        [ITEMS[1], *ITEMS[1:]],
        [Item("x", "a:1", {"id": 70, "stars": 5, "tags": ["p"]}), *ITEMS[1:]],
        [Item("x", "a:1", {"id": 7}), *ITEMS[1:]],
    ):
        partial.write_bytes(whole)
        with pytest.raises(InputError, match="another input was answered in the place of a:"):
            resumed(wrong)
        assert partial.read_bytes() == whole
