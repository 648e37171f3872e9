"""Tool calls out of a model's answer, in the formats that most models write.

They are read where they are

- between ``<tool_call>`` and ``</tool_call>``, as JSON (Hermes, Qwen, Reka), as ``<function=...><parameter=...>`` (Qwen Coder,
  Nemotron, Step) or as ``name<arg_key>...</arg_key><arg_value>...</arg_value>`` (GLM),
- between ``<|tool_call_start|>`` and ``<|tool_call_end|>``, as a list of Python's calls or of JSON (LFM),
- between ``<|START_ACTION|>`` and ``<|END_ACTION|>``, as a list in JSON (Cohere),
- between ``<|tools_prefix|>`` and ``<|tools_suffix|>``, as a list of ``{name: arguments}`` (Apertus),
- between ``<｜tool▁calls▁begin｜>`` and ``<｜tool▁calls▁end｜>``, each with marks of its own (DeepSeek),
- after ``[TOOL_CALLS]``, as a list in JSON or as ``name[ARGS]{...}`` (Mistral),
- the whole answer, as JSON with ``name`` and ``parameters``, after ``<|python_tag|>`` or by itself (Llama 3).

What looks like a call and cannot be read stays in the content as it was written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any

from transept.errors import FormatError
from transept.files import parse_json

Call = dict[str, Any]
Reader = Callable[[str, Container[str]], "list[Call] | None"]
_PYTHON = "<|python_tag|>"
_NAMES, _IDS, _ARGUMENT_KEYS = ("name", "tool_name"), ("id", "tool_call_id"), ("arguments", "parameters")
_TOKEN = re.compile(
    r"""\s*(?:(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<number>-?\d[\d.eE+-]*)"""
    r"""|(?P<name>[^\W\d][\w.-]*)\s*(?P<after>[(=]?)|(?P<mark>[][{}),:]))\s*""",
    re.DOTALL,
)
_CONSTANTS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_ESCAPED = re.compile(r'\\(.)|["\x00-\x1f]', re.DOTALL)


def _tagged(text: str, names: Container[str]) -> list[Call] | None:
    if text.startswith("<function="):
        name, opened, body = text.removeprefix("<function=").partition(">")
        body, closed, _ = body.partition("</function>")
        return _all([_written(name, body.split("<parameter=")[1:], ">", "", "</parameter>") if opened and closed else None])
    if "<arg_key>" in text or text in names:
        name, *parts = text.split("<arg_key>")
        return _all([_written(name, parts, "</arg_key>", "<arg_value>", "</arg_value>")])
    return _all([_of_value(_read(text))])


def _written(name: str, parts: list[str], middle: str, opening: str, end: str) -> Call | None:
    """A call with arguments that are written one by one, as texts: a key, a mark, space and a mark or none, a value, a mark."""
    arguments = {}
    for part in parts:
        key, found, value = part.partition(middle)
        between, opened, value = value.partition(opening) if opening else ("", ">", value)
        value, ended, _ = value.partition(end)
        if not (found and opened and ended) or between.strip():
            return None
        arguments[key.strip()] = value if opening else value.removeprefix("\n").removesuffix("\n")
    return _call(name.strip(), arguments)


def _python(text: str, names: Container[str]) -> list[Call] | None:
    try:
        value = _read("".join(_as_json(text)))
    except FormatError:
        return None
    return _list(value if isinstance(value, list) else [value])


def _keyed(text: str, names: Container[str]) -> list[Call] | None:
    items = _read(text)
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        return None
    return _all(_call(name, arguments) for item in items for name, arguments in item.items())


def _separated(text: str, names: Container[str]) -> list[Call] | None:
    """Calls such as ``name<｜tool▁sep｜>{...}``, or ``function<｜tool▁sep｜>name`` and the arguments in a block of code."""
    calls = []
    for part in text.split("<｜tool▁call▁begin｜>")[1:]:
        name, _, arguments = part.partition("<｜tool▁call▁end｜>")[0].partition("<｜tool▁sep｜>")
        if "```json" in arguments:
            name, _, arguments = arguments.partition("```json")
            arguments = arguments.partition("```")[0]
        calls.append(_call(name.strip(), _read(arguments)))
    return _all(calls)


def _bracketed(text: str, names: Container[str]) -> list[Call] | None:
    name, given, arguments = text.partition("[ARGS]")
    if not given:
        items = _read(text)
        return _list(items if isinstance(items, list) else [items])
    name, _, index = name.partition("[CALL_ID]")
    call = _call(name.strip(), _read(arguments))
    return None if call is None else [call | ({"id": index.strip()} if index else {})]


FORMATS: dict[str, tuple[str, Reader]] = {
    "<tool_call>": ("</tool_call>", _tagged),
    "<|tool_call_start|>": ("<|tool_call_end|>", _python),
    "<|START_ACTION|>": ("<|END_ACTION|>", lambda text, names: _list(_read(text))),
    "<|tools_prefix|>": ("<|tools_suffix|>", _keyed),
    "<｜tool▁calls▁begin｜>": ("<｜tool▁calls▁end｜>", _separated),
    "[TOOL_CALLS]": ("[TOOL_CALLS]", _bracketed),
}
"""What opens a call -> what ends it, and what reads the text between: its calls, or nothing where one cannot be read.

