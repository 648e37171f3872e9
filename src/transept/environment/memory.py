"""How much memory is left, for what asks for much of it at once, and how much of what was freed is kept."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

from transept.environment.units import size
from transept.errors import FileError, InputError, TranseptError
from transept.storage.files import read_text

# What is less than this is never the reason why memory ends.
_SMALL = 2**26
# The limit, the use and the statistics of a container's memory, in the two versions of Linux's control groups.
_CONTAINER = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)
# Numbers of glibc's `mallopt`, what they are set to here, and the variables by which a user sets them.
_MALLOC = {"MALLOC_TRIM_THRESHOLD_": (-1, 2**28), "MALLOC_MMAP_THRESHOLD_": (-3, 2**25)}


def check_memory(
    needed: int, device: torch.device, what: str, hint: str, kind: type[TranseptError] = InputError, **where: Any
) -> None:
    """Refuse what needs more memory than a device has left, by an error of that kind.

    Args:
        needed: bytes, at least.
        what: the beginning of the sentence that says how much ``what`` needs.
        hint, where: those of the error.
    """
    if needed > _SMALL and (left := memory_left(device)) is not None and needed > left:
        raise kind(
            f"{what} needs at least {size(needed)} of memory, but {device.type} has {size(left)} left.", hint=hint, **where
        )


def memory_left(device: torch.device) -> int | None:
    """About how many bytes can still be had on a device; ``None`` where the system does not say."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    return max(0, min(_main_memory())) if device.type == "cpu" and Path("/proc/meminfo").exists() else None


@cache
def keep_freed() -> None:
    """Have the C library keep up to 256 MB of what is freed, in blocks of up to 32 MB, where it is glibc's.

    It gives such blocks back to the system otherwise, which fills them with zeros when they are asked for again: for what
    layers write that takes up to a fifth of a pass. What the environment says of it stays.
    """
    told = any(name in os.environ for name in _MALLOC) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if sys.platform == "linux" and not told and hasattr(library := ctypes.CDLL(None), "mallopt"):
        for number, value in _MALLOC.values():
            library.mallopt(number, value)


def give_back() -> None:
    """Give memory that is free back to the system and to the device; some allocators keep it otherwise."""
    frozen = gc.get_freeze_count()  # with what a server had at its start
    gc.unfreeze()
    gc.collect()
    if frozen:
        gc.freeze()
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "malloc_trim"):
        library.malloc_trim(0)


def _main_memory() -> Iterator[int]:
    """What the machine has left, and what the limits of a container and of the process leave."""
    machine = _numbers("/proc/meminfo")
    yield 1024 * (machine["MemAvailable"] + machine.get("SwapFree", 0))
    for names in _CONTAINER:
        with suppress(FileError, ValueError):  # there is no such file, or it says "max"
            limit, used = (int(read_text(f"/sys/fs/cgroup/{name}")) for name in names[:2])
            yield limit - used + _numbers(f"/sys/fs/cgroup/{names[2]}").get("inactive_file", 0)
    with suppress(ImportError):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            yield limit - 1024 * _numbers("/proc/self/status")["VmSize"]


def _numbers(path: str) -> dict[str, int]:
    return {name: int(number) for name, number in re.findall(r"^(\w+):?\s+(\d+)", read_text(path), re.MULTILINE)}
