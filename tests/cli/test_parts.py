"""Work in parts, into a directory: interrupted anywhere, shared by processes, and byte for byte what one run makes."""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import time
from contextlib import redirect_stderr
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.forked import Forked
from tests.pipelines.test_text_generation import writer_at
from tests.thorough import in_turn
from transept.batch import parts as module

WORDS = ["i love this", "bad cat", "the dog is good", "a book", "this film"]
pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs locks and signals of Unix")


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """A file of lines, of which one is no text, and a table."""
    lines, table = tmp_path / "a.txt", tmp_path / "b.jsonl"
    lines.write_bytes(b"".join(f"{WORDS[n % 5]} {'a' * (n % 7)}\n".encode() for n in range(60)) + b"bad \xff\nlast")
    rows = ({"key": n, "title": f"t{n}", "text": WORDS[n % 5]} for n in range(50))
    table.write_text("".join(f"{json.dumps(row)}\n" for row in rows) + '{"key": 7, "title": "t", "txt": ""}\n')
    return [lines, table]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def rows(folder: Path) -> list[dict]:
    parquet = pytest.importorskip("pyarrow.parquet")
    return [row for path in sorted(folder.glob("*.parquet")) for row in parquet.read_table(path).to_pylist()]


@pytest.fixture
def embed(encoder, files, tmp_path) -> list:
    pytest.importorskip("pyarrow")
    return ["embed", *files, "--model", encoder, "--part-size", "400B", "--output", tmp_path / "parts"]


def test_parts_are_together_the_rows_of_one_run(command, embed, files, encoder, tmp_path):
    whole = tmp_path / "whole.parquet"
    assert command("embed", "--model", encoder, *files, "--output", whole).code == 1
    for number in (3, 1, 2):
        done = command(*embed, "--shard", f"{number}/3")
        assert done.code in (0, 1)
    expected, found = pytest.importorskip("pyarrow.parquet").read_table(whole).to_pylist(), rows(tmp_path / "parts")
    assert len(found) == len(expected) == 113
    names = sorted(path.name for path in (tmp_path / "parts").iterdir())
    assert names[0] == "_job.json"
    assert all(module._PART.match(name) and name.endswith(".parquet") for name in names[1:])
    for one, other in zip(found, expected, strict=True):
        assert (one["error"], one.get("key"), one.get("text")) == (other["error.message"], other["key"], other["text"])
        if one["error"] is None:
            np.testing.assert_allclose(one["embedding"], other["embedding"], atol=1e-6)
    assert [(row["file"][-5:], row["number"]) for row in found[58:62]] == [("a.txt", n) for n in range(59, 63)]
    assert found[60]["error"] == "is not UTF-8 text (byte 4)."
    assert found[60]["embedding"] is None
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "parts").iterdir()}
    done = command(*embed)
    assert (done.code, done.err) == (1, "")
    assert done.out == f"{tmp_path / 'parts'}: 111 answered, 2 failed, in {len(before) - 1} parts\n"
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "parts").iterdir()} == before


def test_columns_that_are_kept_and_another_job(command, embed, files, tmp_path):
    line = ["embed", files[1], *embed[3:], "--keep", "key,title"]
    done = command(*line, "--json")
    counts = {"output": str(tmp_path / "parts"), "inputs": 51, "failed": 1, "parts": 8, "missing": 0}
    assert json.loads(done.out)["inputs"] == 51
    assert json.loads(done.out) | {"parts": 8} == counts
    found = rows(tmp_path / "parts")
    assert {tuple(row) for row in found} == {("key", "title", "error", "embedding")}
    assert [row["key"] for row in found] == [*range(50), 7]
    kept = contents(tmp_path / "parts")
    for more, told in (
        (["--keep", "key"], "`keep` was \"['key', 'title']\" and is \"['key']\""),
        (["--part-size", "500B"], "`part_size` was '400' and is '500'"),
        (["--normalize"], "`normalize` was not given and is 'True'"),
    ):
        for resume in ([], ["--resume"]):
            done = command(*line, *more, *resume)
            assert (done.code, len(done.complaints)) == (1, 1)
            assert told in done.err
    before = files[1].stat()
    os.utime(files[1], ns=(before.st_atime_ns, before.st_mtime_ns + 1))  # no byte of its ends need have changed
    assert "what 'b.jsonl' holds has changed" in command(*line).err
    os.utime(files[1], ns=(before.st_atime_ns, before.st_mtime_ns))
    assert command(*line).code == 1
    files[1].write_text(files[1].read_text().replace("book", "film"))
    assert "what 'b.jsonl' holds has changed" in command(*line).err
    assert contents(tmp_path / "parts") == kept


