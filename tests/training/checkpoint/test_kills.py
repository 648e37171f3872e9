"""Runs that are killed go on from a whole checkpoint, and end as if nothing had happened. `--kills 500` kills more of them."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.thorough import in_turn
from tests.training.runs import PROGRESS, RESULT, Run, Server
from transept.training.checkpoint.directory import check_checkpoint, find_last_checkpoint

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork processes")
# Checkpoints are rotated, so that removing them is interrupted too; the second run ends within an accumulation.
RUNS = {
    "rotated": Run(more={"save_total_limit": 2}),
    "accumulated": Run(accumulation=3, save_steps=1, schedule="cosine", optim="sgd"),
    "workers": Run(workers=2, more={"dataloader_persistent_workers": True}),
    "a stream": Run(workers=2, stream=True, accumulation=2, save_steps=1, more={"max_steps": 7}),
}
SLOW = 0.002  # seconds that each call takes which changes files


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as started:
        yield started


def result(folder: Path) -> Any:
    return json.loads((folder / RESULT).read_text())


def whole_run(server: Server, run: Run, folder: Path) -> tuple[Any, float, int]:
    """What a run comes to that nobody kills, how long it takes, and how many calls change files in its saves."""
    seconds = min(server(run, folder / str(time))["seconds"] for time in range(2))
    answer = server(run, folder / "counted", kill_at=10**9, slow=SLOW, count=True)
    assert answer["code"] == 0
    assert result(folder / "0") == result(folder / "counted")
    return result(folder / "0"), seconds, int((folder / "counted" / "calls").read_text())


def last_step(folder: Path) -> int:
    """The step of the last checkpoint, which is whole to the last byte."""
    found = find_last_checkpoint(folder)
    return 0 if found is None else check_checkpoint(found).step


@pytest.mark.long
@pytest.mark.parametrize("name", in_turn(RUNS, 2))
def test_killed_runs_go_on_to_the_bit(server: Server, tmp_path: Path, name: str, request: pytest.FixtureRequest) -> None:
    kills = int(request.config.getoption("--kills")) // 2
    draw = random.Random(f"{kills} of {name}")
    run, folder = RUNS[name], tmp_path / "run"
    outcome, seconds, calls = whole_run(server, run, tmp_path / "whole")
    done = inside = finished = 0
    while done < kills:
        lost, ended = 0, False
        while not ended:
            order: dict[str, Any] = {"resume": True if lost else None}
            if done >= kills:
                pass
            elif done % 2:
                order |= {"kill_at": draw.randint(1, calls), "slow": SLOW}
            else:
                order["kill_after"] = draw.uniform(0.1, 1.0) * seconds
            answer = server(run, folder, **order)
            ended = answer["code"] == 0
            assert ended or answer["code"] == -signal.SIGKILL
            if not ended:
                done, inside = done + 1, inside + ("kill_at" in order)
            told = int((folder / PROGRESS).read_text() or 0) if (folder / PROGRESS).exists() else 0
            step = last_step(folder)
            assert step >= max(told, lost), "a checkpoint that was there is lost"
            lost = step
        assert result(folder) == outcome
        left = {name for name in os.listdir(folder) if name.startswith(".")}
        assert not left, "what was left of killed saves is swept"
        shutil.rmtree(folder)
        finished += 1
    print(f"\n{done} kills, {inside} of them inside saves, {finished} runs finished equal")
    assert inside >= kills * 2 // 5


@pytest.fixture(scope="module")
def interrupted(server: Server, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Any]:
    """A run of two updates an epoch, and what it comes to."""
    run, folder = Run(accumulation=3, save_steps=100), tmp_path_factory.mktemp("whole")
    server(run, folder)
    return run, result(folder)


@pytest.mark.parametrize(("name", "code", "micro_batch"), [("SIGTERM", 143, 4), ("SIGINT", 130, 5), ("SIGTERM", 143, 6)])
def test_signals_save_and_end(
    server: Server, tmp_path: Path, interrupted: tuple[Run, Any], name: str, code: int, micro_batch: int
) -> None:
    """In the middle of an accumulation of three, and at its end."""
    run, outcome = interrupted
    assert server(run, tmp_path, signal=name, micro_batch=micro_batch)["code"] == code
    assert last_step(tmp_path) == micro_batch // 3
    assert server(run, tmp_path, resume=True, strict=True)["code"] == 0
    assert result(tmp_path) == outcome


def test_sigusr1_saves_and_goes_on(server: Server, tmp_path: Path, interrupted: tuple[Run, Any]) -> None:
    assert server(interrupted[0], tmp_path, signal="SIGUSR1", micro_batch=4)["code"] == 0
    assert result(tmp_path) == interrupted[1]
    assert (tmp_path / "checkpoint-2").is_dir()


KINDS = ["ENOSPC", "EIO", "EACCES", "EFBIG"]
SAVING = Run(save_steps=2)


@pytest.fixture(scope="module")
def saved(server: Server, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, float, int]:
    """The whole run in which writes fail."""
    return whole_run(server, SAVING, tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limits for the size of files")
def test_failed_writes_lose_nothing(
    server: Server, saved: tuple[Any, float, int], tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    run, times, draw = SAVING, int(request.config.getoption("--failures")), random.Random(kind)
    outcome, _, calls = saved
    warned = 0
    for number in range(times):
        folder = tmp_path / f"run{number}"
        fault = {"limit": draw.randint(100, 30_000)} if kind == "EFBIG" else {"fail_at": draw.randint(1, calls), "errno": kind}
        answer = server(run, folder, **fault, warnings=True)
        told = json.loads((folder / "warnings.json").read_text())
        if answer["code"] == 0:  # training went on
            assert result(folder) == outcome
        else:
            assert answer["code"] == 7, answer
            error = (folder / "error").read_text()
            assert error.startswith("FileError")
            assert "could not be saved" in error
            assert "MB are free" in error
        warned += bool(told)
        for text in told:
            assert "could not be saved" in text
            assert "MB are free" in text
        last_step(folder)  # what is there is whole
        assert server(run, folder, resume=True if last_step(folder) else None)["code"] == 0
        assert result(folder) == outcome
        assert not [name for name in os.listdir(folder) if name.startswith(".")]
        shutil.rmtree(folder)
    print(f"\n{kind}: {times} runs, {warned} of them warned")
