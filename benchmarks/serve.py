"""The server, beside its peers: `python -m benchmarks.serve`.

A Llama of 100 million parameters with random weights answers 1, 8 and 32 clients at once: 32 tokens after 64, first as
streams, for the time to the first token and between two, then whole, for tokens a second. Servers run one at a time, each in
a process of its own, in turn for so many rounds. Vectors of sentences are asked for by 16 clients. Peers that are not installed
are left out; `pip install "llama-cpp-python[server]" gguf sentence-transformers` brings two, and the reference's own server is
there with it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from .encoder import model_directory
from .generate import VOCABULARY, checkpoint
from .measure import machine, quiet, table, write
from .texts import sentences

PROMPT, NEW = 64, 32
CLIENTS = (1, 8, 32)
_READY = 180  # seconds that a server may take to begin


@dataclass
class Stream:
    """When the pieces of one answer came, from when it was asked for."""

    pieces: list[float] = field(default_factory=list)
    tokens: int = 0  # of an answer that comes whole
    failed: str | None = None


@contextlib.contextmanager
def server(command: list[str], port: int, path: str = "/v1/models") -> Iterator[tuple[float, int]]:
    """A server in a process of its own; gives the seconds until it answers, and its process's id."""
    start = time.perf_counter()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, env=quiet(), stdout=log, stderr=log)
        try:
            while True:
                if process.poll() is not None or time.perf_counter() - start > _READY:
                    log.seek(0)
                    raise SystemExit(f"{command[:4]} does not begin:\n{log.read().decode(errors='replace')[-2000:]}")
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5).close()
                    break
                time.sleep(0.02)
            yield time.perf_counter() - start, process.pid
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


async def ask(port: int, path: str, body: dict[str, Any]) -> Stream:
    """One request, whose answer is read as it comes; each event of a stream is a piece."""
    found, start = Stream(), time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data)
    status = (await reader.readline()).split()
    last = b"{}"
    while line := await reader.readline():
        last = line
        if line.startswith(b"data: {"):
            found.pieces.append(time.perf_counter() - start)
    writer.close()
    if not body.get("stream"):
        found.tokens = json.loads(last).get("usage", {}).get("completion_tokens", 0)
    if status[1] != b"200":
        found.failed = status[1].decode()
    return found


def at_once(port: int, path: str, bodies: list[dict[str, Any]]) -> tuple[float, list[Stream]]:
    """All requests at once: the seconds until the last has ended, and what came."""

    async def run() -> list[Stream]:
        return await asyncio.gather(*(ask(port, path, body) for body in bodies))

    start = time.perf_counter()
    found = asyncio.run(run())
    failed = [each.failed for each in found if each.failed]
    if failed:
        raise SystemExit(f"{path} answers {failed[0]}.")
    return time.perf_counter() - start, found


def prompt(tokenizer: Any, number: int, length: int = PROMPT) -> str:
    """A text of so many tokens, another for each number."""
    text = " ".join(sentences(length, seed=number))
    ids = tokenizer.encode(text).ids[:length]
    return str(tokenizer.decode(ids))


def text_checkpoint(directory: Path) -> Path:
    """The model of :mod:`benchmarks.generate` with a tokenizer of bytes, made of real texts, and files of it for llama.cpp."""
    from tokenizers import decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    checkpoint(directory, "100M")
    words = Tokenizer(models.BPE())
    words.pre_tokenizer, words.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<unk>", "<s>", "</s>"], initial_alphabet=letters, show_progress=False
    )
    words.train_from_iterator(sentences(20_000), trainer)
    words.add_tokens([f"<{number}>" for number in range(VOCABULARY - words.get_vocab_size())])
    PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", eos_token="</s>").save_pretrained(directory)
    return directory


def ours(path: Path, port: int, *more: str) -> list[str]:
    return [sys.executable, "-m", "transept.cli", "serve", f"model={path}", "--port", str(port), *more]


def reference(path: Path, port: int) -> list[str]:
    more = ["--continuous-batching", "--device", "cpu", "--dtype", "float32", "--port", str(port)]
    return [str(Path(sys.executable).with_name("transformers")), "serve", str(path), *more]


def llama_cpp(path: Path, port: int, kind: str) -> list[str]:
    if not (model := path / f"{kind}.gguf").exists():
        convert = [sys.executable, "-m", "transept.cli", "convert", str(path), str(model), "--to", f"gguf:{kind.lower()}"]
        subprocess.run(convert, check=True, env=quiet(), capture_output=True)
    more = ["--model", str(model), "--model_alias", "model", "--n_ctx", "4096", "--n_threads", str(os.cpu_count())]
    return [sys.executable, "-m", "llama_cpp.server", *more, "--port", str(port)]


Command = Callable[[Path, int], list[str]]


