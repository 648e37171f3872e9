"""What asks for more memory than there is is refused with both numbers, and what was freed is kept for what comes next."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest
import torch

from transept.environment import memory
from transept.environment.memory import check_memory, memory_left
from transept.errors import FileError, InputError

CPU = torch.device("cpu")
MACHINE = {
    "/proc/meminfo": "MemTotal:  16000000 kB\nMemAvailable:  8000000 kB\nSwapFree:  1000000 kB\n",
    "/proc/self/status": "Name:\tpython\nVmSize:\t  500000 kB\n",
}
TWO = {"memory.max": "3000000000\n", "memory.current": "1000000000\n", "memory.stat": "anon 5\ninactive_file 200000000\n"}
ONE = {"memory/memory.limit_in_bytes": "2000000000", "memory/memory.usage_in_bytes": "500000000", "memory/memory.stat": ""}
FREE = {"memory.max": "max\n", "memory.current": "1000000000\n"}


@pytest.mark.parametrize(
    ("groups", "limit", "left"),
    [
        ({}, -1, 9_000_000 * 1024),
        (TWO, -1, 2_200_000_000),
        (ONE, -1, 1_500_000_000),
        (FREE, -1, 9_000_000 * 1024),
        (TWO, 1_000_000_000, 488_000_000),
        (TWO | {"memory.current": "9000000000"}, -1, 0),
    ],
)
def test_the_least_of_all_limits_counts(monkeypatch: pytest.MonkeyPatch, groups: dict[str, str], limit: int, left: int) -> None:
    resource = pytest.importorskip("resource", reason="the system has no limits of memory for a process")
    files = MACHINE | {f"/sys/fs/cgroup/{name}": text for name, text in groups.items()}

    def read_text(path: str) -> str:
        if path not in files:
            raise FileError("cannot be read.", path=path)
        return files[path]

    monkeypatch.setattr(memory, "read_text", read_text)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit if limit > 0 else resource.RLIM_INFINITY, 0))
    assert memory_left(CPU) == left


def test_what_is_asked_for_is_compared_with_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "memory_left", lambda device: 10**9)
    check_memory(10**9, CPU, "a table", "Make it smaller.")
    with pytest.raises(InputError, match=r"^a table needs at least 2 GB of memory, but cpu has 1 GB left\. Make it smaller\.$"):
        check_memory(2 * 10**9, CPU, "a table", "Make it smaller.")
    monkeypatch.setattr(memory, "memory_left", lambda device: None)
    check_memory(10**18, CPU, "a table", "Make it smaller.")


def test_devices_that_do_not_say() -> None:
    assert memory_left(torch.device("meta")) is None


FAULTS = """
import resource
import torch
import transept

transept.BertModel(transept.BertConfig(vocab_size=9, hidden_size=4, num_hidden_layers=1, num_attention_heads=1))


def faults():
    torch.zeros(2**20)  # 4 MB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


faults()
print(-faults() + max(faults() for _ in range(20)))
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this C library keeps memory by other rules")
@pytest.mark.parametrize("told", [{}, {"MALLOC_TRIM_THRESHOLD_": "131072"}])
def test_blocks_that_layers_write_are_not_fetched_anew(told: dict[str, str]) -> None:
    command = [sys.executable, "-c", FAULTS]
    found = subprocess.run(command, env=os.environ | told, check=True, capture_output=True, text=True).stdout
    assert (int(found) > 10_000) == bool(told)  # a block has 1,024 pages
