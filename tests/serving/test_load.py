"""Many clients at once, some of which leave, and rows that fail among many: what others see of it."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.pace import within
from transept.serving.doors import Options
from transept.serving.models import Loader
from transept.serving.store import Models

from .conftest import Running, Server, save_model, until
from .test_engine import Poisoned

WANTED: dict[str, Any] = {"model": "tiny", "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}


LONG = {"max_tokens": 16_000, "min_tokens": 16_000}  # for which no client of these tests waits


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server for rows of many tokens."""
    path = save_model(tmp_path_factory.mktemp("busy") / "tiny", max_position_embeddings=2**14)
    made = Server(path, Options(grace=0.0), max_rows=64, max_waiting=128)
    yield made
    made.close()


def ask(server: Running, **more: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/completions", json=WANTED | more, timeout=60)


def is_idle(server: Server) -> bool:
    return not (server.engine.running or server.engine.waiting or server.ending.traffic.requests)


@pytest.mark.parametrize("streams", [False, True])
def test_a_hundred_clients_that_leave_cost_nothing(busy: Server, streams: bool) -> None:
    wanted = ask(busy).json()["choices"]

    def leave(number: int) -> None:
        with suppress(httpx.TimeoutException), httpx.Client(timeout=0.02 + number % 10 / 100) as client:
            client.post(f"{busy.url}/v1/completions", json=WANTED | LONG | {"stream": streams})

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(leave, range(100)))
    with within(1):
        until(lambda: is_idle(busy))
    assert busy.engine.memory.row_blocks == 0
    with within(1):
        assert ask(busy).json()["choices"] == wanted
    metrics = httpx.get(f"{busy.url}/metrics").text
    assert 'transept_rows_running{model="tiny"} 0.0' in metrics
    assert 'transept_cache_bytes{kind="rows",model="tiny"} 0.0' in metrics


def test_a_row_is_free_a_pass_after_its_client_has_left(busy: Server) -> None:
    for _ in range(10):
        with httpx.stream("POST", f"{busy.url}/v1/completions", json=WANTED | LONG | {"stream": True}) as answer:
            lines = answer.iter_lines()  # which closes the connection when nobody holds it any more
            assert '"text"' in next(lines)
            assert busy.engine.running
            with within(0.3):  # which counts the time of all threads, and the engine never rests
                answer.close()
                until(lambda: not busy.engine.running)


def test_sixty_four_streams_at_once(busy: Server) -> None:
    before, firsts, late = psutil.Process().memory_info().rss, list[float](), list[float]()
    begins = threading.Barrier(65)

    def read(number: int) -> str:
        begins.wait()
        began, lines = time.perf_counter(), list[str]()
        with httpx.stream(
            "POST", f"{busy.url}/v1/completions", json=WANTED | {"stream": True, "seed": number}, timeout=60
        ) as found:
            for line in found.iter_lines():
                if not lines:
                    firsts.append(time.perf_counter() - began)
                lines += [line] if line else []
        return lines[-1]

    with ThreadPoolExecutor(64) as pool, httpx.Client() as client:
        ends = [pool.submit(read, number) for number in range(64)]
        begins.wait()
        began_all = time.perf_counter()
        while not all(end.done() for end in ends):
            began = time.perf_counter()
            assert client.get(f"{busy.url}/health").status_code == 200
            late.append(time.perf_counter() - began)
        assert {end.result() for end in ends} == {"data: [DONE]"}
    whole = time.perf_counter() - began_all
    assert statistics.median(late) < max(0.1, whole / 20)  # which is more where other programs take the processor
    assert len(firsts) == 64
    assert psutil.Process().memory_info().rss - before < 200e6


@pytest.mark.parametrize("max_rows", [4, 64])
def test_a_short_request_does_not_wait_for_long_ones(busy: Server, max_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(busy.engine.scheduler, "max_rows", max_rows)
    ended = list[str]()

    def long(number: int) -> None:
        ask(busy, prompt=chr(65 + number) * 400, max_tokens=100)
        ended.append("long")

    with ThreadPoolExecutor(25) as pool:
        with busy.engine.turn:  # no pass begins before all are there
            for number in range(24):
                pool.submit(long, number)
            until(lambda: busy.engine.waiting == 24)
        until(lambda: len(busy.engine.running) >= 4)
        ask(busy, max_tokens=2)
        ended.append("short")
    assert ended.index("short") <= 12
    assert len(ended) == 25


def test_over_the_queue_is_refused_at_once_and_what_was_taken_is_right(folder: Path) -> None:
    server = Server(folder, Options(grace=0.0), max_rows=2, max_waiting=6)
    try:
        wanted = ask(server, max_tokens=100).json()["choices"][0]["text"]
        begins = threading.Barrier(40)

        def asked(number: int) -> httpx.Response:
            begins.wait()
            return ask(server, max_tokens=100)

        with ThreadPoolExecutor(40) as pool:
            found = list(pool.map(asked, range(40)))
        taken = [answer for answer in found if answer.status_code == 200]
        refused = [answer for answer in found if answer.status_code == 429]
        assert len(taken) + len(refused) == 40
        assert len(taken) >= 8
        assert {answer.json()["choices"][0]["text"] for answer in taken} == {wanted}
        assert all(1 <= int(answer.headers["retry-after"]) <= 60 for answer in refused)
        server.engine.max_waiting = 0
        with within(20 * 0.1):
            assert {ask(server).status_code for _ in range(20)} == {429}
    finally:
        server.close()


def test_poison_among_sixty_three_others(folder: Path) -> None:
    server = Server(folder, Options(grace=0.0), max_rows=64)
    try:
        prompts = [f"Number {number}" for number in range(63)]
        alone = [ask(server, prompt=prompt).json()["choices"][0]["text"] for prompt in prompts]
        backbone = server.engine.model.backbone
        backbone.embed_tokens = Poisoned(backbone.embed_tokens)
        with ThreadPoolExecutor(64) as pool:
            bad = pool.submit(ask, server, prompt=[5, 6, 2])
            found = list(pool.map(lambda prompt: ask(server, prompt=prompt), prompts))
        assert [answer.json()["choices"][0]["text"] for answer in found] == alone
        assert bad.result().status_code == 500
        assert "RuntimeError" in bad.result().json()["error"]["message"]
        assert "poison" not in bad.result().text
        assert httpx.get(f"{server.url}/health").status_code == 200
    finally:
        server.close()


def own_threads() -> int:
    return sum(thread.name.startswith("transept") for thread in threading.enumerate())


def test_loads_and_unloads_keep_no_memory(folder: Path) -> None:
    models = Models(Loader(engine={"cache_bytes": 2**20}), keep_alive=-1)
    models.offer("other", str(folder))
    server, process = Running(models, Options(grace=0.0)), psutil.Process(os.getpid())
    try:
        with httpx.Client(base_url=server.url, timeout=60) as client:

            def turn(count: int) -> None:
                for _ in range(count):
                    assert client.post("/v1/models/load", json={"model": "other"}).json()["loaded"]
                    assert not client.post("/v1/models/unload", json={"model": "other"}).json()["loaded"]

            turn(10)
            before, threads = process.memory_info().rss, own_threads()
            turn(10)
            assert process.memory_info().rss - before < 10e6
            assert own_threads() == threads
    finally:
        server.close()
