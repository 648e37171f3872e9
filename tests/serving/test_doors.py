"""What stands before the routes, over real sockets: bodies, times, origins, Unix sockets, and what is told of requests."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.pace import within
from transept.serving.doors import Options

from .conftest import Server, until

POST = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
ASKED: dict[str, Any] = {"model": "tiny", "prompt": "a", "max_tokens": 4, "temperature": 0}
SECRET = "the duchess hides her pearls"


@pytest.fixture(scope="module")
def quick(folder: Path) -> Iterator[Server]:
    """A server that waits for nobody for long."""
    times = {"header_timeout": 1.0, "body_timeout": 1.0, "write_timeout": 1.0}
    made = Server(folder, Options(origins=["https://a.example"], grace=0.0, **times), context=2**22, max_rows=64)
    yield made
    made.close()


def connect(server: Server, receives: int | None = None) -> socket.socket:
    connection = socket.socket()
    if receives is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives)
    connection.connect(("127.0.0.1", int(server.url.rpartition(":")[2])))
    connection.settimeout(10)
    return connection


def rest(connection: socket.socket) -> bytes:
    """What comes until the server ends the connection."""
    found = b""
    while part := connection.recv(65536):
        found += part
    return found


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def slowly(server: Server, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let each pass take some time."""
    step = server.engine.step

    def slow() -> bool:
        if server.engine.running:
            time.sleep(seconds)
        return step()

    monkeypatch.setattr(server.engine, "step", slow)


