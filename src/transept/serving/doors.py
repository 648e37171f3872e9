"""What stands before the routes: hosts, keys, types and sizes of bodies, and their JSON. Pure ASGI."""

from __future__ import annotations

import hmac
import re
import uuid
from collections.abc import Callable, Collection

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from transept.errors import TranseptError
from transept.serving.replies import reply
from transept.storage.files import parse_json

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})
Count = Callable[[str, int], object]
FORMS = frozenset({"/v1/audio/transcriptions"})  # what takes a form in the place of JSON
OPEN = frozenset({"/health", "/ready", "/"})  # what needs no key, nor does the page below /assets/
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


class Door:
    """Refuses what need not be looked at further: by its host, its key, the type and the size of its body, its JSON.

    Args:
        app: what is behind it.
        hosts: names that the server answers to, without ports; ``None`` for any.
        keys: one of which a request must have; none where empty.
        max_body: bytes of a body at most.
        count: told of the route and the status of each answer.
    """

    def __init__(
        self, app: ASGIApp, *, hosts: Collection[str] | None, keys: Collection[str], max_body: int, count: Count
    ) -> None:
        self.app, self.hosts, self.max_body, self.count = app, hosts, max_body, count
        self.keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}
        given = headers.get("x-request-id", "")
        number = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.count(getattr(scope.get("route"), "path", "none"), message["status"])
                message.setdefault("headers", []).append((b"x-request-id", number.encode()))
            await send(message)

        if (refusal := self._refusal(scope, headers)) is not None:
            await refusal(scope, receive, told)
            return
        if scope["method"] in ("POST", "PUT", "PATCH"):
            body = await self._body(receive)
            if (refusal := self._refusal_of(scope, body)) is not None:
                await refusal(scope, receive, told)
                return
            receive = _again(body or b"", receive)
        await self.app(scope, receive, told)

    def _refusal_of(self, scope: Scope, body: bytes | None) -> JSONResponse | None:
        if body is None:
            return reply(413, f"the body is longer than {self.max_body} bytes.")
        if scope["path"] in FORMS:
            return None
        try:
            parse_json(body.decode())
        except UnicodeDecodeError:
            return reply(400, "the body is no UTF-8.")
        except TranseptError as error:
            return reply(400, f"the body {error}")
        return None

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> JSONResponse | None:
        host = headers.get("host", "").lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if self.hosts is not None and name not in self.hosts:
            return reply(403, "this server does not answer to that host.")
        if self.keys and scope["path"] not in OPEN and not scope["path"].startswith("/assets/"):
            scheme, _, key = headers.get("authorization", "").partition(" ")
            given = key.strip().encode() if scheme.lower() == "bearer" else b""
            if not sum(hmac.compare_digest(given, key) for key in self.keys):  # all of them, so that time tells nothing
                return reply(401, "the key is missing or wrong.")
        if scope["method"] in ("POST", "PUT", "PATCH"):
            wanted = "multipart/form-data" if scope["path"] in FORMS else "application/json"
            if headers.get("content-type", "").partition(";")[0].strip().lower() != wanted:
                return reply(415, f"bodies must be {wanted}.")
            if scope["path"] in FORMS and headers.get("origin", "").partition("://")[2] not in ("", host):
                return reply(403, "this server takes no forms from pages of other sites.")  # browsers let any page send them
            length = headers.get("content-length", "0")
            if not length.isdigit() or int(length) > self.max_body:
                return reply(413, f"the body is longer than {self.max_body} bytes.")
        return None

    async def _body(self, receive: Receive) -> bytes | None:
        """The whole body; ``None`` where it is too long."""
        found, more = bytearray(), True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return bytes(found)
            found += message.get("body", b"")
            more = message.get("more_body", False)
            if len(found) > self.max_body:
                return None
        return bytes(found)


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
