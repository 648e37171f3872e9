"""The checks' own machinery: failures are named at once, an interruption ends everything, limits of time notice what is slow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests import pace
from tests.pace import PATIENCE, slowness, within

ROOT = Path(__file__).parents[1]
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
QUIET = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.failures", "-c", os.devnull]
SUITE = """
import os, time

def test_bad():
    assert 1 == 2, "one is not two"

def test_endless():
    print(os.getpid(), file=open("started", "w"))
    time.sleep(3600)
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "test_some.py").write_text(SUITE)
    return tmp_path


def started(suite: Path, checks: str) -> subprocess.Popen[str]:
    code = f"import sys; from tests.__main__ import main; sys.exit(main({checks}))"
    environment = ENVIRONMENT | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", code], cwd=suite, env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.skipif(os.name == "nt", reason="groups of processes are signalled otherwise on Windows")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_failures_are_named_at_once_and_an_interruption_ends_all(suite: Path, number: int) -> None:
    check = [sys.executable, *QUIET, "-n", "2", "test_some.py"]
    with started(suite, f"[{check}, ['true']]") as child:
        assert child.stdout is not None
        lines = []
        while not lines or not lines[-1].startswith("FAILED"):  # while the other test still runs
            lines.append(child.stdout.readline())
            assert lines[-1], lines
        assert "test_some.py::test_bad: AssertionError: one is not two" in lines[-1]
        while not (suite / "started").exists() or not (suite / "started").read_text():
            time.sleep(0.05)
        worker = psutil.Process(int((suite / "started").read_text()))
        child.send_signal(number)
        out = child.communicate(timeout=PATIENCE)[0]
    assert child.returncode == 128 + number
    assert "$ true" not in out
    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE


def test_the_first_check_that_fails_is_the_last(suite: Path) -> None:
    with started(suite, "[['true'], ['sh', '-c', 'exit 3'], ['echo', 'more']]") as child:
        out = child.communicate(timeout=PATIENCE)[0]
    assert (child.returncode, out) == (3, "$ true\n$ sh -c exit 3\n")


def test_what_is_slow_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    with within(60):
        pass
    with pytest.raises(AssertionError, match="two took .* s of the processor, more than"), within(0.05, "two"):
        end = time.process_time() + 0.2 * slowness()
        while time.process_time() < end:
            pass
    monkeypatch.setattr(pace, "BUSY", 2)
    waiting = 1.0 * slowness()
    with pytest.raises(AssertionError, match="the processor was not needed"), within(0.1):
        time.sleep(waiting)
