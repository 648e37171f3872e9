"""How long each part of the suite runs, and what must hold for every input."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.hostile.watch import watched
from tests.pace import within
from transept.errors import TranseptError

PARTS = 4
SLOWEST = 2.0  # seconds for one input
Attempt = Callable[[Random], None]


def _peak() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    raise AssertionError


@pytest.fixture
def fuzz(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Attempt], None]:
    """Try one input after another: each loads or ends in a typed error, soon, in bounds and inside `tmp_path`.

    An input is made by its number alone, so a failure is repeated by calling with `Random(number)`.
    """

    def run(attempt: Attempt) -> None:
        with contextlib.suppress(Exception):  # imports and first uses, not counted
            attempt(Random(0))
        deadline = time.monotonic() + float(request.config.getoption("--fuzz-seconds")) / PARTS
        before, number, refused = _peak(), 0, 0
        while number < 20 or time.monotonic() < deadline:
            number += 1
            limit = within(SLOWEST, f"input {number}")
            with limit, watched(tmp_path, monkeypatch) as seen, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    attempt(Random(number))
                except TranseptError as error:
                    refused += 1
                    str(error).encode()
                except BaseException as error:
                    if isinstance(error, KeyboardInterrupt):
                        raise
                    raise AssertionError(f"input {number} ended in {type(error).__name__}: {str(error)[:300]}") from error
            assert not seen, f"input {number} left the directory: {seen[:3]}"
        assert _peak() - before < 512 * 2**20
        assert refused > 0
        print(f"{request.node.name}: {number} inputs, {refused} refused")

    return run
