"""A server that ends as it should: by signals, and where a model fails."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from transept.serving.connection import Connection
from transept.serving.doors import LOG, Options, Traffic
from transept.serving.store import Models

_LAST = 1.0  # seconds in which what has failed is told to clients
_HANGS = 3.0  # seconds after the grace in which the process ends, whatever hangs


class Server(uvicorn.Server):
    """Answers until :meth:`end`, a signal, or the failure of a model, and then lets answers end within the grace.

    While they do, new requests are answered by 503. A second signal ends the process at once. What :func:`make_app` has put in
    ``app.state`` is read.

    Args:
        app: of :func:`transept.serving.app.make_app`.
        ready: called when it answers and signals are heard.
    """

    def __init__(self, app: FastAPI, ready: Callable[[], object] = bool) -> None:
        self.ready = ready
        self.options: Options = app.state.options
        self.traffic: Traffic = app.state.traffic
        self.models: Models = app.state.models
        self.code: int | None = None  # with which the process should exit; none while nothing has ended
        self._ends, self._owns_process = math.inf, False
        times = {"header_timeout": self.options.header_timeout, "write_timeout": self.options.write_timeout}
        connection: Any = functools.partial(Connection, **times)
        how: dict[str, Any] = {"http": connection, "ws": "none", "lifespan": "on", "log_level": "critical"}
        super().__init__(uvicorn.Config(app, **how, access_log=False, timeout_graceful_shutdown=1))

    def end(self, code: int = 0) -> None:
        """Let answers end; of a failure the models that have not failed go on answering until then."""
        if self.code is not None:
            return
        self.code, self._ends, self.traffic.draining = code, time.monotonic() + self.options.grace, code == 0
        if self._owns_process:
            last = threading.Timer(self.options.grace + _HANGS, os._exit, (code,))
            last.daemon = True
            last.start()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.code is not None:
            os._exit(128 + sig)
        self.end()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        self._owns_process = threading.current_thread() is threading.main_thread()
        if not self._owns_process:
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._owns_process:
            gc.collect()
            gc.freeze()  # the garbage collector looks through models again and again else, while all requests wait
        self.ready()

    async def on_tick(self, counter: int) -> bool:
        for name in self.models.fail_unhealthy(self.options.watchdog):
            if self.code is None and not counter % 100:
                LOG.error("the model %s answers no more: its thread has failed, or a pass hangs", name)
            if self.options.exits_on_failure:
                self.end(1)
        ended = self.traffic.draining and not self.traffic.requests and not self._sends
        return await super().on_tick(counter) or ended or time.monotonic() > self._ends

    @property
    def _sends(self) -> bool:
        """Whether a client has not taken all of its answer."""
        return any(connection.transport.get_write_buffer_size() for connection in self.server_state.connections)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.traffic.draining = True
        await asyncio.to_thread(self.models.close, 0.0)
        ends = time.monotonic() + _LAST
        while (self.traffic.requests or self._sends) and time.monotonic() < ends:
            await asyncio.sleep(0.02)
        for connection in tuple(self.server_state.connections):
            connection.transport.abort()
        await super().shutdown(sockets)
