"""Engines that fail in the middle: what clients and supervisors see."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.pace import within
from tests.thorough import in_turn
from transept.serving.doors import Options

from .conftest import Server, Stream, until


def raises(server: Server) -> None:
    """No pass can be planned."""
    server.engine.scheduler.plan = None  # type: ignore[assignment, method-assign]


def hangs(server: Server) -> None:
    """A pass does not end."""
    server.engine.runner.run = lambda parts: time.sleep(3)  # type: ignore[assignment, method-assign, return-value]


def dies(server: Server) -> None:
    """Something ends the thread."""
    identity = server.engine._thread.ident
    assert identity is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(identity), ctypes.py_object(SystemExit))


class Whole(threading.Thread):
    """An answer that is not streamed, awaited in a thread."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url
        self.start()

    def run(self) -> None:
        self.error = httpx.post(f"{self.url}/v1/completions", json={"model": "tiny", "prompt": "a"}, timeout=60).json()["error"]


FAULTS: list[Callable[[Server], None]] = [raises, hangs, dies]


@pytest.mark.parametrize("number", in_turn(range(33), 1))
@pytest.mark.parametrize("fault", FAULTS)
def test_an_engine_that_fails_ends_its_streams_and_the_server(
    folder: Path, fault: Callable[[Server], None], number: int
) -> None:
    watchdog = 0.5
    server = Server(folder, Options(grace=0.5, watchdog=watchdog), max_rows=4)
    try:
        stream, waiting = Stream(server.url, prompt=["a"] * 40), Whole(server.url)
        until(lambda: server.ending.traffic.requests == 2)
        time.sleep(number / 1000)
        with within(2 + watchdog):
            fault(server)
            with within(1 + watchdog):
                until(lambda: httpx.get(f"{server.url}/health").status_code == 503)
            stream.join(10)
        waiting.join(10)
        assert [asked.error["code"] for asked in (stream, waiting)] == ["engine_dead"] * 2
        until(lambda: not server.thread.is_alive())
        assert server.ending.code == 1
    finally:
        server.close()


def test_a_server_may_stay_where_an_engine_has_failed(folder: Path) -> None:
    server = Server(folder, Options(grace=0.0, exits_on_failure=False))
    try:
        raises(server)
        until(lambda: httpx.get(f"{server.url}/health").status_code == 503)
        time.sleep(0.3)
        found = httpx.post(f"{server.url}/v1/completions", json={"model": "tiny", "prompt": "a"})
        assert (found.status_code, found.json()["error"]["code"]) == (503, "engine_dead")
    finally:
        server.close()
    assert server.ending.code == 0