def writers() -> dict[str, dict[str, Command]]:
    """Who serves the model, by the type of its weights; the first of each is ours."""
    found: dict[str, dict[str, Command]] = {
        "float32": {"transept": ours, "reference": reference},
        "int8": {"transept": lambda path, port: ours(path, port, "--dtype", "int8")},
        "int4": {"transept": lambda path, port: ours(path, port, "--dtype", "int4")},
    }
    if importlib.util.find_spec("llama_cpp") and importlib.util.find_spec("sse_starlette"):
        for dtype, kind in (("float32", "F32"), ("int8", "Q8_0"), ("int4", "Q4_0")):
            found[dtype][f"llama.cpp, {kind}"] = lambda path, port, kind=kind: llama_cpp(path, port, kind)
    return found


def completions(path: Path, dtype: str, counts: tuple[int, ...], rounds: int) -> dict[str, Any]:
    """Tokens a second, the first token, and the time between tokens, for clients at once."""
    found: dict[str, dict[int, list[dict[str, float]]]] = {}
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    for number in range(rounds):
        for who, command in writers()[dtype].items():
            with server(command(path, port := free_port()), port, "/v1/models" if who.startswith("llama") else "/health"):
                name = str(path) if who == "reference" else "model"
                at_once(port, "/v1/completions", bodies_of(name, tokenizer, 1, 10**6))
                for clients in counts:
                    _, streams = at_once(port, "/v1/completions", bodies_of(name, tokenizer, clients, number))
                    whole = [body | {"stream": False} for body in bodies_of(name, tokenizer, clients, number + 500)]
                    seconds, answers = at_once(port, "/v1/completions", whole)
                    speed = sum(answer.tokens for answer in answers) / seconds
                    found.setdefault(who, {}).setdefault(clients, []).append({"tokens": speed} | figures(streams))
    lines = [["clients", *(f"{who}: tokens/s, first token p50 p99, between" for who in found), "ours is faster by"]]
    for clients in counts:
        cells, speeds = [str(clients)], {}
        for who, timings in found.items():
            middle = {key: statistics.median(each[key] for each in timings[clients]) for key in timings[clients][0]}
            speeds[who] = middle["tokens"]
            cells.append(f"{middle['tokens']:.1f}, {middle['p50']:.3f} {middle['p99']:.3f} s, {1e3 * middle['between']:.1f} ms")
        base = next(iter(speeds.values()))
        lines.append([*cells, ", ".join(f"{base / speed:.2f}" for speed in list(speeds.values())[1:])])
    print(f"{dtype}\n{table(lines)}\n")
    return {who: {str(clients): each for clients, each in timings.items()} for who, timings in found.items()}


def bodies_of(
    name: str, tokenizer: Any, clients: int, number: int, length: int = PROMPT, new: int = NEW
) -> list[dict[str, Any]]:
    """Requests whose prompts are all different, so that nobody has read one before."""
    more = {"model": name, "max_tokens": new, "temperature": 0, "stream": True}
    return [more | {"prompt": prompt(tokenizer, number * 1000 + client, length)} for client in range(clients)]


def figures(streams: list[Stream]) -> dict[str, float]:
    """The seconds until the first pieces, and between one piece and the next."""
    firsts = sorted(stream.pieces[0] for stream in streams)
    between = [later - sooner for stream in streams for sooner, later in zip(stream.pieces, stream.pieces[1:], strict=False)]
    return {
        "p50": statistics.median(firsts),
        "p99": firsts[min(len(firsts) - 1, int(0.99 * len(firsts)))],
        "between": statistics.median(between) if between else 0.0,
    }


def prefixes(path: Path) -> dict[str, float]:
    """The first token behind 1,000 that were read before, and behind 1,000 that were not."""
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    with server(ours(path, port := free_port()), port):
        at_once(port, "/v1/completions", bodies_of("model", tokenizer, 1, 5))
        seconds = []
        for number in (1, 1, 2, 2, 3, 3):
            _, (stream,) = at_once(port, "/v1/completions", bodies_of("model", tokenizer, 1, 10**5 + number, 1000, 1))
            seconds.append(stream.pieces[0])
    ratio = statistics.median(again / first for first, again in zip(seconds[::2], seconds[1::2], strict=True))
    print(f"first token behind 1,000: {seconds[0]:.3f} s; read before: {seconds[1]:.3f} s ({ratio:.2f} of it)\n")
    return {"first": seconds[0], "again": seconds[1], "ratio": ratio}


_PEER = """
import asyncio, sys, uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

model, app = SentenceTransformer(sys.argv[1], device="cpu"), FastAPI()

class Body(BaseModel):
    input: str
    model: str = ""

@app.post("/v1/embeddings")
def embed(body: Body):
    return {"data": [{"embedding": model.encode(body.input).tolist()}]}

@app.get("/v1/models")
def models():
    return {}

uvicorn.run(app, port=int(sys.argv[2]), log_level="error")
"""


