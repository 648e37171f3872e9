"""The API, asked by the official client and by bodies that are no requests."""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch

from transept.serving.doors import Options

from .conftest import Server, until

PROMPT = "Once upon a time"
LETTER_Z = str(ord("z") - ord("!"))  # ids of printable letters follow each other


def wanted(server: Server, prompt: str | list[int], new: int) -> str:
    """What generating alone gives, behind the prompt."""
    model = server.models.get("tiny")
    ids = model.tokenizer(prompt).input_ids if isinstance(prompt, str) else prompt
    found = model.model.generate(torch.tensor([ids]), max_new_tokens=new, do_sample=False)[0].tolist()
    text: str = model.tokenizer.decode(found, skip_special_tokens=True)
    return text[len(model.tokenizer.decode(ids, skip_special_tokens=True)) :]


def test_completions(server: Server, client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt=[PROMPT, "And then"], max_tokens=12, temperature=0, n=2)
    texts = [choice.text for choice in answer.choices]
    assert texts == [wanted(server, prompt, 12) for prompt in (PROMPT, PROMPT, "And then", "And then")]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert {choice.finish_reason for choice in answer.choices} == {"length"}
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(PROMPT) + len("And then")
    assert answer.usage.completion_tokens == 48
    by_ids = client.completions.create(model="tiny", prompt=list(PROMPT.encode()), temperature=0)
    assert by_ids.usage is not None
    assert by_ids.usage.completion_tokens == 16


