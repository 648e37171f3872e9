"""Answers back to messages: the formats that most models write, and response templates as the reference reads them."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers.utils.chat_parsing import parse_response as reference

from tests.pace import within
from transept.errors import FormatError, InputError, MissingExtraError
from transept.preprocess.text.answers import parse_answer
from transept.preprocess.text.response_templates import ResponseTemplate
from transept.preprocess.text.tokenizer import Tokenizer
from transept.preprocess.text.tools import properties_of

from .chats import CHATML, TEMPLATES, assistant, pair, user, weather


def call(name: str = "weather", **arguments: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def message(content: str = "", *calls: dict[str, Any], reasoning: str | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"role": "assistant", "content": content}
    if reasoning is not None:
        found["reasoning_content"] = reasoning
    return found | ({"tool_calls": list(calls)} if calls else {})


PARIS = '{"name": "weather", "arguments": {"city": "Paris"}}'
ANSWERS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": (" Hello!\n", message("Hello!")),
    "nothing": ("", message()),
    "end": ("Hi<|im_end|>\n<|endoftext|>", message("Hi")),
    "padding": ("Hi</s><pad><pad>", message("Hi")),
    "thought": ("<think>\nhm\n</think>\n\nHi", message("Hi", reasoning="hm")),
    "opened before": ("hm\n</think>\n\nHi", message("Hi", reasoning="hm")),
    "still thinking": ("<think>\nhm", message(reasoning="hm")),
    "no thought": ("<think>\n\n</think>\n\nHi", message("Hi")),
    "mistral thought": ("[THINK]hm[/THINK]Hi", message("Hi", reasoning="hm")),
    "cohere thought": ("<|START_THINKING|>hm<|END_THINKING|>Hi", message("Hi", reasoning="hm")),
    "tags later": ("Write <think> and </think>.", message("Write <think> and </think>.")),
    "hermes": (f"<tool_call>\n{PARIS}\n</tool_call>", message("", call(city="Paris"))),
    "hermes twice": (
        f"Let me see.\n<tool_call>{PARIS}</tool_call>\n<tool_call>{PARIS}</tool_call><|im_end|>",
        message("Let me see.", call(city="Paris"), call(city="Paris")),
    ),
    "hermes not closed": (f"<tool_call>\n{PARIS}", message("", call(city="Paris"))),
    "hermes cut off": ('Hm <tool_call>\n{"name": "we', message('Hm <tool_call>\n{"name": "we')),
    "hermes without arguments": ('<tool_call>{"name": "now"}</tool_call>', message("", call("now"))),
    "hermes, arguments as text": (
        '<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\"Paris\\"}"}</tool_call>',
        message("", call(city="Paris")),
    ),
    "thought and called": (
        f"<think>hm</think>\nSo: <tool_call>{PARIS}</tool_call>",
        message("So:", call(city="Paris"), reasoning="hm"),
    ),
    "calls in thoughts are none": (
        f"<think><tool_call>{PARIS}</tool_call></think>Hi",
        message("Hi", reasoning=f"<tool_call>{PARIS}</tool_call>"),
    ),
    "one of two is bad": (
        f"<tool_call>{PARIS}</tool_call>\n<tool_call>nonsense</tool_call>",
        message("<tool_call>nonsense</tool_call>", call(city="Paris")),
    ),
    "qwen coder": (
        "<tool_call>\n<function=weather>\n<parameter=city>\nSão Paulo\n</parameter>\n<parameter=unit>\nkelvin\n</parameter>\n</function>\n</tool_call>",
        message("", call(city="São Paulo", unit="kelvin")),
    ),
    "qwen coder not closed": (
        "<tool_call><function=weather><parameter=city>Paris",
        message("<tool_call><function=weather><parameter=city>Paris"),
    ),
    "mistral": (f"[TOOL_CALLS][{PARIS}]</s>", message("", call(city="Paris"))),
    "mistral with an id": (
        '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Paris"}, "id": "a1b2c3d4e"}]',
        message("", call(city="Paris") | {"id": "a1b2c3d4e"}),
    ),
    "mistral 3": (
        'I look.[TOOL_CALLS]weather[ARGS]{"city": "Paris"}[TOOL_CALLS]now[CALL_ID]123[ARGS]{}',
        message("I look.", call(city="Paris"), call("now") | {"id": "123"}),
    ),
    "mistral cut off": ('[TOOL_CALLS]weather[ARGS]{"city', message('[TOOL_CALLS]weather[ARGS]{"city')),
    "llama": ('{"name": "weather", "parameters": {"city": "Paris"}}<|eot_id|>', message("", call(city="Paris"))),
    "llama tag": (
        '<|python_tag|>{"name": "weather", "parameters": {"city": "Paris"}}<|eom_id|>',
        message("", call(city="Paris")),
    ),
    "llama several": (
        '{"type": "function", "name": "weather", "parameters": {"city": "Paris"}}; {"name": "now", "parameters": {}}',
        message("", call(city="Paris"), call("now")),
    ),
    "llama code": ("<|python_tag|>print(1)", message("<|python_tag|>print(1)")),
    "llama, a tool of its own": (
        '<|python_tag|>brave_search.call(query="a \\"b\\"")<|eom_id|>',
        message("", call("brave_search", query='a "b"')),
    ),
    "glm": (
        "hm</think>So:\n<tool_call>weather<arg_key>city</arg_key><arg_value>São Paulo</arg_value>\n<arg_key>unit</arg_key>"
        "<arg_value>kelvin</arg_value></tool_call><tool_call>weather<arg_key>city</arg_key><arg_value>{</arg_value></tool_call>"
        "<|observation|>",
        message("So:", call(city="São Paulo", unit="kelvin"), call(city="{"), reasoning="hm"),
    ),
    "glm without arguments": ("<tool_call>weather</tool_call><|user|>", message("", call())),
    "glm cut off": (
        "<tool_call>weather<arg_key>city</arg_key><arg_value>Par",
        message("<tool_call>weather<arg_key>city</arg_key><arg_value>Par"),
    ),
    "glm, something between": (
        "<tool_call>weather<arg_key>city</arg_key>x<arg_value>Paris</arg_value></tool_call>",
        message("<tool_call>weather<arg_key>city</arg_key>x<arg_value>Paris</arg_value></tool_call>"),
    ),
    "lfm": (
        '<|tool_call_start|>[weather(city="São Paulo", unit=\'it\\\'s "k"\\n\'), now()]<|tool_call_end|>Let me see.<|im_end|>',
        message("Let me see.", call(city="São Paulo", unit='it\'s "k"\n'), call("now")),
    ),
    "lfm, values": (
        "<|tool_call_start|>[f(a=[1, -2.5e3, {'b': None}], c = True,d={}, e='(x)]')]<|tool_call_end|>",
        message("", call("f", a=[1, -2500.0, {"b": None}], c=True, d={}, e="(x)]")),
    ),
    "lfm, one alone": ("<|tool_call_start|>a.b(c='\\d')<|tool_call_end|>", message("", call("a.b", c="\\d"))),
    "lfm in json": (f"<|tool_call_start|>[{PARIS}]<|tool_call_end|>", message("", call(city="Paris"))),
    **{
        f"lfm, {name}": (
            f"<|tool_call_start|>[{text}]<|tool_call_end|>",
            message(f"<|tool_call_start|>[{text}]<|tool_call_end|>"),
        )
        for name, text in {
            "no name": 'weather("Paris")',
            "a call in a call": "f(a=g(b=1))",
            "a name": "f(a=b)",
            "a sum": "f(a=1+2)",
            "twice": "f(a=1, a=2)",
            "a tuple": "f(a=(1, 2))",
            "not closed": "f(a='b",
            "cut off": "f(a=1",
            "too much": "f(a=1)) ",
            "a number too long": f"f(a={'9' * 5000})",
            "too deep": f"f(a={'[' * 5000})",
        }.items()
    },
    "cohere": (
        "<|START_THINKING|>hm<|END_THINKING|><|START_ACTION|>[\n"
        '    {"tool_call_id": "0", "tool_name": "weather", "parameters": {"city": "Paris"}},\n'
        '    {"tool_call_id": "1", "tool_name": "now", "parameters": {}}\n]<|END_ACTION|><|END_OF_TURN_TOKEN|>',
        message("", call(city="Paris") | {"id": "0"}, call("now") | {"id": "1"}, reasoning="hm"),
    ),
    "cohere, one is bad": (
        '<|START_ACTION|>[{"tool_name": "weather", "parameters": {}}, {"parameters": {}}]<|END_ACTION|>',
        message('<|START_ACTION|>[{"tool_name": "weather", "parameters": {}}, {"parameters": {}}]<|END_ACTION|>'),
    ),
    "cohere text": ("<|START_TEXT|>Hi<|END_TEXT|><|END_OF_TURN_TOKEN|>", message("Hi")),
    "apertus": (
        '<|inner_prefix|>hm<|inner_suffix|><|tools_prefix|>[{"weather": {"city": "Paris"}}, {"now": {}}]<|tools_suffix|>',
        message("", call(city="Paris"), call("now"), reasoning="hm"),
    ),
    "apertus, no list": (
        '<|tools_prefix|>{"weather": {}}<|tools_suffix|>',
        message('<|tools_prefix|>{"weather": {}}<|tools_suffix|>'),
    ),
    "deepseek": (
        "I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>"
        '{"city": "Paris"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
        "<｜end▁of▁sentence｜>",
        message("I look.", call(city="Paris"), call("now")),
    ),
    "deepseek r1": (
        "hm\n</think>\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
        '{"city": "Paris"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        message("", call(city="Paris"), reasoning="hm"),
    ),
    "deepseek cut off": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{",
        message("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"),
    ),
    "other json": ('{"name": "Anna", "age": 3}', message('{"name": "Anna", "age": 3}')),
    "json with a name alone": ('{"name": "Anna"}', message('{"name": "Anna"}')),
    "twice the same key": (
        '<tool_call>{"name": "a", "name": "b"}</tool_call>',
        message('<tool_call>{"name": "a", "name": "b"}</tool_call>'),
    ),
    "no object": ("<tool_call>[1]</tool_call>", message("<tool_call>[1]</tool_call>")),
    "arguments that are none": (
        '<tool_call>{"name": "a", "arguments": [1]}</tool_call>',
        message('<tool_call>{"name": "a", "arguments": [1]}</tool_call>'),
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_answers(name: str) -> None:
    text, wanted = ANSWERS[name]
    assert parse_answer(text, ends=["</s>"], known=properties_of([weather])) == wanted


def now(zone: int, on: bool) -> None:
    """Tell the time.

    Args:
        zone: the zone
        on: whether it is on
    """


STARTS = {
    "Apertus": "<|assistant_start|>",
    "Cohere2MoE": "<|CHATBOT_TOKEN|>",
    "GLM": "<|assistant|>",
    "NVIDIA": "<|im_start|>assistant\n",
    "Qwen": "<|im_start|>assistant\n",
    "Reka": "assistant: ",
    "deepseek": "<｜Assistant｜>",
    "llama-cpp-deepseek-r1": "<｜Assistant｜>",
    "meta": "<|end_header_id|>",
    "mistralai": "[/INST]",
    "stepfun": "<|im_start|>assistant\n",
}
"""What begins an answer in the templates that write tool calls; those of Gemma, LFM and SmolLM write none."""


@pytest.mark.real_data
@pytest.mark.parametrize("name", STARTS)
def test_calls_that_real_templates_write_are_read(name: str) -> None:
    (path,) = [path for path in TEMPLATES if path.stem.startswith(name)]
    wanted = [call(city='São "Paulo"'), call("now", zone=7, on=True)][: 1 if name == "meta" else 2]
    chat = [user("Well?"), assistant("", tool_calls=[one | {"id": "123456789"} for one in wanted])]
    ours, _ = pair(chat_template=path.read_text(encoding="utf-8"))
    written = ours.apply_chat_template(chat, tokenize=False).rpartition(STARTS[name])[2]
    found = parse_answer(written, ends=["</s>", "<sep>"], known=properties_of([weather, now]))
    assert [{key: one[key] for key in ("type", "function")} for one in found["tool_calls"]] == wanted
    assert found["content"] == ""


def test_the_prompt_may_have_opened_the_thought() -> None:
    assert parse_answer("hm", prefix="<|im_start|>assistant\n<think>\n") == message(reasoning="hm")
    assert parse_answer("hm</think>Hi", prefix="<|im_start|>assistant\n<think>\n") == message("Hi", reasoning="hm")
    assert parse_answer("Hi", prefix="<think>\n\n</think>\n\n") == message("Hi")


def grow(place: int, size: int = 0, on: bool = True, part: float | None = None, names: list | None = None) -> None:  # type: ignore[type-arg]
    """Grow.

    Args:
        place: one
        size: two
        on: three
        part: four
        names: five
    """


def test_arguments_are_cast_as_the_tool_wants() -> None:
    parameters = {"place": "7", "size": "3.0", "on": "false", "part": "null", "names": "[1]", "other": "7"}
    body = "".join(f"<parameter={key}>{value}</parameter>" for key, value in parameters.items())
    text = f"<tool_call><function=grow>{body}</function></tool_call>"
    found = parse_answer(text, known=properties_of([grow]))["tool_calls"][0]["function"]["arguments"]
    assert found == {"place": 7, "size": 3, "on": False, "part": None, "names": [1], "other": "7"}
    assert [type(value) for value in found.values()] == [int, int, bool, type(None), list, str]
    long = "9" * 100
    found = parse_answer(text.replace(">7<", f">{long}<"), known=properties_of([grow]))
    assert found["tool_calls"][0]["function"]["arguments"]["place"] == long
    text = text.replace(">7<", ">seven<").replace(">false<", ">no<").replace("[1]", "[1")
    found = parse_answer(text, known=properties_of([grow]))["tool_calls"][0]["function"]["arguments"]
    assert found == parameters | {"place": "seven", "size": 3, "on": "no", "part": None, "names": "[1", "other": "seven"}


PIECES = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<function=f>",
    "</function>",
]
PIECES += [
    "<parameter=a>",
    "</parameter>",
    "<|python_tag|>",
    "x.call(",
    "<|tool_call_start|>",
    "<|tool_call_end|>",
    "f(a=",
    "b=",
    ")",
    "'",
    "'c'",
    '"',
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<|START_ACTION|>",
    "<|END_ACTION|>",
    "<|tools_prefix|>",
    "<|tools_suffix|>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "```json",
    PARIS,
    "{",
    "}",
    "[",
    "]",
    "};{",
    '"name":',
    ":",
    "\\",
    "é🙂",
    " ",
    "\n",
]


def test_no_answer_fails() -> None:
    pick = random.Random(0)
    for _ in range(3000):
        text = "".join(pick.choice(PIECES) for _ in range(pick.randrange(12)))
        found = parse_answer(text, known=properties_of([weather]))
        assert found["role"] == "assistant"
        assert isinstance(found["content"], str)
        for one in found.get("tool_calls", ()):
            assert isinstance(one["function"]["name"], str)
            assert isinstance(one["function"]["arguments"], dict)


@pytest.mark.parametrize("piece", PIECES)
def test_long_answers_are_read_in_linear_time(piece: str) -> None:
    text = piece * (200_000 // len(piece))
    with within(2):
        for opened in ("", "<tool_call>", "<|tool_call_start|>["):
            parse_answer(opened + text)


ENDS = r"\s*(?:<\|im_end\|>|<\|endoftext\|>)"
QWEN = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "reasoning_content": {"open": "<think>", "close": "</think>"},
        "tool_calls": {
            "open_pattern": r"\s*<tool_call>",
            "close": "</tool_call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": ENDS},
    },
}
CODER = {
    "start_anchor": ["<|im_start|>assistant\n", "<|im_start|>assistant"],
    "fields": {
        "tool_calls": {
            "open_pattern": r"\s*<tool_call>\s*<function=(?P<name>[^>\n]+)>",
            "close_pattern": r"</function>\s*</tool_call>",
            "repeats": True,
            "content": "xml-inline",
            "content_args": {
                "tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</parameter>",
                "merge_duplicates": True,
            },
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
        "content": {"close_pattern": ENDS},
    },
}
GEMMA = {
    "defaults": {"role": "assistant"},
    "start_anchor_pattern": r"<\|turn>model\n|<tool_response\|>",
    "fields": {
        "tool_calls": {
            "open_pattern": r"<\|tool_call>call:(?P<name>\w+)",
            "close": "<tool_call|>",
            "repeats": True,
            "content": "json",
            "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
        "content": {"close": ["<turn|>", "<|tool_response>", "<eos>"]},
    },
}
OTHERS = {
    "start_anchor": "A:",
    "defaults": {"seen": True},
    "fields": {
        "score": {"open": "<score>", "close": "</score>", "content": "float"},
        "count": {"open": "<count>", "close": "</count>", "content": "int"},
        "sure": {"open": "<sure>", "close": "</sure>", "content": "bool"},
        "facts": {
            "open": "<facts>",
            "close": "</facts>",
            "content": "kv-lines",
            "content_args": {"value_parser": {"name": "text"}},
        },
        "notes": {"open": ["<note>", "<note >"], "close": "</note>", "repeats": True, "join": "\n"},
        "calls": {
            "open": "[CALLS]",
            "content": "json",
            "content_args": {"allow_non_json": False},
            "transform_each": True,
            "transform": {"function": {"name": "{name}", "arguments": "{arguments}"}, "kind": "call"},
        },
        "raw": {"open": "<raw>", "close": "</raw>", "content_args": {"strip": False}},
        "free": {"open": "<free>", "close": "</free>", "content": "json", "content_args": {"allow_non_json": True}},
    },
}
WRITTEN = [
    (QWEN, "<|im_start|>assistant\n", "<think>hm</think>\n\nHi<|im_end|>\n<|endoftext|>"),
    (QWEN, "<|im_start|>user\nx<|im_start|>assistant\n<think>\n", "hm\n</think>Hi"),
    (
        QWEN,
        "<|im_start|>assistant\n",
        f"Let me see.\n<tool_call>\n{PARIS}\n</tool_call>\n<tool_call>{PARIS}</tool_call><|im_end|>",
    ),
    (QWEN, "", "Hi"),
    (QWEN, "no anchor ", "Hi"),
    (QWEN, "", "<think>hm"),
    (QWEN, "", ""),
    (
        CODER,
        "<|im_start|>assistant\n",
        "<tool_call>\n<function=grow>\n<parameter=place>\n7\n</parameter>\n<parameter=on>1</parameter></function>\n</tool_call>",
    ),
    (
        CODER,
        "",
        "a<tool_call><function=f><parameter=x>1</parameter><parameter=x>2</parameter></function></tool_call>b<|im_end|>",
    ),
    (GEMMA, "<|turn>model\n", 'Hi <|tool_call>call:weather{city:<|"|>Par"is<|"|>,n:3}<tool_call|><turn|>'),
    (OTHERS, "Q A: A:", "<score> 1.5 </score><count>3</count><sure>TRUE</sure><facts>a: b\n\nc:d:e\nnone</facts> lost "),
    (
        OTHERS,
        "A:",
        '<note>x</note><note >y</note><raw> z </raw><free>not json</free>[CALLS][{"name": "f", "arguments": {"a": 1}}]',
    ),
    (OTHERS, "A:", "<free>[1, 2]</free><raw>open"),
]


@pytest.mark.reference
@pytest.mark.parametrize("number", range(len(WRITTEN)))
def test_response_templates_read_what_the_reference_reads(number: int) -> None:
    spec, prefix, text = WRITTEN[number]
    tools = [grow, weather]
    for kinds in (None, tools):
        wanted = reference(text, spec, prefix=prefix, tools=kinds)
        assert ResponseTemplate(spec).parse(text, prefix=prefix, known=properties_of(kinds)) == wanted


@pytest.fixture(scope="module")
def both() -> tuple[Tokenizer, Any]:
    return pair(chat_template=CHATML, response_template=QWEN)


@pytest.mark.reference
def test_tokenizers_parse_texts_ids_and_batches(both: tuple[Tokenizer, Any]) -> None:
    ours, theirs = both
    text, prefix = f"<think>hm</think>Hi<tool_call>{PARIS}</tool_call><|im_end|>", "<|im_start|>assistant\n"
    ids = ours.encode(text, add_special_tokens=False)
    for response in (text, [text, "b"], ids, [ids, ids], np.array(ids), torch.tensor([ids, ids])):
        for start in ("", prefix, ours.encode(prefix, add_special_tokens=False)):
            found, wanted = (one.parse_response(response, prefix=start, tools=[weather]) for one in (ours, theirs))
            assert found == wanted
    assert ours.parse_response([text, "b"], prefix=[prefix, ""]) == theirs.parse_response([text, "b"], prefix=[prefix, ""])
    with pytest.raises(InputError, match="2 answers, but 3 prefixes"):
        ours.parse_response([text, "b"], prefix=["", "", ""])


def test_without_a_response_template_the_usual_formats_are_read() -> None:
    ours, _ = pair(chat_template=CHATML)
    answer = [user("Weather?"), assistant("So:", tool_calls=[call(city="Paris")])]
    prompt = ours.apply_chat_template(answer[:1], add_generation_prompt=True, tokenize=False)
    written = ours.apply_chat_template(answer, tokenize=False).removeprefix(prompt)
    assert ours.parse_response(written, prefix=prompt) == answer[1]
    assert ours.parse_response(ours.encode(written, add_special_tokens=False)) == answer[1]
    assert ours.parse_response(["Hi</s><pad>", "Ho"]) == [message("Hi"), message("Ho")]
    assert ours.parse_response([]) == []
    assert ours.parse_response("<think>a</think>b", schema=QWEN)["content"] == "b"


def test_what_a_response_template_cannot_read_stays_in_the_content() -> None:
    template = ResponseTemplate(QWEN)
    found = template.parse(f"Hi <tool_call>oops</tool_call><tool_call>{PARIS}</tool_call><|im_end|>")
    assert found == message("Hi <tool_call>oops</tool_call>", call(city="Paris"))


BAD: dict[str, tuple[Any, str]] = {
    "no object": ([], "must be an object with fields"),
    "no fields": ({"start_anchor": "x", "fields": {}}, "must be an object with fields"),
    "a key": ({"start_anchor": "x", "field": {}, "fields": {"a": {}}}, "no key 'field'.*'fields'"),
    "no anchor": ({"fields": {"a": {}}}, "needs a 'start_anchor'"),
    "a version": ({"version": 2, "start_anchor": "x", "fields": {"a": {}}}, "version 1"),
    "two without open": ({"start_anchor": "x", "fields": {"a": {}, "b": {}}}, "only one field can be without 'open'"),
    "a field": ({"start_anchor": "x", "fields": {"a": 1}}, "field 'a' must be an object"),
    "a field's key": ({"start_anchor": "x", "fields": {"a": {"opens": "x"}}}, "unknown key 'opens'.*'open'"),
    "content": ({"start_anchor": "x", "fields": {"a": {"content": "jsn"}}}, "unknown content 'jsn'.*'json'"),
    "content that is a list": ({"start_anchor": "x", "fields": {"a": {"content": []}}}, "unknown content"),
    "arguments": ({"start_anchor": "x", "fields": {"a": {"content_args": 1}}}, "'content_args' of 1"),
    "delimiters": (
        {"start_anchor": "x", "fields": {"a": {"content": "json", "content_args": {"string_delims": ["x"]}}}},
        "'string_delims'",
    ),
    "no tags": ({"start_anchor": "x", "fields": {"a": {"content": "xml-inline"}}}, "pattern None"),
    "a separator": (
        {"start_anchor": "x", "fields": {"a": {"content": "kv-lines", "content_args": {"kv_sep": ""}}}},
        "separators",
    ),
    "a parser": (
        {"start_anchor": "x", "fields": {"a": {"content": "kv-lines", "content_args": {"value_parser": 1}}}},
        "'value_parser' 1",
    ),
    "both": ({"start_anchor": "x", "start_anchor_pattern": "x", "fields": {"a": {}}}, "has both 'start_anchor'"),
    "no text": ({"start_anchor": [], "fields": {"a": {}}}, "needs a text or a list of texts"),
    "empty text": ({"start_anchor": "", "fields": {"a": {}}}, "needs a text or a list of texts"),
    "a pattern": ({"start_anchor_pattern": "(", "fields": {"a": {}}}, "which is none"),
    "join": ({"start_anchor": "x", "fields": {"a": {"join": "x"}}}, "'join'"),
    "a mixed transform": ({"start_anchor": "x", "fields": {"a": {"transform": [{"b": "c{content}"}]}}}, "beside a placeholder"),
    "tags without a key": (
        {"start_anchor": "x", "fields": {"a": {"content": "xml-inline", "content_args": {"tag_pattern": "k"}}}},
        "'tag_pattern' without a group 'key'",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_response_templates_are_named(name: str) -> None:
    spec, text = BAD[name]
    with pytest.raises(FormatError, match=text):
        ResponseTemplate(spec)
    with pytest.raises(Exception, match="."):  # nothing that the reference reads is refused
        reference("k:v", spec, prefix="")


def test_numbers_are_read_whole() -> None:
    template = ResponseTemplate({"start_anchor": "x", "fields": {"n": {"open": "<n>", "content": "int"}, "content": {}}})
    assert template.parse("<n>" + "9" * 100) == {"n": int("9" * 100)}
    assert template.parse("<n>" + "9" * 5000) == {"content": "<n>" + "9" * 5000}


def test_a_field_that_must_be_there() -> None:
    spec = {"start_anchor": "x", "fields": {"a": {"open": "<a>", "optional": False}}}
    assert ResponseTemplate(spec).parse("<a>1") == {"a": "1"}
    with pytest.raises(InputError, match="has no 'a'"):
        ResponseTemplate(spec).parse("b")


def test_endless_patterns_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transept.storage.patterns.SECONDS", 0.2)
    template = ResponseTemplate({"start_anchor": "x", "fields": {"a": {"open_pattern": r"(a|a)*b"}, "b": {}}})
    with within(2), pytest.raises(FormatError, match="a pattern takes longer than 0.2 seconds"):
        template.parse("a" * 40 + "cb")


def test_marks_without_length_end() -> None:
    template = ResponseTemplate({"start_anchor": "x", "fields": {"a": {"open_pattern": "(?=b)", "close_pattern": ""}, "b": {}}})
    assert template.parse("abab") == {"b": "abab"}
    template = ResponseTemplate({"start_anchor": "x", "fields": {"b": {"close_pattern": ""}}})
    assert template.parse("ab") == {"b": "ab"}


def test_patterns_need_a_package_and_texts_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "regex", None)
    assert ResponseTemplate({"start_anchor": "x", "fields": {"a": {"open": "<a>"}}}).parse("<a>1") == {"a": "1"}
    with pytest.raises(MissingExtraError, match=r"regex.*transept\[serve\]"):
        ResponseTemplate(QWEN)


def test_the_reference_is_the_version_that_these_tests_know() -> None:
    assert hasattr(transformers.PreTrainedTokenizerBase, "parse_response")