async def vectors(port: int, texts: list[str], clients: int) -> list[float]:
    """Asks for one text a request, by clients at once that each keep a connection, as official clients do.

    They share the processor with the server, so they do no more than they must. Gives the seconds of each answer.
    """
    found: list[float] = []

    async def client(own: list[str]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for text in own:
            data, start = json.dumps({"model": "model", "input": text, "truncate": True}).encode(), time.perf_counter()
            head = f"POST /v1/embeddings HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
            writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(int(answer.partition(b"content-length:")[2].split()[0]))
            found.append(time.perf_counter() - start)
            if answer.split()[1] != b"200":
                raise SystemExit(f"/v1/embeddings answers {answer.split()[1].decode()}.")
        writer.close()

    await asyncio.gather(*(client(texts[number::clients]) for number in range(clients)))
    return found


def embeddings(clients: int = 16, each: int = 20) -> dict[str, float]:
    """Vectors of one sentence a request, by clients at once, beside a pipeline that is given all sentences."""
    import transept

    directory, texts = model_directory(), sentences(clients * each)
    pipeline = transept.pipeline("text-embedding", model=directory)
    pipeline(texts)
    start = time.perf_counter()
    pipeline(texts)
    found = {"pipeline": len(texts) / (time.perf_counter() - start)}
    contenders = {"transept": lambda port: ours(Path(directory), port)}
    if importlib.util.find_spec("sentence_transformers"):
        contenders["sentence-transformers"] = lambda port: [sys.executable, "-c", _PEER, directory, str(port)]
    for who, command in contenders.items():
        with server(command(port := free_port()), port):
            asyncio.run(vectors(port, texts, clients))
            start = time.perf_counter()
            asyncio.run(vectors(port, texts, clients))
            found[who] = len(texts) / (time.perf_counter() - start)
    lines = [["sentences a second", *found], [f"{clients} clients", *(f"{speed:.0f}" for speed in found.values())]]
    print(f"{table(lines)}\nof the pipeline: {found['transept'] / found['pipeline']:.2f}\n")
    return found


_STUB = """
import os, socket, sys, torch
from transept.serving.app import make_app
from transept.serving.models import WritingModel
from transept.serving.server import Server
from transept.serving.store import Models

os.sched_setaffinity(0, {0})
torch.set_num_threads(1)
models, listener = Models(), socket.create_server(("127.0.0.1", int(sys.argv[2])))
models.add(WritingModel("model", sys.argv[1], {}, {"max_rows": 64, "keeps_prefixes": False}))
runner, vocabulary = models.get("model").engine.runner, models.get("model").vocabulary
logits = torch.zeros(64, vocabulary)
logits[:, 1000] = 1.0
runner.run = lambda parts: logits[: sum(part.scored for part in parts)]
Server(make_app(models)).run([listener])
"""


def http(path: Path, streams: int = 64, new: int = 400) -> dict[str, float]:
    """What the server costs where the model costs nothing, on one core: pieces a second, and the first byte of one token."""
    with server([sys.executable, "-c", _STUB, str(path), str(port := free_port())], port, "/ready"):
        body = {"model": "model", "prompt": "a", "temperature": 0, "stream": True}
        bodies = [body | {"max_tokens": new}] * streams
        at_once(port, "/v1/completions", bodies)
        seconds, answers = at_once(port, "/v1/completions", bodies)
        pieces = sum(len(answer.pieces) for answer in answers) / seconds
        firsts = sorted(at_once(port, "/v1/completions", [body | {"max_tokens": 1}])[1][0].pieces[0] for _ in range(200))
    print(f"{pieces:.0f} pieces a second over {streams} streams; one token after {1e3 * statistics.median(firsts):.1f} ms\n")
    return {"pieces": pieces, "first": statistics.median(firsts), "p99": firsts[-2]}


def start(path: Path) -> dict[str, float]:
    """The seconds until a server with the model is ready, beside those of importing PyTorch and loading the model."""
    code = f"import torch, transept; transept.pipeline('text-generation', {str(path)!r})"
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, env=quiet())
    alone = time.perf_counter() - begin
    with server(ours(path, port := free_port()), port, "/ready") as (seconds, _):
        pass
    print(f"ready after {seconds:.2f} s, {seconds / alone:.2f} of {alone:.2f} s for PyTorch and the model\n")
    return {"ready": seconds, "alone": alone}


CASES = ("float32", "int8", "int4", "http", "prefixes", "embeddings", "start")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, nargs="+", default=CLIENTS)
    parser.add_argument("--only", choices=CASES, action="append")
    chosen = parser.parse_args()
    document: dict[str, Any] = {"machine": machine(os.cpu_count() or 1)}
    with tempfile.TemporaryDirectory() as directory:
        path = text_checkpoint(Path(directory))
        for name in chosen.only or CASES:
            if name in ("float32", "int8", "int4"):
                document[name] = completions(path, name, tuple(chosen.clients), chosen.rounds)
            elif name == "embeddings":
                document[name] = embeddings()
            else:
                document[name] = {"http": http, "prefixes": prefixes, "start": start}[name](path)
    print("written to", write("serve", document))


if __name__ == "__main__":
    main()
