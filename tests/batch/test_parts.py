"""Parts of files, and who works on them."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest

from transept.batch import parts as module
from transept.batch.inputs import Inputs, Reading
from transept.batch.parts import Claim, Job, Part, plan
from transept.errors import FileError, FormatError, InputError
from transept.tables.text import IMAGES


def write(path: Path) -> Path:
    """Forty rows, some with ends of lines in quotes, with a broken one."""
    texts = [f'text "{number}"' + (",\nmore" if number % 3 else "") for number in range(40)]
    if path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        table = pyarrow.table({"id": list(range(40)), "text": texts})
        pytest.importorskip("pyarrow.parquet").write_table(table, path, row_group_size=7)
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(json.dumps({"id": n, "text": text}) for n, text in enumerate(texts)) + "\n\n{broken\n")
    elif path.suffix == ".csv":
        rows = ('{},"{}"\n'.format(n, text.replace('"', '""')) for n, text in enumerate(texts))
        path.write_text("\ufeffid,text\n" + "".join(rows) + "41,too,many\n")
    elif path.suffix == ".tsv":
        path.write_text("id\ttext\n" + "".join(f'{n}\t"x{n}\n' for n in range(40)) + "41\ttoo\tmany")
    else:
        path.write_bytes("".join(f"text {n}\r\n" for n in range(40)).encode() + b"\xff\n\nlast")
    return path


@pytest.mark.parametrize("size", [1, 30, 200, 10**6])
@pytest.mark.parametrize("ending", [".txt", ".jsonl", ".csv", ".tsv", ".parquet"])
def test_parts_are_together_the_file(tmp_path: Path, ending: str, size: int) -> None:
    path = write(tmp_path / f"a{ending}")
    inputs = Inputs([str(path)], Reading())
    parts, errors = plan(inputs, size)
    assert not errors
    assert [part.name for part in parts] == sorted(part.name for part in parts)
    assert len(parts) == 6 if ending == ".parquet" else (len(parts) > 1) is (size < 10**6)
    whole = [item for group in inputs.groups() for item in group]
    for order in (parts, parts[::-1]):  # any of them first
        found = {part: [item for group in inputs.part(part.path, part.span) for item in group] for part in order}
        together = [item for part in parts for item in found[part]]
        assert [(str(item.value), item.where) for item in together] == [(str(item.value), item.where) for item in whole]
        assert [item.about.get("id") for item in together] == [item.about.get("id") for item in whole]


def test_media_files_are_parts_of_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MEDIA_PART", 2)
    for name in "abc":
        (tmp_path / f"{name}.png").touch()
    inputs = Inputs([str(tmp_path)], Reading(media=IMAGES))
    parts, _ = plan(inputs)
    found = [[item.value for group in inputs.part(p.path, p.span, p.media) for item in group] for p in parts]
    assert found == [[str(tmp_path / "a.png"), str(tmp_path / "b.png")], [str(tmp_path / "c.png")]]


def test_a_file_that_cannot_be_read_does_not_hinder_others(tmp_path: Path) -> None:
    good, bad = write(tmp_path / "a.parquet"), tmp_path / "b.parquet"
    bad.write_bytes(good.read_bytes()[:-9])
    with pytest.raises(FormatError, match=r"b\.parquet"):
        Inputs([str(good), str(bad)], Reading())
    parts, errors = plan(Inputs([str(good), str(bad)], Reading(), lenient=True))
    assert len(parts) == 6
    assert [error.path for error in errors] == [str(bad)]
    bad.write_text("\n" * 9)
    bad.rename(tmp_path / "b.csv").write_text('text\n"open')
    _, errors = plan(Inputs([str(tmp_path / "b.csv")], Reading(), lenient=True), 2)
    assert "is not CSV" in str(errors[0])


def test_what_is_kept_of_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl")
    inputs = Inputs([str(path)], Reading(keep=("id",)))
    assert [dict(item.about) for group in inputs.groups() for item in group][:40] == [{"id": number} for number in range(40)]
    with pytest.raises(InputError, match=r"there is no column 'title'"):
        Inputs([str(path)], Reading(keep=("id", "title")))


def test_a_claim_is_of_one(tmp_path: Path) -> None:
    path = tmp_path / "a.claim"
    with Claim(str(path)) as one, Claim(str(path)) as other:
        assert one.take()
        assert not other.take()
        os.utime(path, (1, 1))  # its process is alive on this machine, however long it slept
        assert not other.take()
        one.check()
    assert not path.exists()
    with Claim(str(path)) as other:
        assert other.take()
    assert os.listdir(tmp_path) == []


def test_a_claim_without_life_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "a.claim"
    for content, age, is_taken in (
        ("elsewhere", 10, False),
        ("elsewhere", 70, True),
        ("", 0, True),  # killed before it wrote
        (module._machine(), 0, True),
    ):
        path.write_text(content)
        now = path.stat().st_mtime
        os.utime(path, (now - age, now - age))
        with Claim(str(path)) as claim:
            assert claim.take() is is_taken
            if is_taken:
                claim.check()
        assert [*tmp_path.iterdir()] == ([] if is_taken else [path])


def test_who_was_taken_for_dead_learns_it(tmp_path: Path) -> None:
    path = tmp_path / "a.claim"
    with Claim(str(path)) as one:
        assert one.take()
        path.unlink()
        with Claim(str(path)) as other:
            assert other.take()
            with pytest.raises(FileError, match="taken this part over"):
                one.check()
            one.__exit__()
            other.check()
            one.handle = -1


def test_a_claim_shows_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BEAT", 0.01)
    with Claim(str(tmp_path / "a.claim")) as claim:
        assert claim.take()
        os.utime(claim.path, (1, 1))
        for _ in range(500):
            if claim.path.stat().st_mtime > 1:
                return
            claim._over.wait(0.02)
    pytest.fail("no sign of life")


def test_what_a_killed_process_leaves_beside_a_part_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was killed when the part had its name, before the rest was removed."""
    monkeypatch.setattr(module, "WAIT", 0.01)
    part = Part("part-00000-00000", "a.txt")
    job = Job(tmp_path, {"inputs": [], "model": {}, "options": {}}, [part], ".parquet")
    for name in (".parquet", ".parquet.partial", ".parquet.partial.whole", ".index.jsonl.partial"):
        (tmp_path / f"{part.name}{name}").write_text("x")
    (tmp_path / f"{part.name}.parquet.claim").write_text(f"{module._machine()} its-owner")
    assert job.run([part], lambda *_: pytest.fail("it is done anew")) == []
    assert os.listdir(tmp_path) == [f"{part.name}.parquet"]
    with Claim(f"{job.path(part)}.claim") as other:
        assert other.take()
        (tmp_path / f"{part.name}.parquet.partial").touch()
        waiting = threading.Thread(target=job.run, args=([part], lambda *_: None))
        waiting.start()
        time.sleep(0.1)
        assert (tmp_path / f"{part.name}.parquet.partial").exists()  # who holds it removes it
    waiting.join(20)
    assert not waiting.is_alive()


def test_a_directory_is_of_one_job(tmp_path: Path) -> None:
    about = {"inputs": [{"name": "a.csv"}], "model": {}, "options": {"x": 1}}
    Job(tmp_path, about, [], ".jsonl").begin()
    assert os.listdir(tmp_path) == ["_job.json"]
    Job(tmp_path, about, [], ".jsonl").begin()
    with pytest.raises(InputError, match=r"`x` was '1' and is '2'.*pass another directory"):
        Job(tmp_path, about | {"options": {"x": 2}}, [], ".jsonl").begin()
    for killed in (b"", b'{"inputs": ['):  # while it was written
        (tmp_path / "_job.json").write_bytes(killed)
        Job(tmp_path, about, [], ".jsonl").begin()
    assert os.listdir(tmp_path) == ["_job.json"]
    (tmp_path / "_job.json").unlink()
    (tmp_path / "part-00000-00000.jsonl").touch()
    with pytest.raises(InputError, match=r"has no note \(_job.json\)"):
        Job(tmp_path, about, [], ".jsonl").begin()
