"""Calls of functions that are asked for, by the official client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pydantic
import pytest
import torch

from tests.serving.conftest import Server
from tests.serving.test_constraint import SCHEMA, drawn
from tests.serving.test_writer import TOKENIZERS
from transept.preprocess.text.answers import AnswerReader, TextDelta
from transept.preprocess.text.tools import CALL_FORMATS, format_of
from transept.serving.engine.calls import CallReader, calls_of
from transept.serving.engine.constraint import Grammars

MESSAGES: Any = [{"role": "user", "content": "Hi"}]
BRACE, CALLS, THINKS, THOUGHT = "90", "261", "263", "264"  # ids of the tokenizer


def bias(client: openai.OpenAI, **ids: int) -> dict[str, int]:
    """A bias against reasoning, where the model knows its mark, and others."""
    return ids | ({THINKS: -100} if client.api_key == "marked" else {})


def tool(name: str, schema: Any = SCHEMA, **more: Any) -> Any:
    return {"type": "function", "function": {"name": name, "parameters": schema, **more}}


TOOLS = [tool("look"), tool("go", {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]})]


@pytest.fixture(params=["plain", "marked"])
def client(request: pytest.FixtureRequest, server: Server, marked: Server) -> Iterator[openai.OpenAI]:
    url = server.url if request.param == "plain" else marked.url
    with openai.OpenAI(base_url=f"{url}/v1", api_key=request.param, max_retries=0) as made:
        yield made


def check(call: Any) -> None:
    """A call that fits the schema of its function."""
    value = json.loads(call.function.arguments)
    assert call.function.name in ("look", "go")
    if call.function.name == "go":
        assert value in ({"on": True}, {"on": False})
    else:
        assert value.keys() == {"a", "b"}
    assert call.type == "function"


@pytest.mark.parametrize("parallel", [None, False])
def test_a_call_is_required(client: openai.OpenAI, parallel: bool | None) -> None:
    options: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "tools": TOOLS, "tool_choice": "required", "seed": 3}
    options |= {"logit_bias": bias(client)} | ({} if parallel is None else {"parallel_tool_calls": parallel})
    for choice in client.chat.completions.create(**options, n=4, temperature=1.5).choices:
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
        calls = choice.message.tool_calls or []
        assert len({call.id for call in calls}) == len(calls) >= 1
        assert parallel is None or len(calls) == 1
        for call in calls:
            check(call)
    with client.chat.completions.stream(**options) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls"
    for call in final.message.tool_calls or []:
        check(call)
    assert final.message.tool_calls


def test_a_function_is_called_by_its_name(client: openai.OpenAI) -> None:
    choice = {"type": "function", "function": {"name": "go"}}
    options: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "tools": TOOLS, "tool_choice": choice, "temperature": 0}
    options["logit_bias"] = bias(client)
    answer = client.chat.completions.create(**options).choices[0]
    (call,) = answer.message.tool_calls or []
    check(call)
    assert (call.function.name, answer.message.content, answer.finish_reason) == ("go", None, "tool_calls")
    deltas = [chunk.choices[0].delta.tool_calls for chunk in client.chat.completions.create(**options, stream=True)]
    parts = [part for delta in deltas for part in delta or ()]
    assert [part.index for part in parts] == [0] * len(parts)
    assert [part.function and part.function.name for part in parts] == ["go"] + [None] * (len(parts) - 1)
    assert [part.id is None for part in parts] == [False] + [True] * (len(parts) - 1)
    assert "".join(part.function.arguments or "" for part in parts if part.function) == call.function.arguments
    cut = client.chat.completions.create(**options, max_tokens=3).choices[0]
    assert cut.finish_reason == "length"
    assert cut.message.tool_calls
    assert cut.message.tool_calls[0].function.arguments == call.function.arguments[:3]


class Go(pydantic.BaseModel):
    """Go on or stay."""

    on: bool


def test_strict_calls_fit_where_they_are_made(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "tools": [openai.pydantic_function_tool(Go)]}
    options |= {"max_tokens": 60, "temperature": 0, "parallel_tool_calls": False}
    mark = CALLS if client.api_key == "marked" else BRACE
    answer = client.chat.completions.parse(**options, logit_bias=bias(client, **{mark: 100}))
    (call,) = answer.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Go)
    free = client.chat.completions.create(**options, logit_bias=bias(client, **{mark: -100})).choices[0]
    assert free.message.tool_calls is None
    assert free.message.content


def test_reasoning_that_the_model_opens_comes_before_what_is_asked_for(marked: Server) -> None:
    with openai.OpenAI(base_url=f"{marked.url}/v1", api_key="any", max_retries=0) as client:
        think: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "logit_bias": {THINKS: 11, THOUGHT: 9}}
        ends = {"max_tokens": 400, "temperature": 1.0, "seed": 5}
        form: Any = {"type": "json_schema", "json_schema": {"name": "pet", "schema": SCHEMA}}
        message: Any = client.chat.completions.create(**think, **ends, response_format=form).choices[0].message
        assert json.loads(message.content).keys() == {"a", "b"}
        assert message.reasoning_content
        for choice in ("required", {"type": "function", "function": {"name": "go"}}):
            message = client.chat.completions.create(**think, **ends, tools=TOOLS, tool_choice=choice).choices[0].message
            check(message.tool_calls[0])
            assert message.reasoning_content
            assert message.content is None
        # A mark that the model does not want opens nothing, though all else that may come is less likely.
        plain = think | ends | {"logit_bias": {BRACE: -100, THINKS: -3}, "response_format": form}
        message = client.chat.completions.create(**plain).choices[0].message
        assert json.loads(message.content).keys() == {"a", "b"}
        assert "reasoning_content" not in message.to_dict()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"tool_choice": "required"}, "no `tools`"),
        ({"tool_choice": {"type": "function", "function": {"name": "none"}}, "tools": TOOLS}, "none of the `tools`"),
        ({"tool_choice": "any", "tools": TOOLS}, "tool_choice"),
        ({"tool_choice": "required", "tools": [tool("f", {"$ref": "https://a.example/b"})]}, "outside itself"),
        ({"tool_choice": "required", "tools": [tool("f", {"properties": {"a": {"type": "no"}}})]}, "cannot be used"),
        ({"tool_choice": "auto", "tools": [tool("f", {"properties": {"a": {"type": "no"}}}, strict=True)]}, "cannot be used"),
        ({"tool_choice": "required", "tools": TOOLS, "response_format": {"type": "json_object"}}, "leaves no place"),
    ],
)
def test_choices_that_cannot_be_are_refused(server: Server, body: Any, message: str) -> None:
    at = f"{server.url}/v1"
    with openai.OpenAI(base_url=at, api_key="any") as client, pytest.raises(openai.BadRequestError, match=message):
        client.chat.completions.create(model="tiny", messages=MESSAGES, extra_body=body)


@pytest.mark.parametrize("mark", [*CALL_FORMATS, ""])
def test_each_spelling_is_read(mark: str) -> None:
    tokenizer = TOKENIZERS["byte level"]
    grammars = Grammars(tokenizer, [tokenizer.eos_token_id])
    functions = [each["function"] for each in (*TOOLS, tool("NAME"), tool("ARGUMENTS"))]
    for free in (False, True):
        constraint = grammars.calls(functions, f"a {mark} b", free=free)
        for seed in range(3):
            text = drawn(constraint.of_row(bool), seed, tokenizer)
            reader = CallReader(AnswerReader())
            deltas = [*(reader.feed(text or "")), *reader.end()]
            calls = calls_of(deltas)
            assert calls or free
            assert free or not any(isinstance(delta, TextDelta) for delta in deltas)
            for begin, arguments in calls:
                assert json.loads(arguments).keys() == ({"on"} if begin.name == "go" else {"a", "b"})


def test_one_call_ends_an_answer_that_may_have_no_more() -> None:
    text = 'So <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call> and <tool_call>{"name": "g"}</tool_call> more'
    for parallel, names, rest in ((True, ["f", "g"], "So and more"), (False, ["f"], "So")):
        reader = CallReader(AnswerReader(), parallel=parallel)
        deltas = [*reader.feed(text), *reader.end()]
        assert [begin.name for begin, _ in calls_of(deltas)] == names
        assert " ".join(delta.text.strip() for delta in deltas if isinstance(delta, TextDelta)) == rest
        assert reader.is_over


def test_calls_are_spelled_as_templates_or_else_tokens_say() -> None:
    assert format_of("a <tool_call> b", {"[TOOL_CALLS]"}) == CALL_FORMATS["<tool_call>"]
    assert format_of("nothing", {"<|tool_call_start|>", "<s>"}) == CALL_FORMATS["<|tool_call_start|>"]
    assert format_of("nothing", set()).call.startswith('{"name"')


def test_calls_end_unless_the_model_goes_on_by_itself() -> None:
    tokenizer = TOKENIZERS["byte level"]
    end, more = tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("Ċ")  # a line's end
    constraint = Grammars(tokenizer, [end]).calls([TOOLS[1]["function"]], "<tool_call>").of_row(bool)
    scores = torch.zeros(1, len(tokenizer))
    call = '<tool_call>\n{"name": "go", "arguments": {"on":true}}\n</tool_call>'
    for index in tokenizer(call, add_special_tokens=False).input_ids:
        assert not constraint.accept(index)
    for likeliest, allowed in (("x", [end]), ("Ċ", sorted([end, more]))):
        own = scores.clone()
        own[0, tokenizer.convert_tokens_to_ids(likeliest)] = 1.0
        assert sorted(constraint(own, own)[0].isfinite().nonzero().flatten().tolist()) == allowed
    hushed = scores.clone()
    hushed[0, end] = -torch.inf  # as settings do that want more tokens
    assert constraint(hushed, hushed)[0].isfinite().nonzero().flatten().tolist() == [more]
    assert constraint.accept(end)