def test_all_parts_have_the_same_columns_of_the_same_types(command, encoder, tmp_path):
    """Also where a column is empty in a part, or where its first rows tell less than others do."""
    parquet, pyarrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    lines, table = tmp_path / "a.jsonl", tmp_path / "b.parquet"
    rows_ = [{"id": n, "title": None if n < 15 else "t", "more": None, "text": WORDS[n % 5]} for n in range(100)]
    rows_[80] |= {"id": "x"}  # behind what is looked at
    rows_[90] |= {"more": 7}
    lines.write_text("".join(f"{json.dumps(row)}\n" for row in rows_))
    numbers = pyarrow.array([None] * 70 + [7] * 10, "int32")
    parquet.write_table(pyarrow.table({"id": numbers, "text": ["a cat"] * 80, "tags": [["x"]] * 80}), table, row_group_size=70)
    line = ["embed", lines, table, "--model", encoder, "--part-size", "1kB", "--output"]
    assert command(*line, tmp_path / "parts").code == 1
    paths = sorted((tmp_path / "parts").glob("*.parquet"))
    plain = [parquet.read_schema(path).remove_metadata() for path in paths]
    assert len(plain) > 5
    for schema in plain:
        types = {field.name: str(field.type) for field in schema if field.name not in ("tags", "embedding")}
        assert list(types) == ["file", "id", "title", "more", "text", "number", "error"]
        assert {name for name, kind in types.items() if kind != "string"} == {"id", "number"}
        assert types["id"] == types["number"] == "int64"
    found = rows(tmp_path / "parts")
    told = "the column 'id' holds 'x', but its type is int64. Pass --keep id:string,... to another directory."
    assert [(at, row["error"], row["id"]) for at, row in enumerate(found) if row["error"]] == [(80, told, None)]
    assert (found[90]["more"], found[-1]["id"]) == ("7", 7)
    assert command(*line, tmp_path / "other", "--keep", "id:string,text").code == 0
    assert [row["id"] for row in rows(tmp_path / "other")][79:82] == ["79", "x", "81"]
    assert "there is no column 'id:integer'" in command(*line, tmp_path / "third", "--keep", "id:integer").err


