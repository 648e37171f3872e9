"""Measuring side by side: every contender runs once per round, rounds are repeated, medians and ratios are reported.

A machine's speed drifts by more than contenders differ, so they are interleaved in one run and compared round by round. Each
can have a process of its own, as it has at its users': the thread pools of one library slow down those of another.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
# Seconds between two contenders: threads that wait for more work keep a core busy for a while.
PAUSE = 0.3


@dataclass
class Timing:
    """Seconds of one contender, one number a round."""

    seconds: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def faster_than(self, other: Timing) -> float:
        """The median over rounds of how many times faster this was."""
        return statistics.median(b / a for a, b in zip(self.seconds, other.seconds, strict=True))


class UnableError(Exception):
    """A contender cannot be run on this machine, and why."""


class Isolated:
    """A contender in a process of its own; calling it runs it once there.

    Args:
        make: a function of a module, that makes what is to be run.
        arguments: for ``make``.

    Raises:
        UnableError: when it is called, but cannot be made or run here.
    """

    def __init__(self, make: Callable[..., Callable[[], Any]], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, make, arguments), daemon=True)
        self.process.start()
        theirs.close()

    def __call__(self) -> None:
        self._ask("run")

    def close(self) -> None:
        """End the process, and wait until it no longer takes a core from what is measured next."""
        self.pipe.close()
        self.process.join()

    def answer(self) -> Any:
        """What the last run gave."""
        return self._ask("answer")

    def _ask(self, what: str) -> Any:
        try:
            self.pipe.send(what)
            works, found = self.pipe.recv()
        except (EOFError, OSError) as error:
            raise UnableError("its process has ended.") from error
        if not works:
            raise UnableError(found)
        return found


def _serve(pipe: Connection, make: Callable[..., Callable[[], Any]], arguments: tuple[Any, ...]) -> None:
    run, answer = None, None
    with contextlib.suppress(EOFError):  # the other side is done
        while True:
            asked = pipe.recv()
            try:
                if run is None:
                    run = make(*arguments)
                if asked == "run":
                    answer = run()
                pipe.send((True, answer if asked == "answer" else None))
            except Exception as error:  # of whatever kind: the other contenders go on
                pipe.send((False, f"{type(error).__name__}: {error}"))


def interleaved(contenders: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, Timing]:
    """Run every contender once to warm it up, then `rounds` times in turn.

    Those that cannot run on this machine say so and are left out.
    """
    found: dict[str, Timing] = {}
    for name, run in contenders.items():
        try:
            run()
            found[name] = Timing([])
        except UnableError as error:
            print(f"{name} cannot run on this machine: {error}")
    for number in range(rounds):
        # Turn the order around every other round, so that no one always follows the same neighbour.
        names = list(found)[:: 1 if number % 2 == 0 else -1]
        for name in names:
            time.sleep(PAUSE)
            start = time.perf_counter()
            contenders[name]()
            found[name].seconds.append(time.perf_counter() - start)
    return found


def process(code: str, *, repeat: int = 5) -> Timing:
    """Seconds of fresh Python processes that run some code, and print the seconds that they measured themselves if any."""
    seconds = []
    for _ in range(repeat):
        start = time.perf_counter()
        out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=quiet()).stdout
        total = time.perf_counter() - start
        last = out.strip().splitlines()[-1] if out.strip() else ""
        seconds.append(float(last.removeprefix("seconds ")) if last.startswith("seconds ") else total)
    return Timing(seconds)


def quiet() -> dict[str, str]:
    """The environment of a process that must not talk or reach a network."""
    return os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "true"}


def ceiling(size: int = 3072, repeat: int = 5) -> float:
    """Floating-point operations a second of a large float32 matrix product, the most this machine gives."""
    import torch

    a, b = torch.randn(size, size), torch.randn(size, size)
    best = float("inf")
    for _ in range(repeat):
        start = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def machine(threads: int) -> dict[str, Any]:
    """What the processor has: its widest instructions, whether it multiplies bfloat16, threads, and its float32 ceiling."""
    import torch

    torch.set_num_threads(threads)
    capability, half = torch.backends.cpu.get_cpu_capability(), bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    found = {"capability": capability, "bfloat16": half, "threads": threads, "operations": ceiling()}
    words = "with" if half else "without"
    print(f"{capability}, {words} bfloat16, {threads} threads, {found['operations'] / 1e9:,.0f} GFLOP/s in float32\n")
    return found


def bandwidth(size: int = 2**30, repeat: int = 5) -> float:
    """Bytes a second that all threads read from memory, in a sum over more than caches hold."""
    import torch

    x = torch.ones(size // 4)
    best = float("inf")
    for _ in range(repeat):
        start = time.perf_counter()
        x.sum()
        best = min(best, time.perf_counter() - start)
    return x.nbytes / best


def table(rows: list[list[str]]) -> str:
    """Aligned columns; the first row is the heading."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def write(name: str, document: dict[str, Any]) -> Path:
    """Keep a result as JSON, with what the machine is."""
    import torch

    machine = {"processor": platform.processor(), "threads": torch.get_num_threads(), "torch": torch.__version__}
    machine["capability"] = torch.backends.cpu.get_cpu_capability()
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine} | document, indent=2) + "\n", encoding="utf-8")
    return path