Readers also take the names of the tools that there are: without arguments GLM writes a call as a name alone.
"""
WHOLE = (_PYTHON, "{")
"""What an answer begins with that may be a call as a whole."""


def read_whole(text: str) -> list[Call] | None:
    """The calls that an answer is, if it is nothing else."""
    tagged = text.startswith(_PYTHON)
    text = text.removeprefix(_PYTHON).strip()
    if tagged and (builtin := re.match(r"(\w+)\.call\(", text)):
        return _python(text.replace(builtin[0], f"{builtin[1]}(", 1), ())
    if not text.startswith("{") or not text.endswith("}"):
        return None
    parts = text.replace("}; {", "};{").split("};{")
    closed = (("{" if place else "") + part + ("}" if place < len(parts) - 1 else "") for place, part in enumerate(parts))
    return _all(_of_value(_read(part), exact=True) for part in closed)


def _all(calls: Iterable[Call | None]) -> list[Call] | None:
    """The calls, if all could be read."""
    found = list(calls)
    return None if None in found else [call for call in found if call is not None]


def _list(value: Any) -> list[Call] | None:
    return _all(map(_of_value, value)) if isinstance(value, list) else None


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
        value = inner | {key: value[key] for key in _IDS if key in value}
    if exact and not value.keys() <= {"type", "name", "id", *_ARGUMENT_KEYS}:
        return None
    key = next((key for key in _ARGUMENT_KEYS if key in value), None)
    name = next((value[key] for key in _NAMES if key in value), None)
    call = _call(name, {} if key is None and not exact else value.get(key))
    index = next((value[key] for key in _IDS if isinstance(value.get(key), str)), None)
    return call if call is None or index is None else call | {"id": index}


def _call(name: Any, arguments: Any) -> Call | None:
    arguments = _read(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def _as_json(text: str) -> Iterator[str]:
    """Python's calls with named arguments, ``[f(a="b"), g()]``, as JSON; ``FormatError`` for anything else but JSON."""
    place, inside = 0, False
    while place < len(text):
        token = _TOKEN.match(text, place)
        if token is None:
            raise FormatError("is no call")
        place = token.end()
        name, after, mark = token["name"], token["after"], token["mark"]
        if token["string"]:
            yield '"' + _ESCAPED.sub(_escape, token["string"][1:-1]) + '"'
        elif name and after == "=" and inside:
            yield json.dumps(name) + ":"
        elif (name and after == "(" and not inside) or (mark == ")" and inside):
            inside = not inside
            yield f'{{"name": {json.dumps(name)}, "arguments": {{' if inside else "}}"
        elif mark == ")" or (name and (after or name not in _CONSTANTS)):
            raise FormatError("is no call")
        else:
            yield mark or token["number"] or _CONSTANTS[name]


def _escape(found: re.Match[str]) -> str:
    """A character of a string of Python's as JSON writes it."""
    character = found[1]
    if character is None:
        return json.dumps(found[0])[1:-1]
    if character in '"\\/bfnrtu':
        return found[0]
    return "'" if character == "'" else "\\\\" + json.dumps(character)[1:-1]