def test_vectors_of_half_the_bytes(command, embed, encoder, files, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    assert command(*embed, "--store", "float16").code == 1
    path, *_ = sorted((tmp_path / "parts").glob("*.parquet"))
    assert str(parquet.read_schema(path).field("embedding").type) == "fixed_size_list<element: halffloat>[32]"
    assert command(*embed[:-1], tmp_path / "whole").code == 1
    for one, other in zip(rows(tmp_path / "parts"), rows(tmp_path / "whole"), strict=True):
        if one["error"] is None:
            np.testing.assert_array_equal(one["embedding"], np.asarray(other["embedding"], np.float16))
    assert "`store` was 'float16' and is not given" in command(*embed).err.replace("`store` was not", "")
    line = ["embed", files[1], "--model", encoder, "--output", tmp_path / "a.npy", "--store", "float16"]
    assert command(*line).code == 1
    assert np.load(tmp_path / "a.npy").dtype == np.float16
    assert "--store needs --output" in command("embed", files[1], "--store", "float16").err


def test_a_vector_that_half_the_bytes_cannot_hold_is_an_error() -> None:
    from transept.cli.run import _halves

    vectors = [np.array([1.0, -65504.0], np.float32), np.array([1.0, -65505.0], np.float32)]
    whole, failed = _halves(iter, vectors)
    assert whole is vectors[0]
    assert "too large for float16" in str(failed)


@pytest.mark.parametrize("verb", ["run", "rerank", "generate"])
def test_other_verbs(command, classifier, encoder, files, tmp_path, verb):
    pytest.importorskip("pyarrow")
    more = {
        "run": ["text-classification", "--model", classifier, "--file"],
        "rerank": ["--model", encoder, "--query", "the cat"],
        "generate": [
            "--model",
            writer_at(str(tmp_path / "writer")) if verb == "generate" else "",
            "--max-new-tokens",
            2,
            "--file",
        ],
    }
    more["rerank"] += files
    line = [verb, *more[verb], *(files if verb != "rerank" else []), "--output", f"{tmp_path / 'parts'}{os.sep}"]
    done = command(*line)
    assert done.code == 1
    assert "111 answered, 2 failed, in 2 parts" in done.out
    found = rows(tmp_path / "parts")
    assert [row["number"] for row in found[:62]] == [*range(1, 63)]
    column = {"run": "answer.label", "rerank": "score", "generate": "answer.text"}[verb]
    assert sum(row[column] is not None for row in found) == 111


def test_without_pyarrow_parts_are_lines_of_json(command, embed, tmp_path, monkeypatch):
    monkeypatch.setattr("transept.cli.parts.importlib.util.find_spec", lambda name: None)
    assert command(*embed).code == 1
    paths = sorted((tmp_path / "parts").glob("part-*.jsonl"))
    found = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    assert len(found) == 113
    assert found[60]["error"] == {"code": "format", "message": "is not UTF-8 text (byte 4)."}
    assert len(found[0]["embedding"]) == 32
    assert command(*embed, "--check").code == 1  # which tells of the rows that failed
    assert "missing" not in command(*embed, "--check").out


def test_what_is_not_whole_is_told(command, embed, tmp_path):
    assert "parts" in command(*embed).out
    first, second, third, *_ = sorted((tmp_path / "parts").glob("*.parquet"))
    whole = first.read_bytes()
    first.write_bytes(whole[:-20])
    third.write_bytes(second.read_bytes())
    second.unlink()
    done = command(*embed, "--check")
    assert (done.code, len(done.complaints)) == (1, 3)
    assert f"{first}: cannot be read as Parquet" in done.complaints[0]
    assert f"{second}: is not there" in done.complaints[1]
    assert f"{third}: holds" in done.complaints[2]
    assert "2 parts are missing" in done.out
    first.unlink()
    third.unlink()
    assert command(*embed).err.count("transept: error") <= 1
    assert command(*embed, "--check").err == ""
    assert first.read_bytes() == whole


def test_a_broken_file_leaves_the_others_alone(command, encoder, files, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pytest.importorskip("pyarrow").table({"text": WORDS})
    parquet.write_table(table, tmp_path / "good.parquet", row_group_size=2)
    whole = (tmp_path / "good.parquet").read_bytes()
    (tmp_path / "bad.parquet").write_bytes(whole[:-30])
    done = command(
        "embed", tmp_path / "bad.parquet", tmp_path / "good.parquet", "--model", encoder, "--output", tmp_path / "parts"
    )
    assert (done.code, len(done.complaints)) == (1, 1)
    assert f"{tmp_path / 'bad.parquet'}: cannot be read as Parquet" in done.err
    assert done.out == f"{tmp_path / 'parts'}: 5 answered, in 3 parts, 1 parts are missing\n"
    assert [row["text"] for row in rows(tmp_path / "parts")] == WORDS


def test_a_broken_row_group_leaves_the_others_alone(command, encoder, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pytest.importorskip("pyarrow").table({"text": [f"{word} {n}" for n in range(3) for word in WORDS]})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=5, use_dictionary=False, compression="NONE")
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    place = data.index(b"i love this 1") - 30
    data[place : place + 20] = b"\xff" * 20
    (tmp_path / "a.parquet").write_bytes(data)
    done = command("embed", tmp_path / "a.parquet", "--model", encoder, "--output", tmp_path / "parts")
    assert (done.code, len(done.complaints)) == (1, 1)
    assert f"{tmp_path / 'a.parquet'}: cannot be read as Parquet" in done.err
    assert done.out == f"{tmp_path / 'parts'}: 10 answered, in 2 parts, 1 parts are missing\n"


@pytest.mark.parametrize("count", in_turn([20_000, 1_000_000], 1 / 50, whole=[20_000]))
def test_memory_does_not_grow_with_the_rows(encoder, process, tmp_path, count):
    """Most of what is held at a time is a part, of which there are ten and more."""
    pytest.importorskip("pyarrow")
    with open(tmp_path / "many.txt", "w") as file:
        file.writelines(f"{WORDS[n % 5]} {n}\n" for n in range(count))
    line = ["embed", tmp_path / "many.txt", "--model", encoder, "--part-size", f"{count}B", "--output", tmp_path / "parts"]
    told = process(line, piece=512, measures=True).told()
    counts, sizes = told.split("\n")[:-2], json.loads(told.split("\n")[-2])
    assert f"{count} answered" in counts[0]
    assert len(sizes) > 10
    first = sizes[len(sizes) // 10 : len(sizes) // 5]  # when the library has made what it keeps
    assert max(sizes[len(sizes) // 5 :]) - max(first) < 50 * 2**20


def main_of(line: list[str], log: str, *, limit: int | None = None, piece: int = 3, measures: bool = False) -> None:
    """Run the command, with files of a ``limit`` of bytes; where it ``measures``, its memory after each part is told."""
    import psutil
    import torch

    from transept.cli import parts, work
    from transept.cli.main import main

    torch.set_num_threads(1)
    work.PIECE, module.WAIT = piece, 0.05
    sizes, answer = list[int](), parts.PartWork._answer

    def measured(*given: Any) -> None:
        answer(*given)
        sizes.append(psutil.Process().memory_info().rss)

    if measures:
        parts.PartWork._answer = measured
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    with open(log, "w") as sys.stdout, redirect_stderr(sys.stdout):
        code = main(line)
        print(json.dumps(sizes) if measures else "")
    sys.stdout = sys.__stdout__
    sys.exit(code)


@pytest.fixture
def process(tmp_path):
    numbers = count()
    return lambda line, **settings: Forked(main_of, [*map(str, line)], log=tmp_path / f"log{next(numbers)}", **settings)


@pytest.fixture
def undisturbed(embed, process, tmp_path) -> dict[str, bytes]:
    assert "111 answered" in process([*embed[:-1], tmp_path / "undisturbed"]).told()
    return contents(tmp_path / "undisturbed")


@pytest.mark.parametrize("kills", in_turn([2, 50], 1 / 50, whole=[2]))
def test_what_is_killed_goes_on(embed, process, undisturbed, tmp_path, kills):
    rest = random.Random(kills)
    for _ in range(kills):
        running, deadline = process(embed), time.monotonic() + 30
        before = len(list((tmp_path / "parts").glob("*")))
        while time.monotonic() < deadline and len(list((tmp_path / "parts").glob("*"))) <= before and running.is_alive():
            time.sleep(0.005)
        time.sleep(rest.uniform(0, 0.1))
        running.kill()
        running.join()
    assert "111 answered, 2 failed" in process(embed).told()
    assert contents(tmp_path / "parts") == undisturbed


def test_processes_share_a_directory_and_some_are_killed(embed, process, undisturbed, tmp_path):
    running = [process(embed) for _ in range(4)]
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not list((tmp_path / "parts").glob("part-*")):
        time.sleep(0.01)
    for one in running[:2]:
        one.kill()
        one.join()  # it may not have begun to tell
    told = [one.told() for one in running[2:]]
    assert all("111 answered, 2 failed" in each for each in told), told
    assert contents(tmp_path / "parts") == undisturbed


def test_a_full_disk_stops_the_parts_that_do_not_fit(embed, process, undisturbed, tmp_path):
    sizes = sorted(len(data) for name, data in undisturbed.items() if name.startswith("part"))
    done = process(embed, limit=sizes[len(sizes) // 2])
    told = done.told()
    assert done.exitcode == 1
    assert "cannot be written (file too large)" in told
    assert "are missing" in told
    assert list((tmp_path / "parts").glob("part-*.parquet"))
    process(embed).told()
    assert contents(tmp_path / "parts") == undisturbed


def test_a_directory_that_may_not_be_written_to(command, embed, tmp_path, monkeypatch):
    (tmp_path / "parts").mkdir()
    kept = os.open

    def refuse(path, flags, *more, **rest):
        if str(tmp_path / "parts") in str(path) and flags & os.O_CREAT:
            raise OSError(30, "Read-only file system")
        return kept(path, flags, *more, **rest)

    def links(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(os, "replace", links)
    done = command(*embed)
    assert (done.code, done.out, len(done.complaints)) == (1, "", 1)
    assert "cannot be written (read-only file system)" in done.err


def test_what_does_not_go_together(command, embed, files, encoder, tmp_path):
    line = ["embed", "--model", encoder]
    for shard in ("17/16", "0/16", "text", "1/0", "-1/3", "1/2/3", "1.0/2", "/", "1/"):
        done = command(*embed, f"--shard={shard}")
        assert (done.code, f"{shard!r} is not one of N shards" in done.err) == (2, True)
    assert "'much' is no size" in command(*line, *files, "--part-size", "much").err
    assert "--shard needs --output, a directory" in command(*line, *files, "--shard", "1/2").err
    assert "--check needs --output, a directory" in command(*line, *files, "--check", "--output", "a.npy").err
    assert "needs files" in command(*line, "--output", tmp_path / "parts", stdin=b"a cat\n").err
    rank = ["rerank", "--query", "x", *files, "--model", encoder, "--top-k", 2, "--output", tmp_path / "parts"]
    assert "--top-k is for one file" in command(*rank).err
    (tmp_path / "file").write_text("")
    assert "cannot be made into a directory" in command(*line, *files, "--output", tmp_path / "file").err
    assert not (tmp_path / "parts").exists()