KINDS: dict[str, Callable[[int], bytes]] = {
    "no UTF-8": lambda i: b'{"model": "\xff%d"}' % i,
    "cut off": lambda i: json.dumps(ASKED).encode()[: 1 + i % 60],
    "nested": lambda i: b'{"prompt": ' * (70 + i),
    "twice": lambda i: b'{"model": "tiny", "prompt": "%d", "model": "tiny"}' % i,
    "no number": lambda i: b'{"model": "tiny", "prompt": "a", "temperature": %s}' % [b"NaN", b"1e999", b"-Infinity"][i % 3],
    "surrogate": lambda i: b'{"model": "tiny", "prompt": "\\ud800%d"}' % i,
    "no object": lambda i: json.dumps([i, [], None, "text", True, 1.5][i % 6]).encode(),
    "no field": lambda i: json.dumps(ASKED | {f"field{i}": i}).encode(),
    "other type": lambda i: json.dumps(ASKED | {list(ASKED)[i % 4]: [{"a": i}]}).encode(),
    "out of bounds": lambda i: json.dumps(
        ASKED | [{"temperature": 3 + i}, {"n": -i}, {"max_tokens": -i}, {"top_p": 0}, {"prompt": [10**9 + i]}][i % 5]
    ).encode(),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_hundred_bodies_of_a_kind_that_are_no_requests(server: Server, kind: str) -> None:
    with httpx.Client(base_url=server.url, headers={"content-type": "application/json"}) as client:
        for number in range(100):
            found = client.post("/v1/completions", content=KINDS[kind](number))
            error = found.json()["error"]
            assert 400 <= found.status_code < 500
            assert error.keys() == {"message", "type", "param", "code"}
            assert error["type"] == "invalid_request_error"
        assert client.get("/health").status_code == 200
        assert not server.engine.running


@pytest.mark.parametrize(
    ("route", "body", "param"),
    [
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": "a"}, {"role": "king", "content": "a"}]},
            "messages.1.role",
        ),
        ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0"),
        ("chat/completions", {"messages": [{"role": "user", "content": "a", "x": 1}]}, "messages.0.x"),
        ("completions", {"prompt": ["a", 5]}, "prompt.1"),
        ("completions", {"prompt": "a", "stop": ["a", ""]}, "stop.1"),
        ("completions", {"prompt": "a", "stream_options": {}}, "stream_options"),
        ("completions", {"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias"),
        ("completions", {"prompt": "a", "response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ("rerank", {"query": "a", "documents": ["a", {"text": 5}]}, "documents.1.text"),
        ("score", {"text_1": "a", "text_2": ["a", 5]}, "text_2.1"),
        ("embeddings", {"input": [[1, -1]]}, "input.0.1"),
    ],
)
def test_errors_name_the_place(server: Server, route: str, body: dict[str, Any], param: str) -> None:
    found = httpx.post(f"{server.url}/v1/{route}", json={"model": "tiny"} | body)
    assert (found.status_code, found.json()["error"]["param"]) == (400, param)


def test_what_is_no_http_is_told_so(server: Server) -> None:
    with connect(server) as connection:
        connection.sendall(b"what is this\r\n\r\n")
        head, _, body = rest(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert json.loads(body)["error"]["type"] == "invalid_request_error"
    with connect(server) as connection:
        connection.sendall(POST + b"transfer-encoding: chunked\r\n\r\nzzz\r\n")
        assert b"400" in rest(connection).partition(b"\r\n")[0]


def test_silent_and_trickling_connections_end_and_hinder_nobody(quick: Server, stack: ExitStack) -> None:
    def trickle(connection: socket.socket, part: bytes) -> None:
        with suppress(OSError):
            for _ in range(40):
                connection.sendall(part)
                time.sleep(0.1)

    opened = [stack.enter_context(connect(quick)) for _ in range(60)]
    silent, headers, bodies = opened[:40], opened[40:50], opened[50:]
    for connection in headers:
        connection.sendall(POST)
    for connection in bodies:
        connection.sendall(POST + b"content-length: 100\r\n\r\n")
    threads = [threading.Thread(target=trickle, args=(one, b"x-a: b\r\n")) for one in headers[1:]]
    threads += [threading.Thread(target=trickle, args=(one, b" ")) for one in bodies[1:]]
    for thread in threads:
        thread.start()
    with within(3):
        assert httpx.post(f"{quick.url}/v1/completions", json=ASKED).status_code == 200
    with within(3):
        assert all(rest(connection) == b"" for connection in silent)
        assert rest(headers[0]) == b""
        answer = rest(bodies[0])
    assert answer.startswith(b"HTTP/1.1 408")
    assert b'"code":"timeout"' in answer
    for thread in threads:
        thread.join()
    until(lambda: not quick.ending.server_state.connections)


def test_a_reader_that_takes_nothing_is_dropped_and_hinders_nobody(quick: Server, stack: ExitStack) -> None:
    body = json.dumps(ASKED | {"max_tokens": 200, "stream": True, "logprobs": 20, "n": 2}).encode()
    gone, slow = (stack.enter_context(connect(quick, receives=2**16)) for _ in range(2))
    for connection in (gone, slow):
        connection.sendall(POST + b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body) + body)
    found = list[bytes]()

    def read_slowly() -> None:
        while part := slow.recv(2**13):
            found.append(part)
            time.sleep(0.015)

    thread = threading.Thread(target=read_slowly)
    thread.start()
    until(lambda: any(each.transport.get_write_buffer_size() for each in quick.ending.server_state.connections))
    assert httpx.post(f"{quick.url}/v1/completions", json=ASKED).status_code == 200
    until(lambda: not quick.engine.running and not quick.ending.server_state.connections)
    assert quick.engine.memory.row_blocks == 0
    thread.join()
    assert b"".join(found).count(b'"finish_reason":"length"') == 2
    assert b"data: [DONE]" in b"".join(found)
    assert b"[DONE]" not in rest(gone)


def test_an_answer_that_takes_too_long_ends_with_an_error(quick: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    slowly(quick, monkeypatch, 0.05)
    monkeypatch.setattr(quick.ending.options, "request_timeout", 1.5)
    long = ASKED | {"max_tokens": 400}
    found = httpx.post(f"{quick.url}/v1/completions", json=long)
    assert (found.status_code, found.json()["error"]["code"]) == (504, "timeout")
    lines = httpx.post(f"{quick.url}/v1/completions", json=long | {"stream": True}).text.split("\n\n")
    assert json.loads(lines[-2].removeprefix("data: "))["error"]["code"] == "timeout"
    assert json.loads(lines[0].removeprefix("data: "))["choices"]
    until(lambda: not quick.engine.running)


def test_origins(quick: Server, server: Server) -> None:
    asking = {"access-control-request-method": "POST", "access-control-request-headers": "authorization, content-type"}
    url = f"{quick.url}/v1/completions"
    for origin in ("https://a.example", "https://b.example"):
        found = httpx.options(url, headers={"origin": origin, **asking})
        answer = httpx.post(url, headers={"origin": origin}, json=ASKED)
        allowed = origin if "a.ex" in origin else None
        assert [each.headers.get("access-control-allow-origin") for each in (found, answer)] == [allowed, allowed]
        assert answer.headers["vary"] == "origin"
        assert found.status_code == (204 if allowed else 405)
        assert "access-control-allow-credentials" not in {*found.headers, *answer.headers}
    assert found.json()["error"]["code"] == "method_not_allowed"
    assert httpx.options(url, headers={"origin": "https://a.example", "host": "evil.example", **asking}).status_code == 403
    plain = httpx.post(f"{server.url}/v1/completions", headers={"origin": "https://a.example"}, json=ASKED)
    assert not [name for name in plain.headers if name.startswith("access-control") or name == "vary"]


def test_an_error_of_ours_is_a_500_and_its_text_stays_here(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(text: str) -> None:
        raise RuntimeError(f"/a/path {text}")

    monkeypatch.setattr(server.models.get("tiny"), "tokenizer", broken)
    found = httpx.post(f"{server.url}/v1/completions", json=ASKED | {"prompt": SECRET})
    assert found.status_code == 500
    assert found.headers["x-request-id"] in caplog.text
    assert "RuntimeError in broken" in caplog.text
    for text in (found.text, caplog.text):
        assert SECRET not in text
        assert "/a/path" not in text


def test_requests_are_told_without_their_texts(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    body = ASKED | {"prompt": SECRET}
    httpx.post(f"{server.url}/v1/completions", json=body, headers={"x-request-id": "mine-2"})
    httpx.post(f"{server.url}/v1/completions/{SECRET}", json=body | {"field": SECRET})
    httpx.post(f"{server.url}/v1/completions", json=body | {"stop": [""]})
    lines: list[str] = []

    def are_told() -> bool:
        lines[:] = [record.getMessage() for record in caplog.records if record.name == "transept.requests"]
        return len(lines) == 3

    until(are_told)
    size = len(json.dumps(body, separators=(",", ":")))
    assert lines[0].startswith(f"mine-2 POST /v1/completions: 200, {size} bytes in, ")
    assert [line.split()[1:4] for line in lines[1:]] == [["POST", "none:", "404,"], ["POST", "/v1/completions:", "400,"]]
    own = "".join(record.getMessage() for record in caplog.records if not record.name.startswith("http"))
    assert SECRET not in own + httpx.get(f"{server.url}/metrics").text


@pytest.mark.parametrize("streams", [False, True])
def test_a_client_that_left_before_its_answer_begins_leaves_no_row(server: Server, streams: bool) -> None:
    body = json.dumps(ASKED | {"prompt": ["a"] * 8, "max_tokens": 500, "stream": streams}).encode()
    for _ in range(30):
        with connect(server) as connection:
            connection.sendall(POST + b"content-length: %d\r\n\r\n" % len(body) + body)
    until(lambda: not server.engine.running and not server.engine.waiting and not server.ending.traffic.requests)
    assert server.engine.memory.row_blocks == 0
