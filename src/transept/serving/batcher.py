"""Batches that form by themselves: what waits while one runs is the next one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from transept.errors import TranseptError
from transept.pipelines.batching import Sample, halving
from transept.serving.errors import DrainingError, FailedError
from transept.serving.worker import PATIENCE, Worker

Forward = Callable[[Sequence[Sample], Any], Sequence[Any]]


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

    def end(self, results: list[Any] | Exception) -> None:
        """Hand over the results, or why there are none, to whoever waits; the first ones count."""
        if not self.done.is_set():
            self.results = results
            self.done.set()

    def joins(self, other: _Ask) -> bool:
        """Whether the rows of both may be one batch."""
        if self.forward != other.forward or self.samples[0].group != other.samples[0].group:
            return False
        try:
            return self.options is other.options or bool(self.options == other.options)
        except (RuntimeError, ValueError):  # tensors among them
            return False


class Batcher(Worker):
    """Runs rows of many threads in batches, in a thread of its own.

    Args:
        budget: positions of a batch at most; longer rows are batches of their own.
        padded: whether the rows of a batch take as many positions as its longest one.
    """

    def __init__(self, budget: int, *, padded: bool) -> None:
        super().__init__("transept-batches")
        self.budget, self.padded = budget, padded
        self.running = 0  # rows of the batch that runs
        self._asks: list[_Ask] = []
        self._batch: list[_Ask] = []  # what runs

    def run(self, forward: Forward, gone: threading.Event, samples: Sequence[Sample], options: Any) -> list[Any]:
        """What ``forward`` makes of rows of one group, or errors of ours in their places; blocks until that is there.

        Raises:
            BusyError: the batcher has ended.
            LeftError: ``gone`` is set before the rows are computed.
        """
        ask = _Ask(forward, list(samples), options, gone)
        with self._changed:
            self.check_open()
            self._asks.append(ask)
            self._changed.notify()
        ask.done.wait()
        if isinstance(ask.results, Exception):
            raise ask.results
        return ask.results

    def _run(self) -> None:
        while batch := self._next():
            rows = [row for ask in batch for row in ask.samples]
            with self.in_turn(), torch.inference_mode():
                self.running = len(rows)
                results = iter(halving(_guarded(batch[0]), rows))
                self.running = 0
            self.ended.extend([time.monotonic()] * len(rows))
            for ask in batch:
                ask.end([next(results) for _ in ask.samples])

    def pause(self, *_: object) -> None:
        """Between two passes of a batch that needs many, in the batch's thread: let other models go first.

        Raises:
            DrainingError: the batcher ends now.
            LeftError: nobody waits for the batch any more.
        """
        self.turn.pass_on()
        if self._over:
            raise DrainingError("the server ends.")
        if all(ask.gone.is_set() for ask in self._batch):
            raise LeftError

    def _next(self) -> list[_Ask]:
        """What runs next, or nothing at the end: the rows that came first, and what may join them."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._asks or not self._open, PATIENCE)
                for ask in (left := [ask for ask in self._asks if ask.gone.is_set()]):
                    ask.end(LeftError())
                self._asks = [ask for ask in self._asks if ask not in left]
                if self._over or not (self._asks or self._open):
                    return []
                if self._asks:
                    break
            batch, rows = self._asks[:1], list(self._asks[0].samples)
            for ask in self._asks[1:]:
                if self._size([*rows, *ask.samples]) <= self.budget and ask.joins(batch[0]):
                    batch.append(ask)
                    rows += ask.samples
            self._asks, self._batch = [ask for ask in self._asks if ask not in batch], batch
            return batch

    def _size(self, rows: Sequence[Sample]) -> int:
        lengths = [row.length for row in rows]
        return max(lengths) * len(lengths) if self.padded else sum(lengths)

    def _fail_all(self, error: TranseptError) -> None:
        with self._changed:
            asks, self._asks = [*self._batch, *self._asks], []
        for ask in asks:
            ask.end(error)


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
