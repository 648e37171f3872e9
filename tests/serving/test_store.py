"""Models that come when they are asked for and go when nobody uses them."""

from __future__ import annotations

import asyncio
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serving.conftest import Running, Server, save_model, until
from tests.thorough import in_turn
from transept import AutoTokenizer, LlamaForCausalLM
from transept.adapt.gguf import save_gguf
from transept.adapt.quantize import quantize
from transept.errors import FileError, InputError
from transept.pipelines.components import package_directory
from transept.serving.models import Loader
from transept.serving.sources import in_cache, in_directory
from transept.serving.store import Models

ENGINE = {"cache_bytes": 2**24}
Serve = Callable[..., Running]


class Slow(Loader):
    """A loader that counts what it loads, and waits until it may."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(engine=ENGINE | settings)
        object.__setattr__(self, "may", threading.Event())
        object.__setattr__(self, "began", [])
        self.may.set()

    may: threading.Event
    began: list[str]

    def load(self, name: str, *given: Any, **more: Any) -> Any:
        self.began.append(name)
        assert self.may.wait(10)
        return super().load(name, *given, **more)


@pytest.fixture(scope="module")
def shelf(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of models: three that are alike, one of few bits, a GGUF file, one that is broken, and what is no model."""
    path = tmp_path_factory.mktemp("shelf")
    for name in "abc":
        (path / name).symlink_to(folder)
    save_model(path / "whole", merges=[("O", "n")])  # a GGUF file has one at least
    model, tokenizer = (kind.from_pretrained(path / "whole") for kind in (LlamaForCausalLM, AutoTokenizer))
    save_gguf(model, path / "file.gguf", "f32", tokenizer)
    quantize(model).save_pretrained(path / "bits")
    tokenizer.save_pretrained(path / "bits")
    (path / "broken").mkdir()
    (path / "broken/config.json").write_bytes((folder / "config.json").read_bytes())
    (path / "of nothing").mkdir()
    (path / "notes.txt").write_text("no model")
    return path


@pytest.fixture
def serve(shelf: Path) -> Iterator[Serve]:
    """Makes servers of the shelf, which end with the test."""
    made: list[Running] = []

    def start(loader: Loader | None = None, **more: Any) -> Running:
        models = Models(loader or Loader(engine=ENGINE), **{"finders": [partial(in_directory, shelf)]} | more)
        made.append(Running(models))
        return made[-1]

    yield start
    for server in made:
        server.close()


def ask(server: Running, model: str, **more: Any) -> httpx.Response:
    body = {"model": model, "prompt": "Once", "max_tokens": 4, "temperature": 0} | more
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=30)


