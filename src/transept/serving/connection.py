"""Connections whose clients must say what they want and take what they are given in time."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from transept.serving.replies import reply

_UNSENT = 2**15  # bytes that the system holds beyond what is on its way


class Connection(H11Protocol):
    """uvicorn's, with a timer: for the headers of a request, and for clients that take none of their answer.

    Args:
        header_timeout: seconds from the first byte, or the beginning of the connection, to the end of the headers.
        write_timeout: seconds after which a client that takes no byte is dropped.
    """

    def __init__(self, *, header_timeout: float, write_timeout: float, **given: Any) -> None:
        super().__init__(**given)
        self.header_timeout, self.write_timeout = header_timeout, write_timeout
        self._for_headers: asyncio.TimerHandle | None = None
        self._for_reader: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.set_write_buffer_limits(high=0)  # what the system does not take at once is waited for
        if (own := transport.get_extra_info("socket")).family != socket.AF_UNIX:
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # or the end of an answer waits for 40 ms
            if (lowest := getattr(socket, "TCP_NOTSENT_LOWAT", None)) is not None:
                own.setsockopt(socket.IPPROTO_TCP, lowest, _UNSENT)  # or a slow reader seems to take nothing for long
        super().connection_made(transport)
        self._watch_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for timer in (self._for_headers, self._for_reader):
            if timer is not None:
                timer.cancel()

    def _watch_headers(self) -> None:
        """Let the timer run where a request has begun, or none has yet, and its headers are not there."""
        if not getattr(self.cycle, "response_complete", True):
            if self._for_headers is not None:
                self._for_headers.cancel()
                self._for_headers = None
        elif self._for_headers is None:
            self._for_headers = self.loop.call_later(self.header_timeout, self.transport.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader(-1)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._for_reader is not None:
            self._for_reader.cancel()

    def _watch_reader(self, left: int) -> None:
        """Look again and again whether the client takes something: what is left to send must be less each time."""
        now = self.transport.get_write_buffer_size()
        if now == left:
            self.transport.abort()
        else:
            self._for_reader = self.loop.call_later(self.write_timeout, self._watch_reader, now)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP as all other errors are answered, unless an answer has begun."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            refusal = reply(400, "the request is no HTTP.")
            headers = [*refusal.raw_headers, (b"connection", b"close")]
            for event in (
                h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
                h11.Data(data=bytes(refusal.body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
