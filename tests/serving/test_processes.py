"""A model in two processes, as torchrun starts them: the first one serves."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.commands import Command, command, encoder
from tests.forked import Forked

from .conftest import Server, until
from .test_server import wanted

__all__ = ["command", "encoder"]


def serve(folder: str, environment: dict[str, str], log: str) -> None:
    import torch

    from transept.cli.main import main

    os.environ.update(environment)
    torch.set_num_threads(1)
    with open(log, "w") as sys.stdout:
        code = main(["serve", f"tiny={folder}", "--port", "0", "--json", "--grace", "20"])
    sys.stdout = sys.__stdout__
    sys.exit(code)


class Pair:
    """Two processes, and the address of the first."""

    def __init__(self, folder: Path, place: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = str(probe.getsockname()[1])
        shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        own = [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
        self.processes = [Forked(serve, str(folder), own[rank], log=place / f"log{rank}") for rank in range(2)]
        log = self.processes[0].log
        until(lambda: log.exists() and log.read_text().endswith("\n"), 60)
        self.url = json.loads(log.read_text())["url"]

    def ask(self, prompt: Any, tokens: int = 20, **more: Any) -> Any:
        body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0, **more}
        found = httpx.post(f"{self.url}/v1/completions", json=body, timeout=60)
        assert found.status_code == 200, found.text
        return found.json()

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


@pytest.fixture
def pair(folder: Path, tmp_path: Path) -> Iterator[Pair]:
    made = Pair(folder, tmp_path)
    yield made
    made.close()


def test_two_processes_answer_as_one(pair: Pair, server: Server) -> None:
    """Many at once, with kept prefixes, drawn by a seed, and after a client has left; they end together."""
    prompts = ["Once upon a time", *(f"Number {number} of many" for number in range(9))]
    with ThreadPoolExecutor(10) as pool:
        found = [each["choices"][0]["text"] for each in pool.map(pair.ask, prompts)]
    assert found == [wanted(server, prompt, 20) for prompt in prompts]
    long = "It was a dark and stormy night. " * 6
    again = [pair.ask(long) for _ in range(2)]
    assert [each["usage"]["prompt_tokens_details"]["cached_tokens"] for each in again] == [0, 160]
    assert {each["choices"][0]["text"] for each in again} == {wanted(server, long, 20)}
    drawn = {"temperature": 1.0, "seed": 7}
    alone = httpx.post(f"{server.url}/v1/completions", json={"model": "tiny", "prompt": "a", "max_tokens": 20, **drawn}).json()
    assert pair.ask("a", **drawn)["choices"][0]["text"] == alone["choices"][0]["text"]
    body = {"model": "tiny", "prompt": "a", "max_tokens": 500, "stream": True}
    with httpx.stream("POST", f"{pair.url}/v1/completions", json=body) as answer:
        next(answer.iter_lines())
    until(lambda: 'transept_rows_running{model="tiny"} 0.0' in httpx.get(f"{pair.url}/metrics").text)
    with ThreadPoolExecutor(1) as pool:
        last = pool.submit(pair.ask, "The last", 490)
        until(lambda: 'transept_rows_running{model="tiny"} 1.0' in httpx.get(f"{pair.url}/metrics").text)
        for process in pair.processes:
            os.kill(process.pid or 0, signal.SIGTERM)
        assert last.result()["choices"][0]["text"] == wanted(server, "The last", 490)
    for process in pair.processes:
        process.join(20)
    assert [process.exitcode for process in pair.processes] == [0, 0]


def test_without_the_other_process_the_engine_is_dead(pair: Pair) -> None:
    body = {"model": "tiny", "prompt": ["a"] * 64, "max_tokens": 500, "stream": True}
    with httpx.stream("POST", f"{pair.url}/v1/completions", json=body, timeout=20) as answer:
        lines = answer.iter_lines()
        next(lines)
        pair.processes[1].kill()
        last = [line for line in lines if line][-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_dead"
    assert httpx.get(f"{pair.url}/health").status_code == 503


def test_what_several_processes_do_not_serve(
    command: Command, folder: Path, encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for line, told in (
        (["serve", f"a={folder}", f"b={folder}"], "2 processes serve one model together. Name one MODEL."),
        (["serve"], "2 processes serve one model together."),
        (["serve", f"a={folder}", "--models-dir", folder.parent], "2 processes serve one model together."),
        (["serve", f"a={encoder}"], "several processes serve a model that writes texts, but 'a' does"),
    ):
        done = command(*line)
        assert (done.code, len(done.complaints)) == (1, 1)
        assert told in done.err
