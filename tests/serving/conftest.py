"""A small model with a tokenizer and a chat template, and a server of it in a thread."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from transept import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transept.serving.app import make_app
from transept.serving.doors import Options
from transept.serving.models import WritingModel
from transept.serving.server import Server as Ending
from transept.serving.store import Models
from transept.serving.tasks import TaskModel

TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
MARKS = ["<tool_call>", "</tool_call>", "<think>", "</think>"]


def byte_tokenizer(*more: str, merges: Sequence[tuple[str, str]] = ()) -> PreTrainedTokenizerFast:
    """A token for each byte and for some pairs of them, for each role and for what is asked for."""
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *map("".join, merges)]
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, [*merges]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    marks = [*(f"<|{role}|>" for role in ("system", "user", "assistant", "tool")), *more]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", additional_special_tokens=marks)


def save_model(path: Path, *, merges: Sequence[tuple[str, str]] = (), **more: Any) -> Path:
    """A Llama of bytes, and of some pairs of them, whose likeliest tokens are clear."""
    fast = byte_tokenizer(merges=merges)
    fast.chat_template = TEMPLATE
    fast.save_pretrained(path)
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"vocab_size": len(fast), "max_position_embeddings": 512, "initializer_range": 0.5}
    model = LlamaForCausalLM(LlamaConfig(**sizes | more, eos_token_id=None, bos_token_id=None))
    model.save_pretrained(path)
    return path


def until(holds: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for what must come to be; how soon, `within` says."""
    ends = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.01)


class Running:
    """A server in a thread, with its address, and what it serves."""

    def __init__(self, models: Models, options: Options | None = None) -> None:
        self.models = models
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self.ending = Ending(make_app(models, options or Options(grace=2.0)))
        self.thread = threading.Thread(target=self.ending.run, kwargs={"sockets": [listener]})
        self.thread.start()

    def close(self) -> None:
        self.ending.end()
        self.thread.join(20)
        assert not self.thread.is_alive()


class Server(Running):
    """A server of the small model, and of others beside it."""

    def __init__(
        self, folder: Path, options: Options | None = None, *, beside: Sequence[TaskModel | WritingModel] = (), **engine: Any
    ) -> None:
        models = Models()
        models.add(WritingModel("tiny", str(folder), {}, {"cache_bytes": 2**24} | engine))
        for model in beside:
            models.add(model)
        self.engine = models.get("tiny").engine
        super().__init__(models, options)


class Stream(threading.Thread):
    """A streamed answer of the API, read to its end in a thread; begun when it is made."""

    def __init__(self, url: str, **more: Any) -> None:
        super().__init__()
        self.url, self.lines = url, list[str]()
        self.body = {"model": "tiny", "prompt": "a", "max_tokens": 500, "stream": True} | more
        self.start()
        until(lambda: bool(self.lines) or not self.is_alive())

    def run(self) -> None:
        with (
            suppress(httpx.RemoteProtocolError),
            httpx.stream("POST", f"{self.url}/v1/completions", json=self.body, timeout=60) as answer,
        ):
            for line in answer.iter_lines():
                self.lines += [line] if line else []

    @property
    def error(self) -> Any:
        last = self.lines[-1].removeprefix("data: ")
        return None if last == "[DONE]" else json.loads(last).get("error")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("served") / "tiny")


@pytest.fixture(scope="session")
def server(folder: Path) -> Iterator[Server]:
    made = Server(folder)
    yield made
    made.close()


@pytest.fixture(scope="session")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of a model whose calls and whose reasoning have marks."""
    path = save_model(tmp_path_factory.mktemp("marked") / "tiny")
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.add_tokens(MARKS, special_tokens=True)
    tokenizer.chat_template = TEMPLATE + "{% if tools %}<tool_call>{% endif %}"
    tokenizer.save_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path)
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(path)
    made = Server(path)
    yield made
    made.close()


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    """The official client of the server."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as made:
        yield made
