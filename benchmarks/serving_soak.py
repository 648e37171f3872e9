"""A server under a load of all kinds for some minutes: what it holds at the end must be what it held at the beginning.

    python -m benchmarks.serving_soak --seconds 600

Of the requests 40 % are left by their clients in the middle, 5 % are none, and 5 % are read slowly; the others are whole and
streamed completions and embeddings, whose greedy texts are compared with those of an idle server. Told at the end are rows,
blocks of keys and values, requests, tasks, threads and open files before and behind, and how much more memory was held
at any time than behind the second minute (or a fifth of the time).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil

CLIENTS, EVERY = 16, 5.0
TEXTS = ["The sea was calm", "Once upon a time there was a king", "A", "It rained for weeks. " * 8, "Numbers: 1, 2, 3"]
BAD = [b"", b"{", b"[]", b'{"model": 1}', b'{"model": "tiny", "prompt": NaN}', b"\xff", b'{"model": "tiny", "prompt": []}']
MOST_MORE = 20  # MB of memory


def serve(path: str) -> None:
    """Serve in this process, and tell what it holds for each line of standard input."""
    from transept.serving.app import make_app
    from transept.serving.doors import Options
    from transept.serving.models import WritingModel
    from transept.serving.server import Server
    from transept.serving.store import Models
    from transept.serving.tasks import TaskModel

    models, listener = Models(), socket.create_server(("127.0.0.1", 0))
    models.add(WritingModel("tiny", path, {}, {"cache_bytes": 2**24}))
    models.add(TaskModel("vectors", "sentence-transformers/all-MiniLM-L6-v2"))
    # A machine that holds all its programs for a minute, as some do for a snapshot, is no failure of the server.
    server = Server(make_app(models, Options(write_timeout=2.0, header_timeout=2.0, watchdog=600.0)))
    threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True).start()
    engine, process = models.get("tiny").engine, psutil.Process()
    while not server.started:
        time.sleep(0.1)
    asyncio.run_coroutine_threadsafe(fill(), models._loop).result()
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    for _ in sys.stdin:
        told = {"rows": len(engine.running), "blocks": engine.memory.row_blocks, "requests": server.traffic.requests}
        told |= {"connections": len(server.server_state.connections), "tasks": len(asyncio.all_tasks(models._loop))}
        told |= {"threads": process.num_threads(), "files": process.num_fds(), "rss": process.memory_info().rss / 1e6}
        print(json.dumps(told), flush=True)


async def fill() -> None:
    """Let the event loop's pool make all its threads; by itself it makes one whenever none is idle, which may be late."""
    size = ThreadPoolExecutor()._max_workers
    met = threading.Barrier(size)
    await asyncio.gather(*(asyncio.to_thread(met.wait) for _ in range(size)))


