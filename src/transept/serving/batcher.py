"""Batches that form by themselves: what waits while one runs is the next one."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from transept.errors import TranseptError
from transept.pipelines.batching import Sample, halving
from transept.serving.errors import DrainingError, FailedError
from transept.serving.worker import PATIENCE, Worker

_TURNS = 10  # of an event loop without a new request, after which it has written all answers of a batch
_LONGEST = 0.1  # seconds to wait for that at most

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
    tell: Callable[[], object]  # whoever waits that the results are there
    loop: asyncio.AbstractEventLoop | None = None  # that waits, where no thread does
    results: list[Any] | Exception | None = None

    def end(self, results: list[Any] | Exception) -> None:
        """Hand over the results, or why there are none; the first ones count."""
        if self.results is None:
            self.results = results
            self.tell()

    def given(self) -> list[Any]:
        """The results, or the error that there is in their place."""
        assert self.results is not None
        if isinstance(self.results, Exception):
            raise self.results
        return self.results

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
        gives_way: whether the event loop answers before the next batch begins: where both want the same cores, they take
            longer at once than one after the other.
    """

    def __init__(self, budget: int, *, padded: bool, gives_way: bool = False) -> None:
        super().__init__("transept-batches")
        self.budget, self.padded, self.gives_way = budget, padded, gives_way
        self.running = 0  # rows of the batch that runs
        self._asks: list[_Ask] = []
        self._batch: list[_Ask] = []  # what runs

    def run(self, forward: Forward, gone: threading.Event, samples: Sequence[Sample], options: Any) -> list[Any]:
        """What ``forward`` makes of rows of one group, or errors of ours in their places; blocks until that is there.

        Raises:
            BusyError: the batcher has ended.
            LeftError: ``gone`` is set before the rows are computed.
        """
        done = threading.Event()
        ask = self._add(_Ask(forward, list(samples), options, gone, done.set))
        done.wait()
        return ask.given()

    async def ask(self, forward: Forward, samples: Sequence[Sample], options: Any) -> list[Any]:
        """As :meth:`run`, for an event loop, which waits without a thread; rows of a task that is cancelled are dropped."""
        loop, gone, done = asyncio.get_running_loop(), threading.Event(), asyncio.Event()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody waits
                loop.call_soon_threadsafe(done.set)

        ask = self._add(_Ask(forward, list(samples), options, gone, tell, loop))
        try:
            await done.wait()
        finally:
            gone.set()
        return ask.given()

    def _add(self, ask: _Ask) -> _Ask:
        with self._changed:
            self.check_open()
            self._asks.append(ask)
            self._changed.notify()
        return ask

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
            if self.gives_way and batch[0].loop is not None:
                self._give_way(batch[0].loop)

    def _give_way(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait until an event loop has written the answers of a batch, and has read what comes meanwhile."""
        done = threading.Event()

        def turn(left: int, waiting: int) -> None:
            left = left - 1 if waiting == len(self._asks) else _TURNS
            if left:
                loop.call_soon(turn, left, len(self._asks))
            else:
                done.set()

        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(turn, _TURNS, len(self._asks))
            done.wait(_LONGEST)

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
