"""Joining the processes that torchrun started, and agreeing with them.

torchrun tells each process by its environment how many there are (``WORLD_SIZE``), which of them it is (``RANK``, and on its
machine ``LOCAL_RANK``), and where they meet (``MASTER_ADDR``, ``MASTER_PORT``).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from transept.errors import ConfigError, TrainingError

T = TypeVar("T")

_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def world_size() -> int:
    """How many processes were started together, whether they have met or not."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    return _number("WORLD_SIZE", 1)


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    if not text.isdecimal():
        raise ConfigError(f"the environment's {name} is {text!r}, and no number.", hint="Start the processes by torchrun.")
    return int(text)


def join(backend: str | None = None, timeout: float = 1800) -> int:
    """Meet the other processes, once; returns this one's rank, 0 where it is alone.

    Args:
        backend: ``"nccl"``, ``"gloo"`` or another of PyTorch's; by default NCCL with CUDA, and gloo else.
        timeout: seconds that a process waits for the others, here and later.

    Raises:
        ConfigError: the environment does not say where the processes meet.
        TrainingError: the others did not come.
    """
    if world_size() == 1 or dist.is_initialized():
        return dist.get_rank() if dist.is_initialized() else 0
    missing = [name for name in _NEEDED if not os.environ.get(name)]
    if missing:
        what = f"WORLD_SIZE says that there are {world_size()} processes, but {', '.join(missing)} is not set."
        raise ConfigError(what, hint="Start them by torchrun, or unset WORLD_SIZE for one process.")
    rank, local = _number("RANK", 0), _number("LOCAL_RANK", 0)
    if rank >= world_size():
        raise ConfigError(f"this process is RANK={rank}, but there are only {world_size()} (WORLD_SIZE).")
    if torch.cuda.is_available():
        if local >= torch.cuda.device_count():
            what = f"this is process {local} of its machine, which has {torch.cuda.device_count()} devices."
            raise ConfigError(what, hint="Start as many processes as there are devices (--nproc-per-node).")
        torch.cuda.set_device(local)
    try:
        dist.init_process_group(
            backend or ("nccl" if torch.cuda.is_available() else "gloo"), timeout=timedelta(seconds=timeout)
        )
    except (RuntimeError, ValueError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        what = f"process {rank} of {world_size()} did not meet the others at {where} ({' '.join(str(error).split())[:200]})."
        raise TrainingError(what, hint="Start all of them, with the same address and number of processes.") from error
    return rank


def device_kind() -> str:
    """The kind of device that the processes compute on."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def everywhere(value: T) -> list[T]:
    """What each process has, in the order of their ranks; the same on all. Values are pickled, so they are small."""
    found = [value] * world_size()
    if world_size() > 1:
        dist.all_gather_object(found, value)
    return found


@contextlib.contextmanager
def same_on_all() -> Iterator[None]:
    """Let all processes fail where one does: what is done inside needs no other process, and may raise.

    Without this the others would wait for one that has ended.

    Raises:
        TrainingError: on the processes that were well, with the message of the first that was not.
    """
    try:
        yield
    except Exception as error:
        everywhere(f"{type(error).__name__}: {error}")
        raise
    for rank, text in enumerate(everywhere("")):
        if text:
            raise TrainingError(f"process {rank} failed, and so all {world_size()} end: {text}")