class Load:
    """Clients of all kinds, and what they saw."""

    def __init__(self, url: str, right: dict[str, str]) -> None:
        self.client = httpx.AsyncClient(base_url=url, timeout=180, limits=httpx.Limits(max_connections=2 * CLIENTS))
        self.right, self.seen, self.ends = right, Counter[str](), 0.0

    async def run(self, seconds: float, burst: int = 0) -> None:
        self.ends = time.monotonic() + seconds
        async with self.client:
            first = [random.Random(number) for number in range(burst)]
            await asyncio.gather(*map(self.embed, first), *map(self.whole, first))
            await asyncio.gather(*(self.ask_on(random.Random(number)) for number in range(CLIENTS)))

    async def ask_on(self, rng: random.Random) -> None:
        while time.monotonic() < self.ends:
            kind = rng.choices(["leave", "malformed", "slow", "whole", "stream", "embed"], [40, 5, 5, 20, 20, 10])[0]
            try:
                await getattr(self, kind)(rng)
                self.seen[kind] += 1
            except (httpx.HTTPError, AssertionError) as error:
                self.seen[f"{kind}: {type(error).__name__} {error}"[:120]] += 1

    def body(self, rng: random.Random, **more: Any) -> dict[str, Any]:
        return {"model": "tiny", "prompt": rng.choice(TEXTS), "max_tokens": 32, "temperature": 0} | more

    async def whole(self, rng: random.Random) -> None:
        body = self.body(rng, n=rng.choice([1, 1, 2]))
        found = (await self.client.post("/v1/completions", json=body)).raise_for_status().json()
        assert all(choice["text"] == self.right[body["prompt"]] for choice in found["choices"])

    async def stream(self, rng: random.Random, wait: float = 0.0) -> None:
        body = self.body(rng, stream=True)
        async with self.client.stream("POST", "/v1/completions", json=body) as answer:
            text = ""
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    assert "error" not in line, line
                    text += json.loads(line[6:])["choices"][0]["text"]
                    await asyncio.sleep(wait)
        assert line == "data: [DONE]" or not line
        assert text == self.right[body["prompt"]]

    async def slow(self, rng: random.Random) -> None:
        await self.stream(rng, wait=0.05)

    async def leave(self, rng: random.Random) -> None:
        body = self.body(rng, max_tokens=400, stream=rng.random() < 0.5)
        try:
            async with asyncio.timeout(rng.random() * 0.3):
                await self.client.post("/v1/completions", json=body)
        except TimeoutError:
            return

    async def malformed(self, rng: random.Random) -> None:
        found = await self.client.post("/v1/completions", content=rng.choice(BAD), headers={"content-type": "application/json"})
        assert found.status_code == 400

    async def embed(self, rng: random.Random) -> None:
        body = {"model": "vectors", "input": rng.choices(TEXTS, k=rng.randrange(1, 5))}
        (await self.client.post("/v1/embeddings", json=body)).raise_for_status()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve)
        return 0
    from tests.serving.conftest import save_model

    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.serving_soak", "--serve", str(save_model(Path(folder) / "tiny"))]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, env=os.environ, **pipes) as server:
            try:
                return report(server, args.seconds)
            finally:
                server.kill()


def report(server: subprocess.Popen[str], seconds: float) -> int:
    """Load the server, and tell what came of it; 0 where all is as it should be."""
    assert server.stdin is not None
    assert server.stdout is not None
    url = server.stdout.readline().strip()

    def held() -> dict[str, float]:
        server.stdin.write("\n")
        server.stdin.flush()
        return json.loads(server.stdout.readline())

    right = {}
    for text in TEXTS:
        body = {"model": "tiny", "prompt": text, "max_tokens": 32, "temperature": 0}
        right[text] = httpx.post(f"{url}/v1/completions", json=body).json()["choices"][0]["text"]
    asyncio.run(Load(url, right).run(seconds / 20, burst=64))  # threads of pools are there from now on
    time.sleep(6)
    before, load, samples = held(), Load(url, right), list[tuple[float, float]]()
    thread = threading.Thread(target=lambda: asyncio.run(load.run(seconds)))
    began = time.monotonic()
    thread.start()
    while thread.is_alive():
        thread.join(EVERY)
        samples.append((time.monotonic() - began, held()["rss"]))
    time.sleep(8)  # connections that are kept go
    after = held()
    first = min(120.0, seconds / 5)
    late = [rss for when, rss in samples if when >= first]
    more = max(late) - late[0]
    print(f"{sum(load.seen.values())} requests in {seconds:.0f} s: {dict(load.seen)}")
    for name in before:
        print(f"{name:12} {before[name]:8.0f} before {after[name]:8.0f} behind")
    print(f"memory {late[0]:.1f} MB after {first:.0f} s, then at most {more:+.1f} MB; {late[-1] - late[0]:+.1f} MB at the end")
    print("every minute", *(f"{rss:.0f}" for _, rss in samples[:: int(60 / EVERY)]), "MB")
    kept = all(after[name] <= before[name] for name in before if name != "rss")
    return int(not kept or more > MOST_MORE or any(":" in kind for kind in load.seen))


if __name__ == "__main__":
    raise SystemExit(main())
