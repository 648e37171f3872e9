"""Runs a function in several processes at once, as torchrun would start them, and hangs never."""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import os
import pickle
import socket
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

SECONDS = 120.0  # of a run; a whole suite beside it makes one ten times slower than it is alone


class RankError(AssertionError):
    """What a process raised, with its traceback."""


def _serve(connection: Connection) -> None:
    """Run what is asked for, one after the other."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    while True:
        function, args, environment = pickle.loads(connection.recv_bytes())
        os.environ.update(environment)
        try:
            answer: Any = (True, function(*args))
        except BaseException as error:
            answer = (False, (type(error).__name__, str(error), traceback.format_exc()))
        try:
            connection.send_bytes(pickle.dumps(answer))
        finally:
            if dist.is_initialized():
                # Before the groups end: a `Reducer` that were the last to hold one would wait for its threads with the interpreter's
                # lock, and for ever where a thread needs that lock to let go of a tensor.
                forget()
                dist.destroy_process_group()
        for name in environment:
            os.environ.pop(name, None)


def forget() -> None:
    """Drop what PyTorch keeps of meshes that are gone: their groups have a thread each, which asks 100 times a second for work."""
    import torch.distributed.tensor.debug as kept
    from torch.distributed.tensor import _collective_utils, _redistribute

    from transept.parallel.mesh import _GRIDS

    _GRIDS.clear()
    kept._clear_sharding_prop_cache()  # type: ignore[no-untyped-call]
    _collective_utils.MeshTopoInfo.build_from_mesh.cache_clear()
    _redistribute._gen_transform_infos.cache_clear()
    _redistribute.clear_redistribute_planner_cache()
    gc.collect()
    if not gc.get_freeze_count():  # what was imported stays, and takes a tenth of a second to look through
        gc.freeze()


class Ranks:
    """Processes that wait for functions; they are started when they are first needed, and again after one was killed."""

    def __init__(self) -> None:
        self.processes: list[tuple[Any, Connection]] = []
        atexit.register(self.stop)

    def stop(self) -> None:
        for process, connection in self.processes:
            connection.close()
            process.kill()
            process.join()
        self.processes = []

    def _start(self, number: int) -> None:
        context = multiprocessing.get_context("spawn")
        root = str(Path(__file__).parents[2])
        if root not in sys.path:  # which the new processes take over
            sys.path.append(root)
        while len(self.processes) < number:
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self.processes.append((process, ours))

    def ask(self, world: int, function: Callable[..., Any], *args: Any, seconds: float = SECONDS) -> list[tuple[bool, Any]]:
        """What ``function(*args)`` gave or raised in each of ``world`` processes."""
        self._start(world)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        shared = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        for rank, (_, connection) in enumerate(self.processes[:world]):
            connection.send_bytes(pickle.dumps((function, args, shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)})))
        end, answers = time.monotonic() + seconds, []
        for rank, (_, connection) in enumerate(self.processes[:world]):
            if not connection.poll(max(0.0, end - time.monotonic())):
                self.stop()
                raise RankError(f"process {rank} of {world} gave nothing in {seconds} seconds; before it: {answers}")
            try:
                answers.append(pickle.loads(connection.recv_bytes()))
            except EOFError:
                answers.append((False, ("killed", "the process ended", "")))
        if any(not process.is_alive() for process, _ in self.processes):
            self.stop()
        return answers

    def run(self, world: int, function: Callable[..., Any], *args: Any, seconds: float = SECONDS) -> list[Any]:
        """What ``function(*args)`` gives in each of ``world`` processes; it is one of a module, and so are its arguments."""
        answers = self.ask(world, function, *args, seconds=seconds)
        for rank, (went_well, value) in enumerate(answers):
            if not went_well:
                raise RankError(f"process {rank} of {world}: {value[2] or value[1]}")
        return [value for _, value in answers]
