"""Responses, asked by the official client and read by its accumulator."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pydantic
import pytest
from openai.types.responses import Response

from tests.serving.conftest import Server
from tests.serving.test_calls import SCHEMA
from transept.serving.protocol.responses import ResponsesRequest

TOOL = {"type": "function", "name": "look", "description": "Look.", "parameters": SCHEMA, "strict": True}


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as made:
        yield made


@pytest.fixture
def thinker(marked: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{marked.url}/v1", api_key="any", max_retries=0) as made:
        yield made


class Pet(pydantic.BaseModel):
    """A pet."""

    kind: bool
    old: bool


def events_of(url: str, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream, whose names are those of their types, and whose numbers have no gaps."""
    text = httpx.post(f"{url}/v1/responses", json={"model": "tiny", "input": "Hi", "stream": True, **body}, timeout=60).text
    found = []
    for event in text.strip().split("\n\n"):
        name, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def test_texts_and_their_streams(server: Server, client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": "tiny", "input": "Hi", "temperature": 0, "max_output_tokens": 12}
    answer = client.responses.create(**options, instructions="Be brief.", metadata={"a": "b"}, store=False)
    Response.model_validate(answer.to_dict())
    messages: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    chat = client.chat.completions.create(model="tiny", messages=messages, temperature=0, max_tokens=12)
    assert answer.output_text == chat.choices[0].message.content
    assert (answer.status, answer.metadata, answer.instructions) == ("incomplete", {"a": "b"}, "Be brief.")
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.usage is not None
    assert chat.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (chat.usage.prompt_tokens, 12)
    with client.responses.stream(**options, instructions="Be brief.", top_logprobs=2) as stream:
        events = list(stream)
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert "".join(event.delta for event in deltas) == answer.output_text
    told = [token for event in deltas for token in event.logprobs]
    assert b"".join(bytes(token.bytes) for token in told).decode(errors="replace") == answer.output_text  # type: ignore[attr-defined]
    assert {len(token.top_logprobs or ()) for token in told} == {2}
    types = [event["type"].removeprefix("response.") for event in events_of(server.url, max_output_tokens=2, temperature=0)]
    before = ["created", "in_progress", "output_item.added", "content_part.added"]
    after = ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    assert (types[:4], types[-4:], set(types[4:-4])) == (before, after, {"output_text.delta"})


def test_texts_of_a_schema(client: openai.OpenAI) -> None:
    with client.responses.stream(model="tiny", input="Hi", text_format=Pet) as stream:
        final = stream.get_final_response()
    assert isinstance(final.output_parsed, Pet)
    assert final.status == "completed"
    parsed = client.responses.parse(model="tiny", input="Hi", text_format=Pet, temperature=0)
    assert isinstance(parsed.output_parsed, Pet)
    form: Any = {"format": {"type": "json_object"}}
    assert client.responses.create(model="tiny", input="Hi", text=form, max_output_tokens=9).output_text.startswith("{")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "look"}])
def test_calls_and_the_turn_that_follows(server: Server, client: openai.OpenAI, choice: Any) -> None:
    options: dict[str, Any] = {"model": "tiny", "tools": [TOOL], "tool_choice": choice, "parallel_tool_calls": False}
    asked: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]
    with client.responses.stream(input=asked, temperature=0, **options) as stream:
        events = list(stream)
        final = stream.get_final_response()
    (call,) = final.output
    assert call.type == "function_call"
    assert (call.name, call.status, final.status, final.output_text) == ("look", "completed", "completed", "")
    assert json.loads(call.arguments).keys() == {"a", "b"}
    assert "".join(event.delta for event in events if event.type == "response.function_call_arguments.delta") == call.arguments
    (done,) = (event for event in events if event.type == "response.function_call_arguments.done")
    assert (done.arguments, done.item_id) == (call.arguments, call.id)
    gave: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "A cat."}
    following = client.responses.create(model="tiny", input=[*asked, *final.output, gave], max_output_tokens=4)  # type: ignore[list-item]
    assert following.output_text


def test_reasoning_is_an_item(marked: Server, thinker: openai.OpenAI) -> None:
    prompt = "{% if add_generation_prompt %}<think>{% endif %}"
    tokenizer = marked.models.get("tiny").tokenizer
    own = tokenizer.chat_template
    tokenizer.chat_template = own + prompt
    try:
        form = {"format": {"type": "json_schema", "name": "pet", "schema": SCHEMA}}
        found = next(
            answer
            for seed in range(40)
            if (answer := events_of(marked.url, text=form, temperature=1.0 + seed / 100, max_output_tokens=400))[-1]["type"]
            == "response.completed"
            and len(answer[-1]["response"]["output"]) > 1  # it may also end its reasoning at once
        )
    finally:
        tokenizer.chat_template = own
    response = Response.model_validate(found[-1]["response"])
    thought, message = response.output
    assert thought.type == "reasoning"
    assert message.type == "message"
    deltas = [event["delta"] for event in found if event["type"] == "response.reasoning_text.delta"]
    assert thought.content is not None
    assert "".join(deltas) == thought.content[0].text != ""
    assert json.loads(response.output_text).keys() == {"a", "b"}
    assert response.usage is not None
    assert response.usage.output_tokens_details.reasoning_tokens > 0
    items: Any = [{"role": "user", "content": "Hi"}, *response.output, {"role": "user", "content": "Go on"}]
    assert thinker.responses.create(model="tiny", input=items, max_output_tokens=2).output_text


def test_items_become_messages() -> None:
    items = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": "c", "annotations": []}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "d"},
        {"type": "function_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "e"}]},
        {"type": "function_call", "call_id": "3", "name": "f", "arguments": "{}"},
        {"role": "assistant", "content": "h"},
        {"role": "assistant", "content": "i"},
    ]  # fmt: skip
    messages = [message.rendered() for message in ResponsesRequest(model="m", input=items).chat.messages]  # type: ignore[arg-type]
    roles = ["system", "user", "assistant", "tool", "tool", "assistant", "assistant", "assistant"]
    assert [message["role"] for message in messages] == roles
    turn = messages[2]
    assert (turn["reasoning_content"], turn["content"], [call["id"] for call in turn["tool_calls"]]) == ("hm", "c", ["1", "2"])
    assert [message["content"] for message in messages] == ["Be brief.", "ab", "c", "d", "e", None, "h", "i"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"store": True}, "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "a"}]}]}, "input"),
        ({"input": [3]}, "input"),
        ({"tool_choice": "required"}, None),
        ({"reasoning": {"effort": "high"}}, None),
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "no"}}}}, None),
        ({"max_tokens": 3}, "max_tokens"),
    ],
)
def test_what_cannot_be_is_refused(server: Server, body: Any, param: str | None) -> None:
    found = httpx.post(f"{server.url}/v1/responses", json={"model": "tiny", "input": "Hi", **body})
    error = found.json()["error"]
    assert (found.status_code, error["type"]) == (400, "invalid_request_error")
    assert param is None or error["param"].split(".")[0] == param
    assert "validation error" not in error["message"]


def test_an_answer_that_fails_says_so(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: Any, **more: Any) -> Any:
        raise RuntimeError("a secret")

    monkeypatch.setattr(server.engine.runner, "run", fails)
    found = events_of(server.url)
    assert [event["type"] for event in found] == ["response.created", "response.in_progress", "response.failed"]
    assert found[-1]["response"]["status"] == "failed"
    assert "secret" not in json.dumps(found)
