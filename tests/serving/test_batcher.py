"""Batches that form by themselves, without a model."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from transept.errors import InputError
from transept.pipelines.batching import Sample
from transept.serving.batcher import Batcher, LeftError
from transept.serving.errors import DrainingError, FailedError
from transept.serving.worker import Turns

from .conftest import until


class Work:
    """Rows of many threads, of which batches hold the lengths that were computed together."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.batcher = Batcher(10, padded=False)
        self.batcher.start()
        self.threads: list[threading.Thread] = []
        self.results: dict[str, Any] = {}

    def forward(self, samples: Sequence[Sample], options: Any) -> list[int]:
        self.batches.append([sample.length for sample in samples])
        if any(sample.length == 7 for sample in samples):
            raise InputError("seven")
        if any(sample.length == 8 for sample in samples):
            raise ZeroDivisionError
        return [2 * sample.length for sample in samples]

    def ask(self, name: str, *lengths: int, options: Any = None, gone: threading.Event | None = None) -> None:
        """Ask in a thread, after those before."""

        def run() -> None:
            rows = [Sample.of([0] * length) for length in lengths]
            try:
                self.results[name] = self.batcher.run(self.forward, gone or threading.Event(), rows, options)
            except Exception as error:
                self.results[name] = error

        waiting, ran = len(self.batcher._asks), len(self.batches)
        self.threads.append(threading.Thread(target=run))
        self.threads[-1].start()
        until(lambda: len(self.batcher._asks) > waiting or len(self.batches) > ran or len(self.threads) == 1)

    def end(self) -> None:
        for thread in self.threads:
            thread.join(10)


@pytest.fixture
def work() -> Iterator[Work]:
    made = Work()
    yield made
    made.batcher.close()


def blocked(work: Work) -> Turns:
    """The turn of the batches, which a first one waits for."""
    turn = work.batcher.turn
    turn.__enter__()
    work.ask("first", 1)
    until(lambda: bool(turn._waiting))
    return turn


def test_what_waits_is_the_next_batch(work: Work) -> None:
    turn = blocked(work)
    work.ask("a", 2, 3)
    work.ask("long", 30)
    work.ask("other", 1, options="other")
    work.ask("b", 4)
    work.ask("c", 5)
    turn.__exit__()
    work.end()
    assert work.batches == [[1], [2, 3, 4], [30], [1], [5]]
    assert work.results == {"first": [2], "a": [4, 6], "long": [60], "other": [2], "b": [8], "c": [10]}


def test_rows_that_fail_fail_alone(work: Work) -> None:
    turn = blocked(work)
    work.ask("a", 1)
    work.ask("b", 7, 1)
    turn.__exit__()
    work.end()
    work.ask("c", 1, 8)
    work.end()
    assert work.results["a"] == [2]
    assert isinstance(work.results["b"][0], InputError)
    assert work.results["b"][1] == 2
    assert isinstance(work.results["c"][1], FailedError)
    assert work.batcher.is_healthy(1)


def test_what_nobody_waits_for_is_not_computed(work: Work) -> None:
    turn, gone = blocked(work), threading.Event()
    work.ask("gone", 3, gone=gone)
    work.ask("a", 4)
    gone.set()
    turn.__exit__()
    work.end()
    assert isinstance(work.results["gone"], LeftError)
    assert work.batches == [[1], [4]]


def test_the_end_lets_what_waits_be_computed(work: Work) -> None:
    turn = blocked(work)
    work.ask("a", 2)
    threading.Timer(0.2, turn.__exit__).start()
    work.batcher.close(10)
    work.end()
    assert work.results["a"] == [4]
    with pytest.raises(DrainingError):
        work.batcher.run(work.forward, threading.Event(), [Sample.of([0])], None)


def test_turns_go_round() -> None:
    turns, order = Turns(), list[str]()

    def take(name: str) -> None:
        for _ in range(20):
            with turns:
                order.append(name)
                time.sleep(0.001)

    threads = [threading.Thread(target=take, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    middle = order[5:-5]
    assert all(len(set(middle[start : start + 3])) == 3 for start in range(len(middle) - 8))


def test_others_go_first_in_the_middle_of_a_long_batch() -> None:
    turns, order, begun = Turns(), list[str](), threading.Event()
    batcher = Batcher(10, padded=False)
    batcher.turn = turns

    def long(samples: Sequence[Sample], options: Any) -> list[int]:
        begun.set()
        until(lambda: len(turns._waiting) == 1)
        order.append("long")
        batcher.pause()
        order.append("long")
        assert batcher.is_healthy(1)
        return [0]

    def short() -> None:
        with turns:
            order.append("short")

    batcher.start()
    gone = threading.Event()
    threads = [threading.Thread(target=batcher.run, args=(long, gone, [Sample.of([0])], None)), threading.Thread(target=short)]
    threads[0].start()
    assert begun.wait(10)
    threads[1].start()
    for thread in threads:
        thread.join(10)
    batcher.close(1)
    assert order == ["long", "short", "long"]


def test_how_long_rows_take_is_told_by_the_last_ones(work: Work) -> None:
    assert work.batcher.seconds_for(1000) == 1
    work.batcher.ended.extend(time.monotonic() - 10 + number for number in range(10))
    assert work.batcher.seconds_for(5) in (5, 6)
    assert work.batcher.seconds_for(1000) == 60


def ask(work: Work, length: int) -> asyncio.Task[list[int]]:
    """Ask from an event loop, which goes on."""
    return asyncio.ensure_future(work.batcher.ask(work.forward, [Sample.of([0] * length)], None))


def test_an_event_loop_asks_without_threads(work: Work) -> None:
    async def run() -> None:
        with work.batcher.turn:
            first = ask(work, 1)
            await asyncio.sleep(0.05)
            tasks = [ask(work, length) for length in (2, 3, 7)]
            await asyncio.sleep(0)
            tasks[1].cancel()
            await asyncio.sleep(0)
        assert [await first, await tasks[0]] == [[2], [4]]
        assert isinstance((await tasks[2])[0], InputError)

    asyncio.run(run())
    assert work.batches[:2] == [[1], [2, 7]]  # and nothing of who has left


def test_results_for_an_event_loop_that_has_ended_are_dropped(work: Work) -> None:
    work.batcher.gives_way = True

    async def leave() -> None:
        ask(work, 1)
        await asyncio.sleep(0.05)

    with work.batcher.turn:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(leave())
        loop.close()
    work.ask("a", 2)
    work.end()
    assert work.results["a"] == [4]


def test_what_an_event_loop_asks_after_its_answers_is_the_next_batch(work: Work) -> None:
    work.batcher.gives_way = True

    async def client() -> None:
        for _ in range(20):
            await ask(work, 1)
            time.sleep(0.001)

    async def run() -> None:
        await asyncio.gather(client(), client(), client())

    asyncio.run(run())
    assert work.batches.count([1, 1, 1]) >= 18
