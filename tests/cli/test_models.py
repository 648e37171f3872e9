"""Models of the cache and of a server, and a model in the place of a task."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.commands import Command
from tests.hub_server import HubServer
from tests.serving.conftest import Running, folder
from transept import AutoTokenizer, LlamaForCausalLM
from transept.serving.doors import Options
from transept.serving.models import Loader
from transept.serving.store import Models
from transept.storage import source as hub_module

__all__ = ["folder"]
TOLD = b"x" * 1000


@pytest.fixture
def repository(hub: HubServer, folder: Path) -> str:
    """The small writing model on a hub, with weights for other libraries beside its own."""
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    others = dict.fromkeys(("pytorch_model.bin", "tf_model.h5", "onnx/model.onnx", "onnx/config.json", ".gitattributes"), TOLD)
    hub.add("me/tiny", files | others)
    return "me/tiny"


@pytest.fixture
def server(folder: Path) -> Iterator[Running]:
    models = Models(Loader(engine={"cache_bytes": 2**24}))
    models.offer("small", str(folder))
    models.offer("large", str(folder), keep_alive="5m")
    running = Running(models)
    yield running
    running.close()


def written(folder: Path, prompt: str, new: int) -> str:
    model, tokenizer = LlamaForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    new_ids = model.generate(ids, max_new_tokens=new, do_sample=False)[0, ids.shape[1] :]
    found: str = tokenizer.decode(new_ids, skip_special_tokens=True)
    return found


def test_pulled_listed_run_and_removed(
    command: Command, hub: HubServer, repository: str, hub_cache: Path, folder: Path
) -> None:
    assert "`transept pull` fetches one" in command("list").err
    done = command("pull", repository, "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert told == {
        "repository": repository,
        "files": len([*folder.iterdir()]),
        "bytes": sum(path.stat().st_size for path in folder.iterdir()),
    }
    assert not any("bin" in request or "onnx" in request or "h5" in request for request in hub.requests)
    hub.requests.clear()
    assert command("pull", repository).code == 0
    assert not fetched(hub)
    (row,) = [json.loads(line) for line in command("list", "--json").out.splitlines()]
    assert row.keys() == {"repository", "bytes", "last_used", "task", "runs", "why"}
    assert (row["repository"], row["task"], row["runs"], row["why"]) == (repository, "text-generation", True, None)
    assert row["bytes"] >= told["bytes"]
    assert abs(row["last_used"] - time.time()) < 100
    title, line = command("list").out.splitlines()
    assert title.split() == ["REPOSITORY", "TASK", "SIZE", "LAST", "USED", "RUNS"]
    assert line.split()[:2] == [repository, "text-generation"]
    hub.requests.clear()
    assert command("run", repository, "Hi", "--max-new-tokens", 4).code == 0
    assert command("run", "tiny", "Hi", "--max-new-tokens", 4).code == 0  # its last part is enough
    assert not [request for request in hub.requests if "safetensors" in request]
    for answer, stays in ((b"n\n", True), (b"", True), (b"y\n", False)):
        asked = command("rm", repository, stdin=answer, terminal=("in",))
        assert "me/tiny" in asked.err
        assert asked.code == int(stays)
        assert (hub_cache / "models--me--tiny").exists() == stays
    assert command("list", "--json").out == ""


def test_removing_asks_and_takes_repositories_alone(command: Command, repository: str, hub_cache: Path) -> None:
    command("pull", repository)
    assert "--yes" in command("rm", repository).err
    (hub_cache / "models--me--other").symlink_to(hub_cache / "models--me--tiny")
    (hub_cache.parent / "outside").mkdir()
    for name in (
        "../outside",
        "me/tiny/..",
        str(hub_cache),
        ".",
        "..",
        "",
        "me/no",
        "me/other",
        "me--tiny",
        "models--me--tiny",
        "*",
        "me/*",
    ):
        done = command("rm", "--yes", "--", name)
        assert (done.code, len(done.complaints)) == (1, 1), name
    assert (hub_cache.parent / "outside").exists()
    assert command("rm", repository, "--yes", "--json").out.startswith('{"repository": "me/tiny"')
    assert not (hub_cache / "models--me--tiny").exists()


def test_what_cannot_be_run_is_listed_so(command: Command, hub_cache: Path, folder: Path) -> None:
    configs: dict[str, Any] = {
        "unknown": {"model_type": "nothing"},
        "lacking": json.loads((folder / "config.json").read_text()),
        "broken": 1,
    }
    for name, config in configs.items():
        place = hub_cache / f"models--me--{name}"
        (place / "snapshots/abc").mkdir(parents=True)
        (place / "refs").mkdir()
        (place / "refs/main").write_text("abc")
        (place / "snapshots/abc/config.json").write_text(json.dumps(config))
    rows = {row["repository"]: row for row in map(json.loads, command("list", "--json").out.splitlines())}
    assert rows.keys() == {"me/unknown", "me/lacking", "me/broken"}
    assert not any(row["runs"] for row in rows.values())
    assert all(row["why"] for row in rows.values())
    assert "no" in command("list").out


def test_a_pull_that_is_broken_off_goes_on(
    command: Command, hub: HubServer, repository: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = hub_module.newest

    def broken(source: Any, name: str) -> Any:
        if name.endswith("safetensors"):
            raise KeyboardInterrupt
        return newest(source, name)

    monkeypatch.setattr("transept.cli.models.newest", broken)
    assert command("pull", repository).code == 130
    before = fetched(hub)
    hub.requests.clear()
    monkeypatch.setattr("transept.cli.models.newest", newest)
    assert command("pull", repository).code == 0
    assert before
    assert any("safetensors" in name for name in fetched(hub) - before)
    assert not fetched(hub) & before


def fetched(hub: HubServer) -> set[str]:
    return {request for request in hub.requests if request.startswith("GET") and "/resolve/" in request}


def test_what_cannot_be_pulled(command: Command, hub: HubServer, folder: Path) -> None:
    hub.add("me/files", {"a.gguf": b"1", "b.gguf": b"22", "README.md": b""})
    hub.add("me/nothing", {"README.md": b""})
    for words, told in (
        (["me/files"], "several GGUF files: a.gguf, b.gguf"),
        (["me/files", "--file", "c.gguf"], "no file 'c.gguf'"),
        (["me/nothing"], "holds no model"),
        (["me/absent"], "no such repository"),
        (["../x"], "path"),
        ([str(folder)], "folder"),
    ):
        done = command("pull", *words)
        assert (done.code, len(done.complaints)) == (1, 1)
        assert told in done.err
    assert json.loads(command("pull", "me/files", "--file", "b.gguf", "--json").out) == {
        "repository": "me/files",
        "files": 1,
        "bytes": 2,
    }


def test_models_of_a_server(command: Command, server: Running) -> None:
    rows = [json.loads(line) for line in command("ps", "--url", server.url, "--json").out.splitlines()]
    assert [(row["id"], row["loaded"]) for row in rows] == [("small", True), ("large", True)]
    title, small, large = command("ps", "--url", server.url).out.splitlines()
    assert title.split() == ["NAME", "TASK", "SIZE", "CONTEXT", "UNTIL"]
    assert small.endswith("for ever")
    assert ":" in large
    assert json.loads(command("stop", "large", "--url", server.url, "--json").out)["loaded"] is False
    assert "not loaded" in command("stop", "large", "--url", f"{server.url}/").err
    assert len(command("ps", "--url", server.url).out.splitlines()) == 2
    done = command("stop", "no", "--url", server.url)
    assert (done.code, "no model 'no'" in done.err) == (1, True)


def test_a_key_is_needed_where_a_server_wants_one(command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Running(Models(Loader(engine={"cache_bytes": 2**24})), Options(keys=["secret"]))
    try:
        refused = command("ps", "--url", server.url)
        assert (refused.code, "key" in refused.err) == (1, True)
        assert command("ps", "--url", server.url, "--api-key", "secret").code == 0
        monkeypatch.setenv("TRANSEPT_API_KEY", "secret")
        assert "no model is loaded" in command("ps", "--url", server.url).err
    finally:
        server.close()


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "127.0.0.1:8000", "ftp://a", "http://", "http://127.0.0.1:99999"])
def test_without_a_server(command: Command, url: str) -> None:
    done = command("ps", "--url", url)
    assert (done.code, len(done.complaints)) == (1, 1)


def test_a_model_in_the_place_of_a_task(command: Command, folder: Path, tmp_path: Path, classifier: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    for path in folder.iterdir():
        if path.name != "chat_template.jinja":
            (plain / path.name).write_bytes(path.read_bytes())
    options = ("--max-new-tokens", 24, "--temperature", 0)
    torch.manual_seed(0)
    for model, prompt in ((plain, "text"), (folder, "<|user|>text<|end|><|assistant|>")):
        done = command("run", model, "text", *options)
        assert (done.code, done.out.rstrip("\n")) == (0, written(folder, prompt, 24).rstrip("\n"))
    assert command("run", folder, *options, stdin=b"text\n").out == done.out  # a chat
    assert json.loads(command("run", classifier, "I love this").out)["answer"]["label"] in ("GOOD", "BAD")
    lines = tmp_path / "prompts.txt"
    lines.write_text("one\ntwo\n")
    assert len(command("run", folder, "--file", lines, *options).out.splitlines()) == 2
    missing = command("run", tmp_path / "no", "text")
    assert (missing.code, len(missing.complaints)) == (1, 1)
    assert "sentiment-analysis" in command("run", "sentment-analysis", "text").err


def test_what_cannot_be_served_is_told_in_a_line(command: Command, hub_cache: Path, folder: Path, tmp_path: Path) -> None:
    for words, told in (
        (["--models-dir", str(tmp_path / "no")], "no such folder"),
        (["--keep-alive", "soon", str(folder)], "no time"),
        ([f"a={folder}", f"a={folder}"], "two models"),
        ([f"a b={folder}"], "cannot be served"),
        ([f"a={folder}", f"b={folder}", "--max-models", "1"], "no room"),
        ([str(folder), "--model-memory", "1kB"], "memory"),
        ([str(folder), "--chat-template", str(tmp_path / "no")], "no"),
        ([str(tmp_path / "nothing")], "nothing"),
    ):
        done = command("serve", "--port", "0", *words)
        assert (done.code, len(done.complaints)) == (1, 1), done.err
        assert told in done.err
