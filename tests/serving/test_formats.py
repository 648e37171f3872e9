"""Answers in JSON, asked by the official client."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

MESSAGES: Any = [{"role": "user", "content": "Hi"}]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"kind": {"enum": ["cat", "dog"]}, "old": {"type": "boolean"}},
    "required": ["kind", "old"],
    "additionalProperties": False,
}


def form(schema: Any) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "pet", "schema": schema, "strict": True}}


def test_chats_fit_a_schema(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "response_format": form(SCHEMA), "temperature": 1.5}
    answer = client.chat.completions.create(**options, seed=1, n=4)
    for choice in answer.choices:
        value = json.loads(choice.message.content or "")
        assert value["kind"] in ("cat", "dog")
        assert isinstance(value["old"], bool)
        assert choice.finish_reason == "stop"
    chunks = list(client.chat.completions.create(**options, seed=1, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == answer.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_what_is_complete_stops_and_what_is_cut_has_its_length(client: openai.OpenAI) -> None:
    schema: Any = {"const": "abc"}
    options: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "response_format": form(schema), "temperature": 0}
    for most, text, finish in ((4, '"abc', "length"), (5, '"abc"', "stop"), (9, '"abc"', "stop")):
        choice = client.chat.completions.create(**options, max_tokens=most).choices[0]
        assert (choice.message.content, choice.finish_reason) == (text, finish)


def test_completions_are_objects(client: openai.OpenAI) -> None:
    extra = {"response_format": {"type": "json_object"}}
    answer = client.completions.create(model="tiny", prompt=["a", "b"], max_tokens=8, extra_body=extra)
    assert all(choice.text.startswith("{") for choice in answer.choices)


@pytest.mark.parametrize("schema", [{"type": "nothing"}, {"$ref": "https://a.example/b"}, {"$ref": "#/$defs/no"}])
def test_schemas_that_are_none_are_refused(client: openai.OpenAI, schema: Any) -> None:
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="tiny", messages=MESSAGES, response_format=form(schema))
