"""Limits of time that hold on slow and on busy machines.

What is measured is the processor's time, so that other programs do not count; where that is more than a limit, the limit is
multiplied by how much slower this machine is than the one that limits were written on, which a piece of reference work tells.
A program that waits for something is given `PATIENCE`: what takes longer hangs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 1200  # seconds
REFERENCE = 0.015  # seconds of the reference work on the machine that limits were written on
BUSY = 30  # how many times longer than its processor's time a task may take where others run too


def work() -> float:
    """Seconds of the processor for the reference work: objects are made, compared and looked up."""
    start = time.process_time()
    table = {str(number): [number] for number in range(40_000)}
    sorted(table, key=len)
    sum(table[name][0] for name in table)
    return time.process_time() - start


def slowness() -> float:
    """How many times slower this machine is than the one that limits were written on; at least 1."""
    return max(1.0, min(work() for _ in range(3)) / REFERENCE)


def used() -> float:
    """Seconds of the processor that this process and the ended ones among its children have taken."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@contextmanager
def within(seconds: float, what: str = "this") -> Iterator[None]:
    """Fail when a block takes longer, however it ends."""
    start, before = time.perf_counter(), used()
    try:
        yield
    finally:
        passed = time.perf_counter() - start
        if passed > seconds:
            spent, limit = used() - before, seconds * slowness()
            assert spent <= limit, f"{what} took {spent:.2f} s of the processor, more than {limit:.2f} s"
            assert passed <= BUSY * limit, f"{what} took {passed:.0f} s, and the processor was not needed for it"
