"""What inputs are, and what their answers belong to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from transept.batch.inputs import Inputs, Item, Reading
from transept.errors import FileError, InputError, TranseptError
from transept.tables.text import IMAGES


def items(*paths: Path, **reading: Any) -> list[Item]:
    return [item for group in Inputs([*map(str, paths)], Reading(**reading)).groups() for item in group]


def shown(found: list[Item]) -> list[tuple[Any, dict[str, Any]]]:
    return [(str(i.value) if isinstance(i.value, TranseptError) else i.value, dict(i.about)) for i in found]


@pytest.mark.parametrize(("text", "expected"), [(b"a", 1), (b"a\n", 1), (b"a\nb", 2), (b"a\n\nb\n", 3)])
def test_inputs_are_counted_with_or_without_a_last_line_end(tmp_path: Path, text: bytes, expected: int) -> None:
    path = tmp_path / "texts.txt"
    path.write_bytes(text)
    assert Inputs([str(path)], Reading()).count() == expected == len(items(path))


def test_first_groups_are_short_so_that_answers_come_soon(tmp_path: Path) -> None:
    lines, table = tmp_path / "texts.txt", tmp_path / "texts.csv"
    lines.write_text("".join(f"text {number}\n" for number in range(1500)))
    table.write_text("text\n" + lines.read_text())
    for path, least in ((lines, 64), (table, 63)):
        groups = [*Inputs([str(path)], Reading()).groups()]
        assert len(groups[0]) == least
        assert max(map(len, groups)) == 512
        assert [item.value for group in groups for item in group] == [f"text {number}" for number in range(1500)]


def test_lines_have_numbers_and_rows_their_columns(tmp_path: Path) -> None:
    lines, rows = tmp_path / "a.txt", tmp_path / "b.jsonl"
    lines.write_text("x\ny\n")
    rows.write_text('{"id": 7, "text": "z", "label": 1}\n"w"\n{"text": "v"}\n{"id": null, "text": "u"}\n')
    assert shown(items(lines)) == [("x", {"number": 1, "text": "x"}), ("y", {"number": 2, "text": "y"})]
    assert shown(items(rows)) == [
        ("z", {"id": 7, "text": "z", "label": 1}),
        ("w", {"number": 2, "text": "w"}),
        ("v", {"number": 3, "text": "v"}),
        ("u", {"number": 4, "id": None, "text": "u"}),
    ]
    both = items(lines, rows)
    assert [item.about.get("number") for item in both] == [1, 2, None, 4, 5, 6]
    assert {item.about["file"] for item in both} == {str(lines), str(rows)}
    assert shown(items(rows, id="label"))[0] == ("z", {"label": 1, "id": 7, "text": "z"})


@pytest.mark.parametrize(
    ("row", "reading", "expected"),
    [
        ({"Text": "x"}, {}, "x"),
        ({"body": "x", "text": "y"}, {"column": "body"}, "x"),
        ({"text": "x", "text_pair": "y", "id": 1}, {"columns": ("text text_pair?",)}, {"text": "x", "text_pair": "y"}),
        ({"text": "x", "id": 1}, {"columns": ("text text_pair?",)}, "x"),
        ({"context": "x", "question": "y", "n": 1}, {"columns": ("question context",)}, {"question": "y", "context": "x"}),
        ({"path": "x", "n": 1}, {"columns": ("image", "path")}, "x"),
    ],
)
def test_what_is_read_of_a_row(tmp_path: Path, row: dict[str, Any], reading: dict[str, Any], expected: Any) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(row))
    assert [item.value for item in items(path, **reading)] == [expected]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.parquet"])
def test_a_table_whose_column_cannot_be_told_lists_its_columns(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.endswith("jsonl"):
        path.write_text('{"one": "x", "two": "y"}\n')
    elif name.endswith("parquet"):
        parquet.write_table(pyarrow.table({"one": ["x"], "two": ["y"]}), path)
    else:
        path.write_text("one\ttwo\nx\ty\n".replace("\t", "\t" if "tsv" in name else ","))
    with pytest.raises(InputError, match=rf"{name}: it cannot be told which column.*'one', 'two'\. Pass --column"):
        items(path)
    with pytest.raises(InputError, match=r"there is no column 'onne'\. Did you mean 'one'"):
        items(path, column="onne")
    with pytest.raises(InputError, match="there is no column 'key'"):
        items(path, column="one", id="key")
    assert shown(items(path, column="one", id="two")) == [("x", {"two": "y", "one": "x"})]


def test_a_row_that_holds_no_input_fails_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": 1, "text": "x"}\n{"id": 2, "txt": "y"}\n')
    good, bad = shown(items(path))
    assert good[0] == "x"
    assert bad == (
        "it cannot be told which column is the input; there are: 'id', 'txt'. Pass --column NAME.",
        {"id": 2, "txt": "y"},
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "photos/more").mkdir(parents=True)
    for name in ("b.jpg", "a.PNG", "notes.txt", "c.wav", "d.raw", ".hidden.png", "more/e.png"):
        (tmp_path / "photos" / name).write_bytes(b"x")
    return tmp_path / "photos"


@pytest.mark.parametrize(
    ("glob", "taken", "skipped"),
    [
        (None, ["a.PNG", "b.jpg"], ["c.wav", "d.raw", "notes.txt"]),
        ("*.jpg", ["b.jpg"], []),
        ("**/*", ["a.PNG", "b.jpg", "d.raw", "more/e.png"], ["c.wav", "notes.txt"]),
        ("*.raw", ["d.raw"], []),
        ("*.txt", [], ["notes.txt"]),
    ],
)
def test_what_is_no_input_of_a_folder_is_skipped(folder: Path, glob: str | None, taken: list[str], skipped: list[str]) -> None:
    inputs = Inputs([str(folder)], Reading(media=IMAGES, glob=glob))
    assert inputs.paths == [str(folder / name) for name in taken]
    assert inputs.skipped == [str(folder / name) for name in skipped]
    assert [dict(item.about) for group in inputs.groups() for item in group] == [{"file": path} for path in inputs.paths]


@pytest.mark.parametrize("glob", ["/x", ""])
def test_patterns_that_are_none(folder: Path, glob: str) -> None:
    with pytest.raises(InputError, match="no pattern of names"):
        Inputs([str(folder)], Reading(glob=glob))


def test_paths_of_a_table_may_be_relative_to_it(folder: Path) -> None:
    table = folder / "table.csv"
    table.write_text(f"file,who\na.PNG,me\n{folder / 'b.jpg'},you\nabsent.png,us\n")
    found = items(table, media=IMAGES, columns=("file",))
    assert [item.value for item in found] == [str(folder / "a.PNG"), str(folder / "b.jpg"), "absent.png"]
    assert dict(found[0].about) == {"number": 1, "file": "a.PNG", "who": "me"}


def test_pictures_in_a_table_are_not_written_with_their_answers(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    rows = {"image": [{"bytes": b"x", "path": "a.png"}], "raw": [b"y"], "label": [1]}
    parquet.write_table(pyarrow.table(rows), path)
    (item,) = items(path, media=IMAGES, columns=("image",))
    assert item.value == {"bytes": b"x", "path": "a.png"}
    assert dict(item.about) == {"number": 1, "image": {"path": "a.png"}, "label": 1}


def test_files_that_cannot_be_read_as_rows(tmp_path: Path) -> None:
    document = tmp_path / "a.json"
    document.write_text('[{"text": "x"}]')
    with pytest.raises(InputError, match="one document, and not one input a line"):
        items(document)
    assert [item.value for item in items(document, form="lines")] == ['[{"text": "x"}]']
    with pytest.raises(FileError, match="no such file"):
        items(tmp_path / "none.csv")
