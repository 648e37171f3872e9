"""Joining the processes that torchrun started, and agreeing with them.

torchrun tells each process by its environment how many there are (``WORLD_SIZE``), which of them it is (``RANK``, and
on its machine ``LOCAL_RANK``), and where they meet (``MASTER_ADDR``, ``MASTER_PORT``).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.utils._pytree as pytree
from torch import Tensor
from torch.distributed import PrefixStore, Store, rendezvous  # type: ignore[attr-defined]
from tqdm.auto import tqdm

from transept.errors import ConfigError, TrainingError, TranseptError, refuse
from transept.parallel.mesh import Layout

T = TypeVar("T")

_ANSWERS_WITHIN = 15.0  # seconds; a process may be computing when another notices
# What PyTorch's backends say when a process does not answer.
_LOST = re.compile(
    r"(?i)connection|broken pipe|socket|peer|timed? ?out|gloo|nccl|heartbeat|remote process|TCPStore|process group"
)
_STORES: list[Store] = []  # where the processes of this run say that they are there


def world_size() -> int:
    """How many processes were started together, whether they have met or not."""
    return dist.get_world_size() if dist.is_initialized() else _number("WORLD_SIZE", 1)


def _number(name: str, default: int = 0) -> int:
    text = os.environ.get(name, str(default))
    what = f"the environment's {name} is {text!r}, and no number."
    refuse(not text.isdecimal(), what, "Start the processes by torchrun.", ConfigError)
    return int(text)


def join(backend: str | None = None, timeout: float = 1800, device: str | None = None) -> int:
    """Meet the other processes, once; returns this one's rank, 0 where it is alone. They part when the program ends.

    Args:
        backend: ``"nccl"``, ``"gloo"`` or another of PyTorch's; by default gloo, and NCCL too for tensors on CUDA.
        timeout: seconds that a process waits for the others, from now on.
        device: the kind of device that is computed on; by default that of :func:`device_kind`.

    Raises:
        ConfigError, TrainingError: the environment does not say where processes meet; the others did not come.
    """
    if dist.is_initialized():
        return dist.get_rank()
    if (world := world_size()) == 1:
        return 0
    missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    what = f"WORLD_SIZE says that there are {world} processes, but {', '.join(missing)} is not set."
    refuse(missing, what, "Start them by torchrun, or unset WORLD_SIZE for one process.", ConfigError)
    rank, local = _number("RANK"), _number("LOCAL_RANK")
    refuse(rank >= world, f"this process is RANK={rank}, but there are only {world} (WORLD_SIZE).", kind=ConfigError)
    on_cuda = (device or device_kind()) == "cuda"
    if on_cuda:
        what = f"this is process {local} of its machine, which has {torch.cuda.device_count()} devices."
        hint = "Start as many processes as there are devices (--nproc-per-node)."
        refuse(local >= torch.cuda.device_count(), what, hint, ConfigError)
        torch.cuda.set_device(local)
    backend, limit = backend or ("cpu:gloo,cuda:nccl" if on_cuda else "gloo"), timedelta(seconds=timeout)
    try:
        store, _, _ = next(rendezvous("env://", timeout=limit))
        # torchrun may use one store for all its starts, in which the addresses of the last one would be found.
        start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        work, alive = (PrefixStore(f"{name}/{start}", store) for name in ("work", "alive"))
        dist.init_process_group(backend, timeout=limit, store=work, rank=rank, world_size=world)
    except (RuntimeError, ValueError) as error:
        place, why = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}", " ".join(str(error).split())[:200]
        what = f"process {rank} of {world} did not meet the others at {place} ({why})."
        raise TrainingError(what, hint="Start all of them, with the same address and number of processes.") from error
    _STORES[:] = [alive]
    atexit.unregister(_part)  # of processes that met before
    atexit.register(_part)
    return rank


def _part() -> None:
    """Leave the others when the program ends, without waiting for any of them."""
    if dist.is_initialized() and _STORES:  # NCCL would wait for processes that were lost
        dist.destroy_process_group()
    _STORES.clear()
    # A thread of gloo's that has done its work lets go of the tensors of Python. It needs the interpreter's lock for
    # this, and takes down the program (SIGABRT) where it asks for it after the interpreter has ended. Sleeping gives
    # it the lock, for much longer than it needs.
    time.sleep(0.1)


def device_kind() -> str:
    """The kind of device that processes compute on where nothing says another."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def gather_objects(value: T) -> list[T]:
    """The values of all processes, in the order of their ranks. They are pickled, so they should be small."""
    values = [value] * world_size()
    if len(values) > 1:
        dist.all_gather_object(values, value)
    return values


@contextlib.contextmanager
def ahead(is_first: bool) -> Iterator[None]:
    """Let the first of the processes do something before the others do it, which go on where it fails too."""
    if not is_first:
        gather_objects(None)
    try:
        yield
    finally:
        if is_first:
            gather_objects(None)


def gather_numbers(numbers: Sequence[float]) -> list[list[float]]:
    """The float64 numbers of all processes, as many of each, in the order of their ranks; by one operation."""
    if world_size() == 1:
        return [list(numbers)]
    return _gathered(torch.tensor(numbers, dtype=torch.float64)).tolist()


