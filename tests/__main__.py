"""All checks, one after another: `python -m tests`. An interruption ends them, with all processes that they started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from types import FrameType
from typing import NoReturn

import psutil

CHECKS = [
    ["ruff", "check", "."],
    ["ruff", "format", "--check", "."],
    ["codespell"],
    ["mypy"],
    ["lint-imports"],
    [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", *sys.argv[1:]],
]
FAREWELL = 10  # seconds for a check to say how far it came


def run(check: list[str]) -> int:
    """The exit code of a check, which is a group of processes of its own, so that all of it can be ended."""
    with subprocess.Popen(check, start_new_session=True) as child:
        try:
            return child.wait()
        except SystemExit:
            end(child)
            raise


def end(child: subprocess.Popen[bytes]) -> None:
    """Interrupt a check, kill what it waits for, and after its last words all of it; one more Ctrl-C does that at once."""
    try:
        os.killpg(child.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(1)
        for worker in psutil.Process(child.pid).children(recursive=True):
            worker.kill()
        child.wait(FAREWELL)
    except (psutil.NoSuchProcess, subprocess.TimeoutExpired):
        pass
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)


def interrupted(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def main(checks: list[list[str]]) -> int:
    # Tests start some hundred programs, each of which would compile the package again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, interrupted)
    for check in checks:
        print("$", *check, flush=True)
        if code := run(check):
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(CHECKS))
