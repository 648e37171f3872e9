"""An output is gone on with only by what it was begun with."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from transept.batch.inputs import Inputs, Reading
from transept.batch.output_file import Note, fingerprint, of_inputs, of_model
from transept.errors import InputError

ABOUT = {"inputs": [{"name": "a.csv", "size": 3}], "model": {"model": "m", "files": "1"}, "options": {"top_k": 2}}


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"inputs": [{"name": "b.csv", "size": 3}]}, "the inputs were a.csv and are b.csv"),
        ({"inputs": [{"name": "a.csv", "size": 4}]}, "what 'a.csv' holds has changed"),
        ({"model": {"model": "m", "files": "2"}}, "the model's files have changed"),
        ({"model": {"model": "n", "files": "1"}}, "`model` was 'm' and is 'n'"),
        ({"options": {"top_k": 3}}, "`top_k` was '2' and is '3'"),
        ({"options": {"top_k": 2, "column": "x"}}, "`column` was not given and is 'x'"),
        ({"options": {}}, "`top_k` was '2' and is not given"),
    ],
)
def test_what_differs_is_named(tmp_path: Path, other: dict, told: str) -> None:
    output = str(tmp_path / "a.jsonl")
    Note(output, ABOUT).begin()
    Note(output, ABOUT).check()
    with pytest.raises(InputError, match=f"a.jsonl: was begun with something else: {told}"):
        Note(output, ABOUT | other).check()


@pytest.mark.parametrize("content", [None, "", "{", "[]", "7"])
def test_an_output_without_a_note_is_refused(tmp_path: Path, content: str | None) -> None:
    note = Note(str(tmp_path / "a.jsonl"), ABOUT)
    if content is not None:
        note.path.write_text(content)
    with pytest.raises(InputError, match=r"has no note \(a.jsonl.note.json\)"):
        note.check()
    assert note.whole() is None


@pytest.mark.parametrize("content", ['{"inputs": 7, "model": [], "options": "x"}', '{"inputs": [7, {"name": [1]}]}', "{}"])
def test_a_note_of_anything_is_one_of_something_else(tmp_path: Path, content: str) -> None:
    note = Note(str(tmp_path / "a.jsonl"), ABOUT)
    note.path.write_text(content)
    with pytest.raises(InputError, match="something else"):
        note.check()


def test_a_whole_output_is_known_until_it_changes(tmp_path: Path) -> None:
    output = tmp_path / "a.jsonl"
    output.write_text("1\n2\n")
    note = Note(str(output), ABOUT)
    note.begin()
    assert note.whole() is None
    note.end(2, 1, output)
    assert note.whole() == (2, 1)
    assert Note(str(output), ABOUT | {"options": {}}).whole() is None
    note.check()
    output.write_text("1\n3\n")
    assert note.whole() is None


def test_no_secret_stands_in_a_note(tmp_path: Path) -> None:
    note = Note(str(tmp_path / "a"), ABOUT | {"options": {"token": "hf_1", "model_kwargs": {"token": "hf_1"}}})
    note.begin()
    assert "hf_1" not in note.path.read_text()
    note.check()
    Note(str(tmp_path / "a"), ABOUT | {"options": {"token": "hf_2", "model_kwargs": {"token": "hf_2"}}}).check()


def test_files_are_told_apart_by_their_ends(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(200_000))
    before = fingerprint(path)
    for place in (0, 65_535, 199_999):
        data = bytearray(200_000)
        data[place] = 1
        path.write_bytes(data)
        assert fingerprint(path) != before
    path.write_bytes(bytes(200_001))
    assert fingerprint(path) != before


def test_inputs_are_the_same_wherever_they_are(tmp_path: Path) -> None:
    """Tables by what they hold, so that a copy is gone on with; media by their names, sizes and times."""
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "a.csv").write_text("text\nx\n")
        (tmp_path / place / "b.png").write_bytes(b"x")
        os.utime(tmp_path / place / "b.png", (1, 1))

    def told(place: str) -> str:
        reading = Reading(media=(".png",), columns=("text",))
        return json.dumps(of_inputs(Inputs([str(tmp_path / place / "a.csv"), str(tmp_path / place / "b.png")], reading)))

    assert told("one") == told("two")
    os.utime(tmp_path / "two/b.png", (2, 2))
    assert told("one") != told("two")


def test_a_model_is_told_by_its_files(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "1_Pooling/config.json", "log.jsonl", "checkpoint-5/config.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    before = of_model(tmp_path)
    for name in ("log.jsonl", "checkpoint-5/config.json"):  # of the training that goes on there
        (tmp_path / name).write_text("{1}")
    assert of_model(tmp_path) == before
    (tmp_path / "1_Pooling/config.json").write_text("{1}")
    assert of_model(tmp_path) != before
