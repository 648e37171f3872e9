"""What stands before the routes: hosts, keys, origins, types, sizes and times of bodies, and their JSON. Pure ASGI."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import time
import traceback
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass

from starlette.responses import JSONResponse, Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from transept.errors import TranseptError
from transept.serving.replies import reply, reply_to
from transept.storage.files import parse_json

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})
LOG = logging.getLogger("transept.requests")  # tells of requests, and never their texts
Count = Callable[[str, int], object]
FORMS = frozenset({"/v1/audio/transcriptions"})  # what takes a form in the place of JSON
_OPEN = frozenset({"/health", "/ready", "/"})  # what needs no key, and is answered to the end; /assets/ too
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_WITH_BODY = ("POST", "PUT", "PATCH")
_SHOWN = (b"access-control-expose-headers", b"x-request-id, retry-after")
_METHODS = {"access-control-allow-methods": "GET, POST", "access-control-max-age": "600"}


@dataclass
class Options:
    """How a server answers.

    Args:
        hosts: names that it answers to, without ports; those of this machine where absent, and any where ``None``.
        keys: one of which a request must have; none where empty.
        origins: sites whose pages may read answers, ``*`` for all; none where empty.
        max_body: bytes of a body at most.
        header_timeout: seconds in which the headers of a request must be there.
        body_timeout: seconds in which its body must be there.
        write_timeout: seconds after which a client that takes no byte of its answer is dropped.
        request_timeout: seconds after which an answer ends with an error.
        watchdog: seconds that a pass may take before its model counts as dead.
        grace: seconds in which answers may end when the server does.
        exits_on_failure: whether the server ends when a model has failed.
        docs: whether ``/docs`` shows the routes.
        max_texts: inputs of a request of a task at most.
        page: whether ``/`` shows a page to try the models at.
    """

    hosts: Collection[str] | None = LOOPBACK
    keys: Collection[str] = ()
    origins: Collection[str] = ()
    max_body: int = 8 * 2**20
    header_timeout: float = 10.0
    body_timeout: float = 30.0
    write_timeout: float = 60.0
    request_timeout: float = 600.0
    watchdog: float = 30.0
    grace: float = 30.0
    exits_on_failure: bool = True
    docs: bool = False
    max_texts: int = 2048
    page: bool = True


@dataclass
class Traffic:
    """Requests that are being answered, and whether no more are taken."""

    requests: int = 0
    draining: bool = False


class Door:
    """Refuses what need not be looked at further, ends answers that take too long, and tells of those that fail.

    Args:
        app: what is behind it.
        options: how the server answers.
        traffic: counts what is being answered.
        count: told of the route and the status of each answer.
    """

    def __init__(self, app: ASGIApp, *, options: Options, traffic: Traffic, count: Count) -> None:
        self.app, self.options, self.traffic, self.count = app, options, traffic, count
        self.keys = [key.encode() for key in options.keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}
        answer = _Answer(self, scope, headers, send)
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await answer.end(refusal)
            answer.tell()
            return
        self.traffic.requests += 1
        try:
            async with asyncio.timeout(self.options.request_timeout) as limit:
                await self._pass(scope, receive, answer)
        except Exception as error:
            late = isinstance(error, TimeoutError) and limit.expired()
            if not late and not isinstance(error, TranseptError):
                place = traceback.extract_tb(error.__traceback__)[-1]
                what = f"{type(error).__name__} in {place.name}, line {place.lineno} of {place.filename}"
                LOG.error("%s fails with %s", answer.number, what)  # without its text, which may be the user's
            await answer.end(reply(504, "the answer takes too long.", "timeout") if late else reply_to(error))
        finally:
            self.traffic.requests -= 1
            answer.tell()

    async def _pass(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        """Read the body, where there is a route for it, and let the route answer."""
        routed = any(route.matches(scope)[0] is Match.FULL for route in scope["app"].routes)
        if routed and scope["method"] in _WITH_BODY:
            if (refusal := self._refusal_of_type(scope["path"], answer.headers)) is None:
                body, refusal = await self._read(scope["path"], receive)
            if refusal is not None:
                await answer.end(refusal)
                return
            answer.read, receive = len(body), _again(body, receive)
        await self.app(scope, receive, answer)

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> Response | None:
        host = headers.get("host", "").lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if self.options.hosts is not None and name not in self.options.hosts:
            return reply(403, "this server does not answer to that host.")
        wanted = headers.get("access-control-request-headers", "")
        if scope["method"] == "OPTIONS" and "access-control-request-method" in headers and self.allows(headers):
            return Response(None, 204, _METHODS | {"access-control-allow-headers": wanted})
        if scope["path"] in _OPEN or scope["path"].startswith("/assets/"):
            return None
        if self.keys:
            scheme, _, key = headers.get("authorization", "").partition(" ")
            given = key.strip().encode() if scheme.lower() == "bearer" else b""
            if not sum(hmac.compare_digest(given, key) for key in self.keys):  # all of them, so that time tells nothing
                return reply(401, "the key is missing or wrong.")
        if self.traffic.draining and scope["path"] != "/metrics":
            return reply(503, "the server ends, and takes no more requests.", "draining")
        return None

    def allows(self, headers: dict[str, str]) -> bool:
        """Whether pages of the site that asks may read the answer."""
        return "origin" in headers and bool({"*", headers["origin"]} & set(self.options.origins))

    def _refusal_of_type(self, path: str, headers: dict[str, str]) -> JSONResponse | None:
        wanted = "multipart/form-data" if path in FORMS else "application/json"
        if headers.get("content-type", "").partition(";")[0].strip().lower() != wanted:
            return reply(415, f"bodies must be {wanted}.")
        site = headers.get("origin", "").partition("://")[2]
        if path in FORMS and site not in ("", headers.get("host")) and not self.allows(headers):
            return reply(403, "this server takes no forms from pages of other sites.")  # browsers let any page send them
        length = headers.get("content-length", "0")
        return None if length.isdigit() and int(length) <= self.options.max_body else self._too_long()

    def _too_long(self) -> JSONResponse:
        return reply(413, f"the body is longer than {self.options.max_body} bytes.")

    async def _read(self, path: str, receive: Receive) -> tuple[bytes, JSONResponse | None]:
        """The body, and why it is none of a request."""
        found, more = bytearray(), True
        try:
            async with asyncio.timeout(self.options.body_timeout):
                while more and len(found) <= self.options.max_body:
                    message = await receive()
                    found += message.get("body", b"")
                    more = message.get("more_body", False)
        except TimeoutError:
            late = reply(408, "the body takes too long to come.")
            late.headers["connection"] = "close"
            return b"", late
        if len(found) > self.options.max_body:
            return b"", self._too_long()
        try:
            if path not in FORMS:
                parse_json(found.decode())
        except UnicodeDecodeError:
            return b"", reply(400, "the body is no UTF-8.")
        except TranseptError as error:
            return b"", reply(400, f"the body {error}")
        return bytes(found), None


class _Answer:
    """What goes out for a request: with its id and what browsers ask for, counted, and ended with an error where it fails."""

    def __init__(self, door: Door, scope: Scope, headers: dict[str, str], send: Send) -> None:
        self.door, self.scope, self.headers, self.send = door, scope, headers, send
        given = headers.get("x-request-id", "")
        self.number = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        self.status, self.read, self.written, self.is_stream, self.is_whole = 499, 0, 0, False, False
        self.began = time.perf_counter()

    @property
    def route(self) -> str:
        """Never the path that was asked for, which may be anything."""
        return getattr(self.scope.get("route"), "path", "none")

    async def __call__(self, message: Message) -> None:
        """Send a part of the answer."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.door.count(self.route, self.status)
            headers = message.setdefault("headers", [])
            self.is_stream = any(value.startswith(b"text/event-stream") for _, value in headers)
            headers.append((b"x-request-id", self.number.encode()))
            if self.door.options.origins:
                headers.append((b"vary", b"origin"))
                if self.door.allows(self.headers):
                    headers += [(b"access-control-allow-origin", self.headers["origin"].encode("latin-1")), _SHOWN]
        else:
            self.written += len(message.get("body", b""))
            self.is_whole = not message.get("more_body", False)
        await self.send(message)

    async def end(self, response: Response) -> None:
        """Answer so, or let a stream that has begun end with it."""
        if self.status == 499:
            await self({"type": "http.response.start", "status": response.status_code, "headers": list(response.raw_headers)})
            await self({"type": "http.response.body", "body": bytes(response.body)})
        elif self.is_stream and not self.is_whole:
            await self({"type": "http.response.body", "body": b"data: " + bytes(response.body) + b"\n\n"})

    def tell(self) -> None:
        """Log what was asked and answered, without any text."""
        spent = time.perf_counter() - self.began
        sizes = (self.status, self.read, self.written, spent)
        LOG.info("%s %s %s: %d, %d bytes in, %d bytes out, %.3f s", self.number, self.scope["method"], self.route, *sizes)


def _again(body: bytes, receive: Receive) -> Receive:
    """Gives the body once, and then what comes: that the client has left."""
    read = False

    async def once() -> Message:
        nonlocal read
        if read:
            return await receive()
        read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return once