def gather_tensors(value: T) -> list[T]:
    """The trees of tensors and small values of all processes, in the order of their ranks; on the CPU.

    Tensors travel as bytes of one buffer, as long as the longest of all processes; what describes them is pickled.
    """
    if world_size() == 1:
        return [value]
    trees = gather_objects(pytree.tree_map_only(Tensor, lambda tensor: tensor.detach().to("meta"), value))
    sizes = [[tensor.nbytes for tensor in _tensors_of(tree)] for tree in trees]
    longest = max(1, *map(sum, sizes))
    parts = [tensor.detach().cpu().contiguous().view(-1).view(torch.uint8) for tensor in _tensors_of(value)]
    padding = torch.zeros(longest - sum(sizes[dist.get_rank()]), dtype=torch.uint8)
    buffers = _gathered(torch.cat([*parts, padding]))

    def filled(tree: Any, content: Tensor, sizes: list[int]) -> Any:
        parts = iter(torch.split(content[: sum(sizes)], sizes))
        return pytree.tree_map_only(Tensor, lambda like: next(parts).clone().view(like.dtype).view(like.shape), tree)

    return [filled(*described) for described in zip(trees, buffers, sizes)]


def _tensors_of(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def _gathered(message: Tensor) -> Tensor:
    """The messages (world, ...) of all processes, which have one shape; on the CPU."""
    # Some groups of the user's speak through GPUs alone.
    device = "cpu" if "cpu:" in dist.get_backend_config() else f"cuda:{torch.cuda.current_device()}"
    messages = torch.empty((world_size(), *message.shape), dtype=message.dtype, device=device)
    dist.all_gather([*messages], message.to(device))
    return messages.cpu()


@contextlib.contextmanager
def naming_lost_processes() -> Iterator[None]:
    """Turn the failure of a collective operation into a ``TrainingError`` that names the processes which are gone.

    Each process that is left says so, and those that do not within some seconds have ended, or are stuck.
    """
    try:
        yield
    except RuntimeError as error:
        if world_size() == 1 or isinstance(error, TranseptError) or not _LOST.search(str(error)):
            raise
        gone = _silent()
        _STORES.clear()
        who = f"process{'es' if len(gone) > 1 else ''} {', '.join(map(str, gone))}" if gone else "a process"
        what = f"{who} of {world_size()} ended or hangs, and process {dist.get_rank()} cannot go on without."
        hint = "Its own message tells why. Start all of them again, and go on from the last checkpoint."
        raise TrainingError(what, hint=hint) from error


def _silent() -> list[int]:
    """The processes that do not say that they are there; that of the store, where that cannot be reached."""
    if not _STORES:  # another program let them meet
        return []
    waiting, end = {*range(world_size())}, time.monotonic() + _ANSWERS_WITHIN
    try:
        _STORES[0].set(str(dist.get_rank()), "here")
        while waiting and time.monotonic() < end:
            waiting = {rank for rank in waiting if not _STORES[0].check([str(rank)])}
            time.sleep(0.1)
    except RuntimeError:
        return [0]
    return sorted(waiting)


@contextlib.contextmanager
def same_on_all() -> Iterator[None]:
    """Let all processes fail where one does, instead of waiting for it; the block itself needs no other process.

    Those that were well raise a ``TrainingError`` with the message of the first that was not.
    """
    try:
        yield
    except Exception as error:
        gather_objects(f"{type(error).__name__}: {error}")
        raise
    for rank, text in enumerate(gather_objects("")):
        if text:
            raise TrainingError(f"process {rank} failed, and so all {world_size()} end: {text}")


@dataclass(frozen=True)
class Replicas:
    """The R processes, or groups of them, that take other rows."""

    size: int = 1  # R
    rank: int = 0  # which of the R shares this process takes
    members: tuple[int, ...] = (0,)  # for each share the process that speaks for it

    @classmethod
    def of(cls, layout: Layout, is_v: bool = False) -> Replicas:
        """Those of this process's grid, where the last stage, which has the outputs, speaks for a share.

        ``is_v`` says that the process of a pipeline's first stage has the last one too.
        """
        if layout.world == 1:
            return cls()
        last = 0 if is_v else layout.world - layout.data * layout.tp
        members = tuple(last + share * layout.tp for share in range(layout.data))
        return cls(layout.data, layout.data_rank(dist.get_rank()), members)

    def among(self, values: Sequence[T]) -> list[T]:
        """Of the values of all processes those of each share, in order: their sum is the same to the last bit."""
        return [values[member] for member in self.members]


class ProcessView:
    """What code of the reference asks of a run's processes, by the run's settings."""

    def __init__(self, args: Any) -> None:
        self.args = args

    def __getattr__(self, name: str) -> Any:
        names = ", ".join(sorted(name for name in dir(self) if name[0] != "_"))
        raise AttributeError(f"what is asked of processes has no {name!r}. It has: {names}.")

    num_processes = property(lambda self: self.args.world_size)
    process_index = property(lambda self: self.args.process_index)
    local_process_index = property(lambda self: self.args.local_process_index)
    device = property(lambda self: self.args.device)
    is_main_process = property(lambda self: self.process_index == 0)
    is_local_main_process = property(lambda self: self.local_process_index == 0)
    _several = property(lambda self: "MULTI_CPU" if self.device.type == "cpu" else "MULTI_GPU")
    distributed_type = property(lambda self: "NO" if self.num_processes == 1 else self._several)

    def main_process_first(self) -> Any:
        return self.args.main_process_first(local=False)

    def local_main_process_first(self) -> Any:
        return self.args.main_process_first(local=True)

    def wait_for_everyone(self) -> None:
        gather_objects(None)

    def print(self, *values: Any, sep: str = " ", **kwargs: Any) -> None:
        if self.is_local_main_process:
            tqdm.write(sep.join(map(str, values)), **kwargs)

    def on_main_process(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that does nothing in the other processes."""
        return function if self.is_main_process else lambda *args, **kwargs: None