def test_streams_join_to_the_whole(server: Server, client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": "tiny", "prompt": PROMPT, "max_tokens": 40, "temperature": 0}
    chunks = list(client.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == wanted(server, PROMPT, 40)
    assert len({chunk.id for chunk in chunks}) == 1
    assert [chunk.usage is None for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["length"]


@pytest.mark.parametrize("streams", [True, False])
def test_clients_of_whole_answers_are_not_woken_by_tokens(
    server: Server, streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert httpx.get(f"{server.url}/ready").status_code == 200
    mailbox, woken = server.models.get("tiny").mailbox, list[object]()
    put = mailbox.put
    monkeypatch.setattr(mailbox, "put", lambda event: (woken.append(event), put(event)))
    body = {"model": "tiny", "prompt": ["a", "b"], "max_tokens": 20, "logit_bias": {LETTER_Z: 100}, "stream": streams}
    assert httpx.post(f"{server.url}/v1/completions", json=body).text.count("z") == 40
    assert len(woken) == (40 if streams else 2)


def test_a_stream_that_waits_says_that_it_lives(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transept.serving.app._QUIET", 0.02)
    body = {"model": "tiny", "prompt": "a", "stream": True}
    with ExitStack() as held:
        held.enter_context(server.engine.turn)  # no pass begins meanwhile
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as answer:
            lines = answer.iter_lines()
            assert [next(lines) for _ in range(4)] == [": ", ""] * 2
            held.close()
            assert "data: [DONE]" in lines


def test_chats(server: Server, client: openai.OpenAI) -> None:
    messages: Any = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    ]
    answer = client.chat.completions.create(model="tiny", messages=messages, max_completion_tokens=10, temperature=0)
    model = server.models.get("tiny")
    rendered = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    ids = model.tokenizer.apply_chat_template(rendered, add_generation_prompt=True, return_dict=False)
    assert answer.choices[0].message.content == wanted(server, list(ids), 10)
    assert answer.choices[0].message.role == "assistant"
    options: dict[str, Any] = {"max_completion_tokens": 10, "temperature": 0, "stream": True}
    chunks = list(client.chat.completions.create(model="tiny", messages=messages, **options))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == answer.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == "length"


def test_seeds_stops_and_biases(server: Server, client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": "tiny", "prompt": PROMPT, "max_tokens": 24}
    drawn = [client.completions.create(**options, temperature=1.5, seed=7, n=2) for _ in range(2)]
    texts = [[choice.text for choice in answer.choices] for answer in drawn]
    assert texts[0] == texts[1]
    assert texts[0][0] != texts[0][1]
    whole = wanted(server, PROMPT, 24)
    stopped = client.completions.create(**options, temperature=0, stop=whole[5:7])
    assert stopped.choices[0].text == whole[: whole.index(whole[5:7])]
    assert stopped.choices[0].finish_reason == "stop"
    biased = client.completions.create(**options, temperature=0, logit_bias={LETTER_Z: 100})
    assert biased.choices[0].text == "z" * 24


def test_what_was_read_is_not_read_again(client: openai.OpenAI) -> None:
    long = "It was a dark and stormy night. " * 6
    for cached in (0, 192 // 32 * 32 - 32):
        answer = client.completions.create(model="tiny", prompt=long, max_tokens=4, temperature=0)
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        assert answer.usage.prompt_tokens_details.cached_tokens == cached
    other = client.completions.create(model="tiny", prompt=long, max_tokens=4, extra_body={"cache_salt": "mine"})
    assert other.usage is not None
    assert other.usage.prompt_tokens_details is not None
    assert other.usage.prompt_tokens_details.cached_tokens == 0


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        ({"model": "no", "prompt": "a"}, 404, "model_not_found", "model"),
        ({"model": "tiny"}, 400, "invalid_value", "prompt"),
        ({"model": "tiny", "prompt": "a", "best_off": 1}, 400, "unsupported_field", "best_off"),
        ({"model": "tiny", "prompt": "a", "temperature": 2.1}, 400, "invalid_value", "temperature"),
        ({"model": "tiny", "prompt": "a", "temperature": "1"}, 400, "invalid_value", "temperature"),
        ({"model": "tiny", "prompt": "a", "max_tokens": True}, 400, "invalid_value", "max_tokens"),
        ({"model": "tiny", "prompt": "a", "n": 0}, 400, "invalid_value", "n"),
        ({"model": "tiny", "prompt": "a", "max_tokens": 600}, 400, "context_length_exceeded", "prompt"),
        ({"model": "tiny", "prompt": "a", "logit_bias": {"x": 1}}, 400, "invalid_value", None),
        ({"model": "tiny", "prompt": "a", "stop": ["a"] * 17}, 400, "invalid_value", "stop"),
        ({"model": "tiny", "prompt": []}, 400, "invalid_value", None),
        ({"model": "tiny", "prompt": "a", "repetition_penalty": 5e-324}, 400, "invalid_value", None),
        ({"model": "tiny", "prompt": [99999]}, 400, "invalid_value", None),
        (b"{", 400, "invalid_value", None),
        (b'{"model": "tiny", "model": "tiny"}', 400, "invalid_value", None),
        (b"\xff", 400, "invalid_value", None),
        (b"[" * 100 + b"]" * 100, 400, "invalid_value", None),
        (b"[]", 400, "invalid_value", None),
        (b"null", 400, "invalid_value", None),
        (b'{"model": "tiny", "prompt": "a", "seed": 1e999}', 400, "invalid_value", None),
    ],
)
def test_bodies_that_are_no_requests(server: Server, body: Any, status: int, code: str, param: str | None) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    found = httpx.post(f"{server.url}/v1/completions", content=content, headers={"content-type": "application/json"})
    error = found.json()["error"]
    assert (found.status_code, error["code"]) == (status, code)
    assert param is None or error["param"].split(".")[0] == param
    assert error["type"] == "invalid_request_error"
    assert "/" not in error["message"]  # no path


@pytest.mark.parametrize(
    ("route", "body", "param"),
    [
        ("completions", {"prompt": ["a", "a" * 600]}, "prompt"),
        ("chat/completions", {"messages": [{"role": "user", "content": "a" * 600}]}, "messages"),
        ("responses", {"input": "a" * 600}, "input"),
    ],
)
def test_prompts_that_are_too_long_name_their_field(server: Server, route: str, body: dict[str, Any], param: str) -> None:
    error = httpx.post(f"{server.url}/v1/{route}", json={"model": "tiny"} | body).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)
    assert "512" in error["message"]


def test_doors(server: Server) -> None:
    def asked(**options: Any) -> int:
        return httpx.request(**{"method": "GET", "url": f"{server.url}/health"} | options).status_code

    assert asked() == 200
    assert asked(url=f"{server.url}/ready") == 200
    assert asked(headers={"host": "evil.example"}) == 403
    assert asked(headers={"host": ""}) == 403
    assert asked(url=f"{server.url}/nothing") == 404
    assert asked(url=f"{server.url}/v1/completions") == 405
    post: dict[str, Any] = {"method": "POST", "url": f"{server.url}/v1/completions"}
    assert asked(**post, content=b"{}", headers={"content-type": "text/plain"}) == 415
    assert asked(**post, content=b" " * (2**23 + 1), headers={"content-type": "application/json"}) == 413
    found = httpx.get(f"{server.url}/health", headers={"x-request-id": "mine-1"})
    assert found.headers["x-request-id"] == "mine-1"
    metrics = httpx.get(f"{server.url}/metrics").text
    assert 'transept_requests_total{route="/health",status="200"}' in metrics
    assert 'transept_rows_running{model="tiny"} 0.0' in metrics


def test_keys(folder: Path) -> None:
    server = Server(folder, Options(keys=["secret"], grace=0.0))
    try:
        for path, status in (("/health", 200), ("/metrics", 401), ("/nothing", 401), ("/v1/models", 401)):
            assert httpx.get(server.url + path).status_code == status
        for key, status in (("secret", 200), ("wrong", 401), ("secret2", 401)):
            assert httpx.get(f"{server.url}/v1/models", headers={"authorization": f"Bearer {key}"}).status_code == status
    finally:
        server.close()


@pytest.mark.parametrize("streams", [False, True])
def test_a_client_that_leaves_frees_its_row(server: Server, streams: bool) -> None:
    body = {"model": "tiny", "prompt": ["a"] * 128, "max_tokens": 500, "stream": streams}  # more than 0.1 s of work anywhere
    with suppress(httpx.ReadTimeout), httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=0.1) as answer:
        next(answer.iter_lines())
        assert streams
    until(lambda: not server.engine.running)
    assert server.engine.memory.row_blocks == 0


def test_many_at_once_equal_each_alone(server: Server, client: openai.OpenAI) -> None:
    prompts = [f"Number {number} of many" for number in range(24)]
    found: dict[str, str] = {}

    def ask(prompt: str) -> None:
        found[prompt] = client.completions.create(model="tiny", prompt=prompt, max_tokens=20, temperature=0).choices[0].text

    threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {prompt: wanted(server, prompt, 20) for prompt in prompts}


def test_over_the_queue_is_told_at_once(folder: Path) -> None:
    server = Server(folder, Options(grace=0.0), max_rows=1, max_waiting=1)
    try:
        body = {"model": "tiny", "prompt": ["a"] * 4, "max_tokens": 500}
        found = httpx.post(f"{server.url}/v1/completions", json=body)
        assert found.status_code == 429
        assert int(found.headers["retry-after"]) >= 1
        assert found.json()["error"]["code"] == "queue_full"
        until(lambda: not server.engine.running)
    finally:
        server.close()
