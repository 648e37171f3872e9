"""Files that answers are written to: whole or not there, and never through a link that somebody else has put there."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest

from transept.batch.output_file import OutputFile
from transept.errors import FileError

RUN = ("run", "text-classification", "--model")


@pytest.fixture
def secret(tmp_path) -> Path:
    path = tmp_path / "secret"
    path.write_text("do not touch")
    return path


def test_no_planted_link_is_written_through(command, classifier, encoder, tmp_path, secret):
    """Neither one of the output's name, nor one of the name that an interrupted run leaves."""
    for line, name in (((*RUN, classifier), "answers.jsonl"), (("embed", "--model", encoder), "vectors.npy")):
        for planted in (name, f"{name}.partial"):
            (tmp_path / planted).symlink_to(secret)
        done = command(*line, "--output", tmp_path / name, stdin=b"i love this\n")
        assert (done.code, done.err) == (0, "")
        assert secret.read_text() == "do not touch"
        assert not (tmp_path / name).is_symlink()


def test_what_an_interruption_leaves_goes_through_no_link(tmp_path, secret):
    output = tmp_path / "answers.jsonl"
    Path(f"{output}.partial").symlink_to(secret)
    told: list[str] = []
    with pytest.raises(KeyboardInterrupt), OutputFile(str(output), told=told.append) as file:
        assert stat.S_ISREG(os.lstat(file.partial).st_mode)
        file.write(b"1\n", 1)
        raise KeyboardInterrupt
    assert secret.read_text() == "do not touch"
    assert Path(f"{output}.partial").read_text() == "1\n"
    assert not Path(f"{output}.partial").is_symlink()
    assert "1 answers are kept" in told[0]


@pytest.mark.skipif(os.name == "nt", reason="needs locks of Unix")
@pytest.mark.parametrize("resume", [False, True])
def test_two_runs_do_not_write_to_one_file(tmp_path, resume):
    output = str(tmp_path / "answers.jsonl")
    with OutputFile(output) as file:
        file.write(b"1\n", 1)
        with pytest.raises(FileError, match="another process"), OutputFile(output, resume=resume):
            pass
    assert Path(output).read_bytes() == b"1\n"
    assert os.listdir(tmp_path) == ["answers.jsonl"]


def test_going_on_from_nothing_or_from_a_link_is_refused(command, classifier, tmp_path, secret):
    line = (*RUN, classifier, "i love this", "--output", tmp_path / "answers.jsonl", "--resume")
    assert "nothing to go on from" in command(*line).err
    (tmp_path / "answers.jsonl.partial").symlink_to(secret)
    assert "nothing to go on from" in command(*line).err
    assert command(*RUN, classifier, "x", "--resume").code == 2


@pytest.mark.parametrize(
    "content", [b"no array", np.zeros((3, 7), np.float32), np.zeros((3, 32), np.float64), np.array([{}], object)], ids=str
)
def test_going_on_from_other_vectors_is_refused(command, encoder, tmp_path, content):
    output = tmp_path / "vectors.npy"
    line = ("embed", "--model", encoder, "--output", output)
    assert command(*line, stdin=b"a cat\n").code == 0
    output.unlink()
    with open(f"{output}.partial", "wb") as file:
        file.write(content) if isinstance(content, bytes) else np.save(file, content)
    before = Path(f"{output}.partial").read_bytes()
    done = command(*line, "--resume", stdin=b"a cat\n")
    assert done.code == 1
    assert f"{output}.partial" in done.err
    assert len(done.complaints) == 1
    assert Path(f"{output}.partial").read_bytes() == before


@pytest.mark.parametrize("suffix", [".npy", ".jsonl"])
def test_going_on_where_all_is_answered_gives_the_whole(command, encoder, tmp_path, suffix):
    output = tmp_path / f"vectors{suffix}"
    line, stdin = ("embed", "--model", encoder, "--output", output), b"a cat\na dog\n"
    assert command(*line, stdin=stdin).code == 0
    whole = output.read_bytes()
    output.rename(f"{output}.partial")
    assert command(*line, "--resume", stdin=stdin).out == f"{output}: 2 answered\n"
    assert output.read_bytes() == whole


@pytest.mark.parametrize("suffix", [".npy", ".jsonl", ".parquet"])
def test_what_was_killed_before_its_first_answer_begins(command, encoder, tmp_path, suffix):
    """While the model was loaded, there were empty files."""
    output, texts = tmp_path / f"vectors{suffix}", tmp_path / "a.txt"
    texts.write_text("a cat\na dog\n")
    line = ("embed", "--model", encoder, texts, "--output", output)
    assert command(*line).code == 0
    whole = output.read_bytes()
    output.unlink()
    note = json.loads((tmp_path / f"{output.name}.note.json").read_text())
    note.pop("whole")
    (tmp_path / f"{output.name}.note.json").write_text(json.dumps(note))
    for name in (f"{output}.partial", tmp_path / "vectors.index.jsonl.partial"):
        Path(name).touch()
    (tmp_path / "vectors.index.jsonl").unlink(missing_ok=True)
    assert command(*line, "--resume").out == f"{output}: 2 answered\n"
    assert output.read_bytes() == whole


def test_half_a_line_is_answered_anew(command, classifier, tmp_path):
    output = tmp_path / "answers.jsonl"
    line = (*RUN, classifier, "i love this", "bad cat", "the dog", "--output", output)
    assert command(*line).code == 0
    whole = output.read_bytes()
    output.unlink()
    Path(f"{output}.partial").write_bytes(whole[:-9])
    assert command(*line, "--resume").out == f"{output}: 3 answered\n"
    assert [line[:30] for line in output.read_bytes().splitlines()] == [line[:30] for line in whole.splitlines()]
    assert sorted(os.listdir(tmp_path)) == [output.name, f"{output.name}.note.json"]


def test_a_place_that_may_not_be_written(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    output = tmp_path / "answers.jsonl"
    with pytest.raises(FileError, match="cannot be written"), OutputFile(str(output)) as file:
        file.write(b"1\n", 1)
        monkeypatch.setattr(os, "replace", refuse)
    assert Path(f"{output}.partial").read_bytes() == b"1\n"
