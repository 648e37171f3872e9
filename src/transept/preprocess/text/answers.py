"""A model's answer back to a message: reasoning, content and tool calls, in the formats that most models write.

Reasoning stands between ``<think>`` and ``</think>``, or the like. Tool calls are read where they are

- between ``<tool_call>`` and ``</tool_call>``, as JSON (Hermes, Qwen) or as ``<function=...><parameter=...>`` (Qwen Coder),
- after ``[TOOL_CALLS]``, as a list in JSON or as ``name[ARGS]{...}`` (Mistral),
- the whole answer, as JSON with ``name`` and ``parameters``, after ``<|python_tag|>`` or by itself (Llama 3).

What looks like a call and cannot be read stays in the content as it was written: an answer never fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from transept.errors import FormatError
from transept.files import parse_json
from transept.preprocess.text.arguments import Properties, cast_call

Call = dict[str, Any]
REASONING_TAGS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
)
ENDS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<end_of_turn>")
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_MISTRAL, _ARGUMENTS, _CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_PYTHON = "<|python_tag|>"
_ARGUMENT_KEYS = ("arguments", "parameters")


def parse_answer(
    text: str, *, prefix: str = "", ends: Iterable[str] = (), known: Mapping[str, Properties] | None = None
) -> Call:
    """A message of what a model wrote.

    Args:
        text: what the model wrote.
        prefix: the prompt, whose end may have opened the reasoning already.
        ends: tokens that end an answer, besides the usual ones.
        known: the arguments' schemas of tools by name, to cast arguments that were written as texts.

    Returns:
        ``{"role": "assistant", "content": ...}``, and where there are any ``"reasoning_content"`` and ``"tool_calls"``,
        each ``{"type": "function", "function": {"name": ..., "arguments": {...}}}``.
    """
    text = _until(text, [*ends, *ENDS])
    reasoning, rest = _reasoning(text, prefix)
    content, calls = _calls(rest)
    message: Call = {"role": "assistant", "content": content.strip()}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = cast_call(calls, known or {})
    return message


def _until(text: str, ends: list[str]) -> str:
    places = [place for end in ends if end and (place := text.find(end)) >= 0]
    return text[: min(places)] if places else text


def _reasoning(text: str, prefix: str) -> tuple[str, str]:
    """The reasoning that an answer begins with, and the rest."""
    for start, end in REASONING_TAGS:
        is_open = prefix.rstrip().endswith(start)
        begins = text.lstrip().startswith(start)
        before, closed, after = text.partition(end)
        # A template may have opened it where only the answer is at hand.
        if begins or is_open or (closed and start not in before):
            return (before.lstrip().removeprefix(start) if begins else before).strip(), after
    return "", text


def _calls(text: str) -> tuple[str, list[Call]]:
    """What is left of an answer without its tool calls, and those."""
    if _OPEN in text:
        return _between_tags(text)
    if _MISTRAL in text:
        return _after_marks(text)
    whole = text.strip().removeprefix(_PYTHON).strip()
    if whole.startswith("{") and whole.endswith("}"):
        parts = whole.replace("}; {", "};{").split("};{")
        closed = [("{" if place else "") + part + ("}" if place < len(parts) - 1 else "") for place, part in enumerate(parts)]
        found = [call for part in closed if (call := _of_json(part, exact=True)) is not None]
        if len(found) == len(parts):
            return "", found
    return text, []


def _between_tags(text: str) -> tuple[str, list[Call]]:
    content, calls, place = [], [], 0
    while (start := text.find(_OPEN, place)) >= 0:
        # The last call may have been cut off by its length before its end, or have no end but the answer's.
        end = text.find(_CLOSE, start)
        after = len(text) if end < 0 else end + len(_CLOSE)
        body = text[start + len(_OPEN) : after if end < 0 else end]
        call = _of_markup(body.strip()) if body.lstrip().startswith("<function=") else _of_json(body)
        if call is None:
            content.append(text[place:after])
        else:
            content.append(text[place:start].rstrip())
            calls.append(call)
        place = after
    return "".join([*content, text[place:]]), calls


def _after_marks(text: str) -> tuple[str, list[Call]]:
    content, *parts = text.split(_MISTRAL)
    calls = []
    for part in parts:
        found = list(_of_mark(part.strip()))
        calls += found
        content += "" if found else _MISTRAL + part
    return content, calls


def _of_mark(part: str) -> Iterator[Call]:
    name, given, arguments = part.partition(_ARGUMENTS)
    if given:
        name, _, index = name.partition(_CALL_ID)
        call = _call(name.strip(), _read(arguments))
        if call is not None:
            yield call | ({"id": index.strip()} if index else {})
        return
    items = _read(part)
    calls = [_of_value(item) for item in items] if isinstance(items, list) else [_of_value(items)]
    if None not in calls:
        yield from (call for call in calls if call is not None)


def _of_json(text: str, *, exact: bool = False) -> Call | None:
    return _of_value(_read(text), exact=exact)


def _read(text: str) -> Any:
    """A JSON value, or ``None`` where there is none."""
    try:
        return parse_json(text.strip())
    except FormatError:
        return None


def _of_value(value: Any, *, exact: bool = False) -> Call | None:
    """The call that a JSON value is; with ``exact`` only if it is nothing else besides."""
    if not isinstance(value, dict):
        return None
    if isinstance(inner := value.get("function"), dict):
        value = inner | {key: value[key] for key in ("id",) if key in value}
    if exact and not value.keys() <= {"type", "name", "id", *_ARGUMENT_KEYS}:
        return None
    key = next((key for key in _ARGUMENT_KEYS if key in value), None)
    call = _call(value.get("name"), {} if key is None and not exact else value.get(key))
    if call is None or not isinstance(index := value.get("id"), str):
        return call
    return call | {"id": index}


def _call(name: Any, arguments: Any) -> Call | None:
    arguments = _read(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def _of_markup(text: str) -> Call | None:
    """A call such as ``<function=name><parameter=key>value</parameter></function>``; values are texts."""
    name, opened, body = text.removeprefix("<function=").partition(">")
    body, closed, _ = body.partition("</function>")
    arguments = {}
    for part in body.split("<parameter=")[1:]:
        key, middle, value = part.partition(">")
        value, ended, _ = value.partition("</parameter>")
        if not middle or not ended:
            return None
        arguments[key.strip()] = value.removeprefix("\n").removesuffix("\n")
    return _call(name.strip(), arguments) if opened and closed else None