def told(server: Running, model: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{server.url}/v1/models/{model}").json()
    return found


def loaded(server: Running) -> list[str]:
    return [each["id"] for each in httpx.get(f"{server.url}/v1/models").json()["data"] if each["loaded"]]


def text(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    found: str = response.json()["choices"][0]["text"]
    return found


def test_a_directory_is_served(serve: Serve, server: Server) -> None:
    """Also GGUF files and checkpoints of few bits."""
    shelf = serve(max_models=8)
    found = {each["id"]: each for each in httpx.get(f"{shelf.url}/v1/models").json()["data"]}
    assert found.keys() == {"a", "b", "c", "whole", "bits", "file", "broken"}
    assert not any(each["loaded"] for each in found.values())
    assert {each["task"] for each in found.values()} == {"text-generation"}
    assert found["a"]["bytes"] > found["bits"]["bytes"] > 0
    assert found["broken"]["bytes"] == 0
    assert text(ask(shelf, "a")) == text(ask(server, "tiny"))
    assert text(ask(shelf, "file")) == text(ask(shelf, "whole"))
    assert text(ask(shelf, "bits"))
    assert loaded(shelf) == ["a", "bits", "file", "whole"]
    about = told(shelf, "a")
    assert about["context"] == 512
    assert 290 < about["expires_at"] - time.time() < 301
    assert "transept_models_loaded 4.0" in httpx.get(f"{shelf.url}/metrics").text
    for name in ("notes", "of nothing", "../tiny", "a/../a", "A", ".", "a/b/c", "no"):
        assert ask(shelf, name).json()["error"]["code"] == "model_not_found"


def test_the_one_that_was_used_longest_ago_goes_first(serve: Serve) -> None:
    shelf = serve(max_models=2)
    for name, left in (("a", ["a"]), ("b", ["a", "b"]), ("a", ["a", "b"]), ("c", ["a", "c"]), ("b", ["b", "c"])):
        text(ask(shelf, name))
        assert loaded(shelf) == left


def test_many_wait_for_one_load_while_others_answer(serve: Serve) -> None:
    loader = Slow()
    shelf = serve(loader)
    text(ask(shelf, "a"))
    loader.may.clear()
    with ThreadPoolExecutor(9) as pool:
        asked = [pool.submit(ask, shelf, "b") for _ in range(8)]
        until(lambda: loader.began == ["a", "b"])
        other = pool.submit(ask, shelf, "c")
        for _ in range(3):
            text(ask(shelf, "a"))
        assert not any(each.done() for each in (*asked, other))
        assert loader.began == ["a", "b"]  # one at a time
        loader.may.set()
        assert len({text(each.result()) for each in (*asked, other)}) == 1
    assert loader.began == ["a", "b", "c"]


def test_a_load_goes_on_when_all_have_left(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "encoder").symlink_to(str(package_directory()))
    loader = Slow()
    shelf = serve(loader, finders=[partial(in_directory, tmp_path)])
    loader.may.clear()
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{shelf.url}/v1/embeddings", json={"model": "encoder", "input": "a", "keep_alive": -1}, timeout=0.2)
    loader.may.set()
    until(lambda: loaded(shelf) == ["encoder"])
    assert loader.began == ["encoder"]
    assert not httpx.post(f"{shelf.url}/v1/models/unload", json={"model": "encoder"}).json()["loaded"]


def test_a_model_with_rows_is_not_taken_away(serve: Serve) -> None:
    shelf = serve(max_models=1)
    body = {"model": "a", "prompt": "a", "max_tokens": 400, "stream": True, "keep_alive": -1}
    with httpx.stream("POST", f"{shelf.url}/v1/completions", json=body) as answer:
        lines = answer.iter_lines()
        next(lines)
        with shelf.models.get("a").worker.turn:  # no pass begins meanwhile, so that the row is there
            busy = ask(shelf, "b")
            assert (busy.status_code, busy.json()["error"]["code"]) == (503, "loading")
            assert int(busy.headers["retry-after"]) >= 1
            found = httpx.post(f"{shelf.url}/v1/models/unload", json={"model": "a"}).json()
            assert found["loaded"]
        assert any('"finish_reason":"length"' in line for line in lines)
    until(lambda: loaded(shelf) == [])
    text(ask(shelf, "b", keep_alive=-1))
    assert ask(shelf, "a").status_code == 503  # it was asked to stay
    text(ask(shelf, "b", keep_alive=60))
    text(ask(shelf, "a"))


def test_how_long_models_stay(serve: Serve) -> None:
    shelf = serve(keep_alive="0.2s")
    text(ask(shelf, "a"))
    until(lambda: not told(shelf, "a")["loaded"])
    assert told(shelf, "a")["context"] == 512
    text(ask(shelf, "a", keep_alive=-1))
    assert told(shelf, "a")["expires_at"] is None
    time.sleep(0.4)
    assert told(shelf, "a")["loaded"]
    text(ask(shelf, "a", keep_alive=0))
    until(lambda: not told(shelf, "a")["loaded"])
    with httpx.stream(
        "POST", f"{shelf.url}/v1/completions", json={"model": "a", "prompt": "a", "stream": True, "keep_alive": "0"}
    ) as answer:
        assert "[DONE]" in answer.read().decode()
    until(lambda: not told(shelf, "a")["loaded"])
    for wrong in ("5 minutes", "", "m", True, -2, 1e300, [], "9" * 33, "nan"):
        assert ask(shelf, "a", keep_alive=wrong).json()["error"]["param"].startswith("keep_alive"), wrong
    assert httpx.post(f"{shelf.url}/v1/models/load", json={"model": "a", "keep_alive": "1h"}).json()["loaded"]
    assert not httpx.post(f"{shelf.url}/v1/models/unload", json={"model": "a"}).json()["loaded"]
    assert httpx.post(f"{shelf.url}/v1/models/unload", json={"model": "no"}).status_code == 404


def test_a_timer_may_ring_a_little_early(serve: Serve) -> None:
    running = serve(keep_alive=60)
    text(ask(running, "a"))
    models, served = running.models, running.models._by_name["a"]
    assert models._loop is not None
    for early in (1.0, 0.001):
        assert served.model is not None
        served.last_used = time.monotonic() - served.keeps + early
        asyncio.run_coroutine_threadsafe(models._take_away(served), models._loop).result()
    assert served.model is None


def test_a_load_that_fails_is_told_to_all_and_may_be_tried_again(serve: Serve, shelf: Path, folder: Path) -> None:
    running = serve()
    with ThreadPoolExecutor(4) as pool:
        found = [each.result() for each in [pool.submit(ask, running, "broken") for _ in range(4)]]
    assert {each.status_code for each in found} == {500}
    assert not any(str(shelf) in each.text or "Traceback" in each.text for each in found)
    added = [path for path in folder.iterdir() if not (shelf / "broken" / path.name).exists()]
    try:
        for path in added:
            shutil.copy(path, shelf / "broken")
        text(ask(running, "broken"))
    finally:
        for path in added:
            (shelf / "broken" / path.name).unlink()


def test_memory_is_looked_at_before(serve: Serve) -> None:
    size = told(serve(), "a")["bytes"]
    small = ask(serve(memory=size), "a")  # which needs a tenth more
    assert small.status_code == 400
    assert "memory" in small.json()["error"]["message"]
    one = serve(memory=int(size * 1.1))
    text(ask(one, "a"))
    assert ask(one, "whole").status_code == 400  # larger by some bytes, so that nothing is taken away for it
    assert loaded(one) == ["a"]
    text(ask(one, "b"))
    assert loaded(one) == ["b"]
    enough = serve(memory=int(size * 2.5))
    for name in "abc":
        text(ask(enough, name))
    assert loaded(enough) == ["b", "c"]


def test_models_that_are_named_stay(serve: Serve, folder: Path, shelf: Path) -> None:
    models = Models(Loader(engine=ENGINE), keep_alive=0, finders=[partial(in_directory, shelf)], max_models=2)
    models.offer("named", str(folder))
    with pytest.raises(InputError, match="two models"):
        models.offer("named", str(folder))
    with pytest.raises(FileError):
        models.offer("other", str(folder / "no"))
    server = Running(models)
    try:
        for name in ("a", "named", "b"):
            text(ask(server, name))
        until(lambda: loaded(server) == ["named"])
        assert not httpx.post(f"{server.url}/v1/models/unload", json={"model": "named"}).json()["loaded"]
        text(ask(server, "named"))
        assert loaded(server) == ["named"]
        models = Models(Loader(engine=ENGINE), max_models=1)
        models.offer("one", str(folder))
        with pytest.raises(InputError, match="no room"):
            models.offer("two", str(folder))
    finally:
        server.close()


def test_an_object_stays(server: Server) -> None:
    assert httpx.post(f"{server.url}/v1/models/unload", json={"model": "tiny"}).status_code == 400
    assert told(server, "tiny")["loaded"]


def test_the_cache_of_the_hub_is_served(serve: Serve, folder: Path, hub_cache: Path) -> None:
    place = hub_cache / "models--me--tiny"
    (place / "refs").mkdir(parents=True)
    (place / "refs/main").write_text("0" * 40)
    (place / "snapshots").mkdir()
    (place / "snapshots" / ("0" * 40)).symlink_to(folder)
    running = serve(finders=[in_cache])
    text(ask(running, "me/tiny"))
    assert loaded(running) == ["me/tiny"]
    assert ask(running, "me/other").json()["error"]["code"] == "model_not_found"


@pytest.mark.long
@pytest.mark.parametrize("asked", in_turn([300], 0.01))
def test_many_who_ask_at_random_leave_nothing_behind(serve: Serve, asked: int) -> None:
    """There is room for two of three models; each is asked, streamed and left, and taken away at any moment."""
    running, found, wanted = serve(max_models=2), set[tuple[int, str]](), text(ask(serve(), "a"))

    def one(number: int) -> None:
        draw = random.Random(number)
        name, more = draw.choice("abc"), draw.choice([{}, {"keep_alive": 0}, {"keep_alive": "30s"}])
        if draw.random() < 0.2:
            body = {"model": name, "prompt": "a", "max_tokens": 200, "stream": True} | more
            with httpx.stream("POST", f"{running.url}/v1/completions", json=body) as answer:
                next(answer.iter_lines())
        elif draw.random() < 0.2:
            httpx.post(f"{running.url}/v1/models/unload", json={"model": name}).raise_for_status()
        else:
            answer = ask(running, name, **more)
            found.add((answer.status_code, text(answer) if answer.status_code == 200 else answer.json()["error"]["code"]))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(asked)))
    assert found <= {(200, wanted), (503, "loading")}
    for name in loaded(running):
        httpx.post(f"{running.url}/v1/models/unload", json={"model": name}).raise_for_status()
    until(lambda: loaded(running) == [])


@pytest.mark.long
@pytest.mark.parametrize("times", in_turn([200], 0.01))
def test_memory_is_given_back(serve: Serve, tmp_path: Path, times: int) -> None:
    save_model(tmp_path / "one", hidden_size=256, intermediate_size=512)
    running = serve(finders=[partial(in_directory, tmp_path)])

    def resident() -> int:
        return next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if "VmRSS" in line)

    def after_a_cycle() -> int:
        text(ask(running, "one", keep_alive=0))
        until(lambda: not told(running, "one")["loaded"])
        return resident()

    before = max([after_a_cycle() for _ in range(20)])
    after = [after_a_cycle() for _ in range(times)]
    assert min(after[-20:]) - before < 10_000  # kB
