"""Checkpoint directories: whole or absent, checked, found and rotated."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.training.runs import other_run
from transept.checkpoint.store import write_tensors
from transept.errors import CheckpointError, FileError, FormatError, TranseptWarning
from transept.storage import directory
from transept.storage.files import write_text
from transept.training.checkpoint.directory import (
    LOCK_NAME,
    MANIFEST_NAME,
    check_checkpoint,
    clean,
    find_last_checkpoint,
    get_last_checkpoint,
    list_checkpoints,
    only_run,
    read_manifest,
    rotate,
    write_checkpoint,
)
from transept.training.checkpoint.saved_run import SavedRun


def fill(stage: Path, value: float = 1.0) -> Iterator[Path]:
    write_tensors({"w": torch.full((4, 3), value)}, stage / "model.safetensors")
    yield stage / "model.safetensors"
    write_text(stage / "config.json", "{}")


def names(run: Path) -> list[str]:
    return sorted(os.listdir(run))


def test_a_checkpoint_lists_its_files(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "run", 7, fill, world_size=2)
    assert path == tmp_path / "run" / "checkpoint-7"
    manifest = check_checkpoint(path)
    assert (manifest.step, manifest.world_size) == (7, 2)
    assert set(manifest.files) == {"model.safetensors", "config.json"}
    for name, listed in manifest.files.items():
        data = (path / name).read_bytes()
        assert (listed.size, listed.digest) == (len(data), hashlib.sha256(hashlib.sha256(data).digest()).hexdigest())
    assert names(tmp_path / "run") == ["checkpoint-7"]


def test_a_large_file_is_digested_by_pieces(tmp_path: Path) -> None:
    """Of several, of a whole number of them, and of none; a change in any of them is found."""
    piece, sizes = 2**24, (2 * 2**24 + 7, 2**24, 0)

    def several(stage: Path) -> Iterator[Path]:
        for size in sizes:
            (stage / str(size)).write_bytes(bytes(range(256)) * (size // 256) + b"x" * (size % 256))
            yield stage / str(size)

    path = write_checkpoint(tmp_path, 1, several)
    for name, listed in check_checkpoint(path).files.items():
        data = (path / name).read_bytes()
        pieces = [data[start : start + piece] for start in range(0, max(1, len(data)), piece)]
        assert listed.digest == hashlib.sha256(b"".join(hashlib.sha256(each).digest() for each in pieces)).hexdigest()
    with open(path / str(sizes[0]), "r+b") as file:
        file.seek(piece)
        file.write(b"y")
    with pytest.raises(CheckpointError, match="was altered"):
        check_checkpoint(path)


def test_a_save_replaces_the_files_of_the_manifest_alone(tmp_path: Path) -> None:
    def more(stage: Path) -> Iterator[Path]:
        write_text(stage / "scheduler.json", "{}")
        (stage / "shards").mkdir()
        write_text(stage / "shards" / "1.json", "{}")
        yield from fill(stage)

    path = write_checkpoint(tmp_path, 7, more)
    (path / "notes.txt").write_text("mine")
    (path / "more").mkdir()
    (path / "more" / "notes.txt").write_text("mine")
    write_checkpoint(tmp_path, 7, lambda stage: fill(stage, 2.0))
    assert names(path) == [MANIFEST_NAME, "config.json", "model.safetensors", "more", "notes.txt"]
    assert (path / "notes.txt").read_text() == (path / "more" / "notes.txt").read_text() == "mine"
    check_checkpoint(path)


def own_model(run: Path) -> Path:
    (run / "checkpoint-2").mkdir(parents=True)
    (run / "checkpoint-2" / "model.safetensors").write_text("mine")
    return run / "checkpoint-2" / "model.safetensors"


def own_notes_in_shards(run: Path) -> Path:
    def shards(stage: Path) -> Iterator[Path]:
        (stage / "shards").mkdir()
        write_text(stage / "shards" / "1.json", "{}")
        yield from fill(stage)

    own = write_checkpoint(run, 2, shards) / "shards" / "notes.txt"
    own.write_text("mine")
    return own


def link_elsewhere(run: Path) -> Path:
    (run.parent / "elsewhere").mkdir()
    own = run.parent / "elsewhere" / "config.json"
    own.write_text("mine")
    run.mkdir()
    (run / "checkpoint-2").symlink_to(own.parent)
    return own


@pytest.mark.parametrize("make", [own_model, own_notes_in_shards, link_elsewhere])
def test_what_no_manifest_names_is_not_replaced(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    own = make(tmp_path / "run")
    with pytest.raises(FileError, match="checkpoint-2: (is a link|holds '.*', which no manifest names).*Move it away"):
        write_checkpoint(tmp_path / "run", 2, fill)
    assert own.read_text() == "mine"
    assert names(tmp_path / "run") == ["checkpoint-2"]


def test_what_writes_directories_itself_writes_into_the_stage(tmp_path: Path) -> None:
    """As models and tokenizers do; the stage keeps its lock and its place."""

    def nested(stage: Path) -> Iterator[Path]:
        before = stage.stat().st_ino
        write_text(stage / "stale.json", "{}")
        with directory.replace_directory(stage, drop=lambda name: name.startswith("stale")) as inner:
            assert inner == stage
            write_text(inner / "tokenizer.json", "{}")
        assert stage.stat().st_ino == before
        yield stage / "tokenizer.json"

    path = write_checkpoint(tmp_path, 1, nested)
    assert names(path) == [MANIFEST_NAME, "tokenizer.json"]


def spoil_manifest(path: Path) -> None:
    (path / MANIFEST_NAME).unlink()


def spoil_missing(path: Path) -> None:
    (path / "config.json").unlink()


def spoil_short(path: Path) -> None:
    os.truncate(path / "model.safetensors", 20)


def spoil_json(path: Path) -> None:
    (path / MANIFEST_NAME).write_text('{"format": 1}')


def spoil_name(path: Path) -> None:
    document = json.loads((path / MANIFEST_NAME).read_text())
    document["files"]["../outside"] = {"size": 0, "sha256-16MiB": ""}
    (path / MANIFEST_NAME).write_text(json.dumps(document))


@pytest.mark.parametrize("spoil", [spoil_manifest, spoil_missing, spoil_short, spoil_json, spoil_name])
def test_the_last_whole_one_is_found(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    whole = write_checkpoint(tmp_path, 9, fill)
    write_checkpoint(tmp_path, 8, fill)
    spoil(write_checkpoint(tmp_path, 10, fill))
    (tmp_path / "checkpoint-11x").mkdir()
    (tmp_path / "checkpoint-12").touch()
    with pytest.warns(TranseptWarning, match="checkpoint-10 is passed over"):
        assert find_last_checkpoint(tmp_path) == whole
    assert get_last_checkpoint(tmp_path) == str(whole)


def test_there_is_none(tmp_path: Path) -> None:
    assert find_last_checkpoint(tmp_path) is None
    assert get_last_checkpoint(tmp_path / "absent") is None


def test_the_reference_s_checkpoints_have_no_manifest(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 3, fill)
    theirs = tmp_path / "checkpoint-5"
    theirs.mkdir()
    (theirs / "trainer_state.json").write_text("{}")
    assert get_last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-3")
    (theirs / "model.safetensors").touch()
    assert get_last_checkpoint(tmp_path) == str(theirs)


def altered(path: Path) -> None:
    data = bytearray((path / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (path / "model.safetensors").write_bytes(data)


@pytest.mark.parametrize(
    ("spoil", "kind", "match"),
    [
        (altered, CheckpointError, "model.safetensors: was altered"),
        (spoil_missing, CheckpointError, "config.json: is missing"),
        (spoil_short, CheckpointError, "has 20 bytes, but had"),
        (spoil_manifest, FileError, MANIFEST_NAME),
        (spoil_json, FormatError, "`version` is missing, but must be a text"),
        (spoil_name, FormatError, "leads outside the directory"),
    ],
)
def test_what_was_altered_is_named(tmp_path: Path, spoil: Callable[[Path], None], kind: Any, match: str) -> None:
    path = write_checkpoint(tmp_path, 1, fill)
    spoil(path)
    with pytest.raises(kind, match=match):
        check_checkpoint(path)


def test_a_manifest_of_a_later_format_says_so(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, 1, fill) / MANIFEST_NAME
    path.write_text(path.read_text().replace('"format": 1', '"format": 2').replace('"version": "', '"version": "9.'))
    with pytest.raises(CheckpointError, match=r"format 2, which transept 9\."):
        read_manifest(path.parent)


# --- rotation ------------------------------------------------------------------------------------------------------------


def steps(run: Path) -> list[int]:
    return [step for step, _ in list_checkpoints(run)]


def test_the_oldest_go(tmp_path: Path) -> None:
    paths = {step: write_checkpoint(tmp_path, step, fill) for step in (2, 4, 10, 8, 6)}
    assert rotate(tmp_path, None, last=paths[10]) == []
    removed = rotate(tmp_path, 3, last=paths[10], keep=[paths[2], None])
    assert removed == [paths[4], paths[6]]
    assert steps(tmp_path) == [2, 8, 10]
    rotate(tmp_path, 1, last=paths[10], keep=[paths[2]])
    assert steps(tmp_path) == [2, 10]


def test_those_of_an_earlier_run_go_first(tmp_path: Path) -> None:
    for step in (100, 2, 200, 4):
        last = write_checkpoint(tmp_path, step, fill)
    rotate(tmp_path, 2, last=last)
    assert steps(tmp_path) == [2, 4]


def test_what_no_run_wrote_stays(tmp_path: Path) -> None:
    """Folders without a manifest, links, and what others put into a checkpoint."""
    (tmp_path / "checkpoint-1").mkdir()
    (tmp_path / "checkpoint-1" / "notes.txt").touch()
    link_elsewhere(tmp_path / "run")
    (tmp_path / "checkpoint-2").symlink_to(write_checkpoint(tmp_path / "run", 9, fill))
    with_notes = write_checkpoint(tmp_path, 3, fill)
    (with_notes / "notes.txt").write_text("mine")
    last = write_checkpoint(tmp_path, 4, fill)
    assert rotate(tmp_path, 1, last=last) == [with_notes]
    assert steps(tmp_path) == [1, 2, 3, 4]
    assert names(with_notes) == ["notes.txt"]
    assert names(tmp_path / "checkpoint-2") == [MANIFEST_NAME, "config.json", "model.safetensors"]
    write_checkpoint(tmp_path, 3, fill)
    assert "notes.txt" in names(with_notes)


def test_a_removal_that_was_killed_gives_back_what_is_not_its_own(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, 3, fill)
    (path / "notes.txt").write_text("mine")
    path.rename(tmp_path / ".checkpoint-3.deleted")
    clean(tmp_path)
    assert names(tmp_path) == ["checkpoint-3"]
    assert names(path) == ["notes.txt"]


def test_remains_of_killed_processes_go(tmp_path: Path) -> None:
    for name in (".checkpoint-3.01234567.saving", ".checkpoint-3.deleted", ".checkpoint-x.deleted", ".other.01234567.saving"):
        (tmp_path / name / "inner").mkdir(parents=True)
    clean(tmp_path)
    assert names(tmp_path) == [".checkpoint-x.deleted", ".other.01234567.saving"]


# --- failures --------------------------------------------------------------------------------------------------------------


def failing(*steps: int) -> Callable[[Path], Iterator[Path]]:
    def write(stage: Path) -> Iterator[Path]:
        yield from fill(stage)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return write


class Saver(SavedRun):
    """A run that is saved and does nothing else; ``best`` is the step of its best checkpoint."""

    def __init__(self, folder: Path, limit: int | None = None, resumed: Path | None = None, best: int = 0) -> None:
        model = torch.nn.Linear(1, 1)
        state = SimpleNamespace(max_steps=9, best_global_step=best, best_model_checkpoint=None)
        devices = SimpleNamespace(replicas=SimpleNamespace(size=1))
        optimizer = torch.optim.SGD(model.parameters())
        self.run: Any = SimpleNamespace(state=state, model=model, average=None, optimizer=optimizer, devices=devices)
        self.args: Any = SimpleNamespace(save_total_limit=limit)
        self.folder, self.resumed, self.failures = folder, resumed, 0

    def write(self, step: int, fill: Callable[[Path], Iterator[Path]]) -> Path | None:
        self.run.state.global_step, self.write_files = step, fill
        return self._write(None, None, final=False)

    def _fill(self, stage: Path, **_: Any) -> Iterator[Path]:
        return self.write_files(stage)


def test_a_run_survives_two_failures_in_a_row(tmp_path: Path) -> None:
    saver = Saver(tmp_path, limit=1)
    saver.write(1, fill)
    for _ in range(2):
        for step in (2, 3):
            with pytest.warns(TranseptWarning, match=rf"step {step} could not be saved: .*no space left.*MB are free"):
                assert saver.write(step, failing()) is None
        assert steps(tmp_path) in ([1], [4])
        saver.write(4, fill)
    assert names(tmp_path) == ["checkpoint-4"]
    for step in (5, 6):
        with pytest.warns(TranseptWarning):
            saver.write(step, failing())
    with pytest.raises(FileError, match=r"3 checkpoints in a row could not be saved \(.*no space left"):
        saver.write(7, failing())
    assert names(tmp_path) == ["checkpoint-4"]


def test_the_last_save_must_not_fail(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="the last checkpoint of the run could not be saved"):
        Saver(tmp_path).write(9, failing())
    assert names(tmp_path) == []


def test_room_is_asked_for_before_writing(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    with pytest.raises(FileError, match=r"needs \d+\.\d MB, but the disk has"):
        write_checkpoint(tmp_path, 1, fill, needed=2 * free)
    assert names(tmp_path) == []


def test_the_best_and_the_one_resumed_from_stay(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        write_checkpoint(tmp_path, step, fill)
    saver = Saver(tmp_path, limit=2, resumed=tmp_path / "checkpoint-2", best=1)
    for step in (4, 5, 6):
        saver.write(step, fill)
    assert steps(tmp_path) == [1, 2, 6]


# --- two runs --------------------------------------------------------------------------------------------------------------


def test_another_run_in_the_directory_is_named(tmp_path: Path) -> None:
    with other_run(tmp_path) as other:
        with pytest.raises(FileError, match=rf"process {other.pid} on \S+ trains in it"), only_run(tmp_path):
            pass
        other.kill()
        other.wait()
    with only_run(tmp_path):  # what was killed holds nothing
        assert names(tmp_path) == [LOCK_NAME]
    assert names(tmp_path) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork processes")
def test_a_worker_that_outlives_a_run_does_not_hold_its_directory(tmp_path: Path) -> None:
    code = "import os, sys, time\nfrom transept.training.checkpoint.directory import only_run\nwith only_run(sys.argv[1]):\n"
    code += "    if os.fork() == 0:\n        print(os.getpid(), flush=True); time.sleep(60)\n    os.kill(os.getpid(), 9)"
    with subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        worker = int(other.stdout.readline())
        other.wait()
        try:
            with only_run(tmp_path):
                pass
        finally:
            os.kill(worker, 9)
