"""Batches that form by themselves: what waits while one runs is the next one."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from transept.errors import TranseptError
from transept.pipelines.batching import Sample, halving
from transept.serving.errors import DrainingError, EngineDeadError, FailedError

Forward = Callable[[Sequence[Sample], Any], Sequence[Any]]
_PATIENCE = 0.5  # seconds that the thread sleeps at most, where nothing waits


class Turns:
    """A lock around passes of all models of a process: who has waited longest is next.

    Two products at once on the same processor only slow each other, and with a plain lock a thread that takes it again at once
    would hold up all others.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting = deque[threading.Lock]()
        self._taken = False

    def __enter__(self) -> None:
        with self._lock:
            if not self._taken:
                self._taken = True
                return
            gate = threading.Lock()
            gate.acquire()
            self._waiting.append(gate)
        gate.acquire()

    def __exit__(self, *error: object) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False


class LeftError(Exception):
    """Nobody waits for the answer any more."""


@dataclass(eq=False)
class _Ask:
    """Rows that wait for their results."""

    forward: Forward
    samples: list[Sample]
    options: Any
    gone: threading.Event
    done: threading.Event = field(default_factory=threading.Event)
    results: list[Any] | Exception = field(default_factory=list)

    def joins(self, other: _Ask) -> bool:
        """Whether the rows of both may be one batch."""
        if self.forward != other.forward or self.samples[0].group != other.samples[0].group:
            return False
        try:
            return self.options is other.options or bool(self.options == other.options)
        except (RuntimeError, ValueError):  # tensors among them
            return False


class Batcher:
    """Runs rows of many threads in batches, in a thread of its own.

    Args:
        budget: positions of a batch at most; longer rows are batches of their own.
        padded: whether the rows of a batch take as many positions as its longest one.
    """

    def __init__(self, budget: int, *, padded: bool) -> None:
        self.budget, self.padded = budget, padded
        self.turn = Turns()  # one for all models of a process
        self.running = 0  # rows of the batch that runs
        self.failed: Exception | None = None
        self.step_began: float | None = None  # when the batch that runs began, on the clock of ``time.monotonic``
        self._asks: list[_Ask] = []
        self._changed = threading.Condition()
        self._open, self._thread = True, threading.Thread(target=self._loop, name="transept-batches", daemon=True)

    def run(self, forward: Forward, gone: threading.Event, samples: Sequence[Sample], options: Any) -> list[Any]:
        """What ``forward`` makes of rows of one group, or errors of ours in their places; blocks until that is there.

        Raises:
            BusyError: the batcher has ended.
            LeftError: ``gone`` is set before the rows are computed.
        """
        ask = _Ask(forward, list(samples), options, gone)
        with self._changed:
            if self.failed is not None:
                raise EngineDeadError("the model's thread has failed.", hint="Start the server again.")
            if not self._open:
                raise DrainingError("the server takes no more requests, since it ends.")
            self._asks.append(ask)
            self._changed.notify()
        ask.done.wait()
        if isinstance(ask.results, Exception):
            raise ask.results
        return ask.results

    def start(self) -> None:
        """Run in a thread of its own until :meth:`close`."""
        self._thread.start()

    def close(self, grace: float = 0.0) -> None:
        """Take no more rows, and give those that wait so many seconds."""
        with self._changed:
            self._open = False
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(grace)
        self._fail_all(DrainingError("the server ends."))

    def is_healthy(self, patience: float) -> bool:
        """Whether the thread answers, and no batch takes longer than so many seconds."""
        began = self.step_began
        return self.failed is None and (began is None or time.monotonic() - began < patience)

    def _loop(self) -> None:
        try:
            while batch := self._next():
                rows = [row for ask in batch for row in ask.samples]
                with self.turn, torch.inference_mode():
                    self.running, self.step_began = len(rows), time.monotonic()
                    results = iter(halving(_guarded(batch[0]), rows))
                    self.running, self.step_began = 0, None
                for ask in batch:
                    ask.results = [next(results) for _ in ask.samples]
                    ask.done.set()
        except Exception as error:  # a mistake of ours: what rows raise is theirs
            self.failed = error
            self._fail_all(EngineDeadError("the model's thread has failed.", hint="Start the server again."))

    def _next(self) -> list[_Ask]:
        """What runs next, or nothing at the end: the rows that came first, and what may join them."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._asks or not self._open, _PATIENCE)
                for ask in (left := [ask for ask in self._asks if ask.gone.is_set()]):
                    ask.results = LeftError()
                    ask.done.set()
                self._asks = [ask for ask in self._asks if ask not in left]
                if self._asks:
                    break
                if not self._open:
                    return []
            batch, rows = self._asks[:1], list(self._asks[0].samples)
            for ask in self._asks[1:]:
                if self._size([*rows, *ask.samples]) <= self.budget and ask.joins(batch[0]):
                    batch.append(ask)
                    rows += ask.samples
            self._asks = [ask for ask in self._asks if ask not in batch]
            return batch

    def _size(self, rows: Sequence[Sample]) -> int:
        lengths = [row.length for row in rows]
        return max(lengths) * len(lengths) if self.padded else sum(lengths)

    def _fail_all(self, error: TranseptError) -> None:
        with self._changed:
            asks, self._asks = self._asks, []
        for ask in asks:
            ask.results = error
            ask.done.set()


def _guarded(ask: _Ask) -> Callable[[list[Sample]], Sequence[Any]]:
    """The computation of a batch, whose errors are all ours, so that those of a row can be told from others'."""

    def compute(rows: list[Sample]) -> Sequence[Any]:
        try:
            return ask.forward(rows, ask.options)
        except TranseptError:
            raise
        except Exception as error:
            raise FailedError(f"this input cannot be answered: the model failed with {type(error).__name__}.") from error

    return compute
