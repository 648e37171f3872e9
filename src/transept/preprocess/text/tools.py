"""Tools of a model: JSON schemas of Python functions, how calls are spelled, and arguments cast to what schemas want."""

from __future__ import annotations

import inspect
import json
import math
import re
import types
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import suppress
from enum import Enum
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from transept.errors import FormatError, InputError, InputTypeError
from transept.storage.files import parse_json

Schema = dict[str, Any]
Properties = Mapping[str, Mapping[str, Any]]
_MAX_DIGITS = 64
_SCALARS = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}
_PLAIN: dict[Any, str] = _SCALARS | {list: "array", tuple: "array", dict: "object"}
# Known by name, since neither library is imported for it.
_MEDIA = {("PIL.Image", "Image"): "image", ("torch", "Tensor"): "audio"}
_SECTION = re.compile(r"^[^\S\n]*(Args|Returns|Raises):[^\S\n]*$", re.MULTILINE)
# A name and its description, which goes on over lines that are indented deeper, or that have no name.
_ARGUMENT = re.compile(r"^([ \t]*)(\w+):(.*(?:\n(?:\1[ \t]|(?![ \t]*\w+:)).*)*)", re.MULTILINE)
_CHOICES = "(choices:"
_TOKEN = re.compile(
    r"""\s*(?:(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<number>-?\d[\d.eE+-]*)"""
    r"""|(?P<name>[^\W\d][\w.-]*)\s*(?P<after>[(=]?)|(?P<mark>[][{}),:]))\s*""",
    re.DOTALL,
)
_CONSTANTS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_ESCAPED = re.compile(r'\\([^"\\/bfnrtu])|["\x00-\x1f]|\\.', re.DOTALL)
_HINT = "Or pass the tool's JSON schema as a dict."
_EMPTY = inspect.Parameter.empty


def get_json_schema(func: Callable[..., Any]) -> Schema:
    """The JSON schema of a function, as chat templates read it.

    Args:
        func: a function or method whose arguments all have type hints and are described under ``Args:`` in its
            docstring. A description that ends in ``(choices: ["a", "b"])`` gives an ``enum``.

    Returns:
        ``{"type": "function", "function": {"name", "description", "parameters"}}``, and ``"return"`` beside
        ``"parameters"`` where the hint of what it returns can be told in JSON.

    Raises:
        InputError: no docstring, an argument without hint or description, or a hint that JSON cannot tell; names it.
    """
    if not callable(func):
        raise InputTypeError(f"a tool is {func!r:.80}, but must be a function.", hint=_HINT)
    name = getattr(func, "__name__", "operation")
    if not (text := inspect.getdoc(func)):
        raise InputError(f"the tool {name!r} has no docstring.", hint=f"Describe it and its arguments there. {_HINT}")
    description, *parts = _SECTION.split(text.strip())
    sections = dict(zip(parts[::2], parts[1::2]))
    described = {match[2]: match[3] for match in _ARGUMENT.finditer(sections.get("Args", ""))}
    parameters = _parameters(func, name)
    function: Schema = {"name": name, "description": description.strip(), "parameters": parameters}
    if (returns := parameters["properties"].pop("return", None)) is not None:
        function["return"] = returns | ({"description": sections["Returns"].strip()} if "Returns" in sections else {})
    for argument, schema in parameters["properties"].items():
        if argument not in described:
            hint = f'Write "{argument}: ..." under "Args:". {_HINT}'
            raise InputError(f"the docstring of the tool {name!r} does not describe the argument {argument!r}.", hint=hint)
        text = " ".join(filter(None, map(str.strip, described[argument].split("\n"))))
        if (start := text.lower().rfind(_CHOICES)) >= 0 and text.endswith(")"):
            schema["enum"] = _choices(text[start + len(_CHOICES) : -1], name)
            text = text[:start].strip()
        schema["description"] = text
    return {"type": "function", "function": function}


def _choices(text: str, name: str) -> list[Any]:
    try:
        choices = parse_json(text.strip())
        if isinstance(choices, list):
            return [choice.strip() if isinstance(choice, str) else choice for choice in choices]
        reason = f"list, but {choices!r:.80}."
    except FormatError as error:
        reason = f"JSON: {error}"
    raise InputError(f"the choices in the docstring of the tool {name!r} are no {reason}")


def _parameters(func: Callable[..., Any], name: str) -> Schema:
    try:
        hints, arguments = get_type_hints(func), list(inspect.signature(func).parameters.values())
    except (NameError, AttributeError, SyntaxError, TypeError, ValueError) as error:
        raise InputError(f"the type hints of the tool {name!r} cannot be read: {error}.", hint=_HINT) from error
    if arguments and arguments[0].name in ("self", "cls") and arguments[0].annotation is _EMPTY:
        del arguments[0]  # what a method is called on
    for argument in arguments:
        if argument.annotation is _EMPTY:
            raise InputError(f"the argument {argument.name!r} of the tool {name!r} has no type hint.", hint=_HINT)
    properties: Schema = {}
    for key, hint in hints.items():
        try:
            properties[key] = _schema_of(hint)
        except InputError as error:
            if key != "return":  # which the model never writes
                raise InputError(f"the argument {key!r} of the tool {name!r}: {error.message}", hint=_HINT) from error
    required = [argument.name for argument in arguments if argument.default is _EMPTY]
    return {"type": "object", "properties": properties} | ({"required": required} if required else {})


def _schema_of(hint: Any) -> Schema:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        schemas = [_schema_of(one) for one in inner if one is not type(None)]
        plain = all(schema.keys() == {"type"} and isinstance(schema["type"], str) for schema in schemas)
        union = {"type": _one_or_all(sorted({schema["type"] for schema in schemas}))} if plain else {"anyOf": schemas}
        return (schemas[0] if len(schemas) == 1 else union) | ({"nullable": True} if type(None) in inner else {})
    if origin is Literal:
        return _of_values(list(inner), "the literals")
    if origin is list:
        return {"type": "array", "items": _schema_of(inner[0])} if inner else {"type": "array"}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema_of(inner[1])} if len(inner) > 1 else {"type": "object"}
    if origin is tuple:
        if len(inner) == 1 or ... in inner:
            raise InputError(f"a tuple such as {hint} says nothing to JSON.", hint="Use list[...].")
        return {"type": "array", "prefixItems": [_schema_of(item) for item in inner]}
    if hint is Any:
        return {}
    if origin is None and isinstance(hint, type):
        if issubclass(hint, Enum):
            return _of_values([member.value for member in hint], f"the members of {hint.__name__}")
        if kind := _PLAIN.get(hint) or _MEDIA.get((hint.__module__, hint.__name__)):
            return {"type": kind}
    raise InputError(f"the type hint {hint!r:.80} cannot be told in JSON.")


def _of_values(values: list[Any], what: str) -> Schema:
    if not values or any(type(value) not in _SCALARS for value in values):
        raise InputError(f"{what} must be texts, numbers, truth values or None, but are {values!r:.80}.")
    return {"type": _one_or_all(list(dict.fromkeys(_SCALARS[type(value)] for value in values))), "enum": values}


def _one_or_all(names: list[str]) -> str | list[str]:
    return names[0] if len(names) == 1 else names


def schemas_of(tools: Any) -> list[Any] | None:
    """The schemas of tools that are schemas already, or functions; ``InputTypeError`` where one is neither."""
    if tools is None:
        return None
    if not isinstance(tools, list | tuple):
        raise InputTypeError(f"tools are a list of functions or JSON schemas, but {type(tools).__name__} was passed.")
    for place, tool in enumerate(tools):
        if not (isinstance(tool, Mapping) or inspect.isfunction(tool) or inspect.ismethod(tool)):
            raise InputTypeError(f"tool {place} is {tool!r:.80}, but must be a function or a JSON schema (dict).")
    return [tool if isinstance(tool, Mapping) else get_json_schema(tool) for tool in tools]


def properties_of(tools: Any) -> dict[str, Properties]:
    """For each tool by name the schemas of its arguments; tools are functions or schemas."""
    named: dict[str, Properties] = {}
    for tool in schemas_of(tools) or ():
        function = _mapping(tool, "function") or tool
        if isinstance(name := function.get("name"), str):
            named[name] = _mapping(_mapping(function, "parameters"), "properties")
    return named


def _mapping(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    return inner if isinstance(inner := value.get(key), Mapping) else {}


def cast_call(call: Any, known: Mapping[str, Properties]) -> Any:
    """A tool call, or a list of them, with the arguments that are texts cast to what the tool's schema says."""
    if isinstance(call, list):
        return [cast_call(item, known) for item in call]
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(arguments := function.get("arguments"), dict):
        return call
    properties = known.get(name, {}) if isinstance(name := function.get("name"), str) else {}
    for key, value in arguments.items():
        kinds = list(_kinds(properties.get(key)))
        several = isinstance(value, list) and kinds and "array" not in kinds
        arguments[key] = [_cast(item, kinds) for item in value] if several else _cast(value, kinds)
    return call


def _kinds(schema: Any) -> Iterator[str]:
    """The JSON types that a schema allows, in its order."""
    if not isinstance(schema, Mapping):
        return
    kind = schema.get("type")
    yield from (item for item in (kind if isinstance(kind, list) else [kind]) if isinstance(item, str))
    for choices in (schema.get("anyOf"), schema.get("oneOf")):
        for choice in choices if isinstance(choices, list) else ():
            yield from _kinds(choice)
    if schema.get("nullable"):
        yield "null"


def _cast(value: Any, kinds: list[str]) -> Any:
    """A text as the first of these JSON types that it can be; else the value itself."""
    for kind in kinds if isinstance(value, str) else ():
        with suppress(KeyError, ValueError, OverflowError):
            if kind in ("integer", "number"):
                return _number(value, whole=kind == "integer")
            if kind in ("boolean", "null"):
                text = value.strip()
                return {"null": None, "None": None}[text] if kind == "null" else _TRUTH[text.lower()]
            if kind in ("object", "array") and isinstance(parsed := parse_json(value), dict if kind == "object" else list):
                return parsed
    return value


_TRUTH = {"true": True, "1": True, "false": False, "0": False}


def _number(text: str, *, whole: bool) -> float:
    """A finite number, which is an integer where it is written as one, or has to be one."""
    if whole and len(text) <= _MAX_DIGITS:
        with suppress(ValueError):
            return int(text)
    number = float(text)
    if not math.isfinite(number) or (whole and (len(text) > _MAX_DIGITS or not number.is_integer())):
        raise FormatError("is no such number")
    return int(number) if number.is_integer() and (whole or "." not in text) else number


def as_json(text: str) -> Iterator[str]:
    """Python's calls with named arguments, ``[f(a="b"), g()]``, as JSON; ``FormatError`` for anything else but JSON."""
    place, inside = 0, False
    while place < len(text):
        token = _TOKEN.match(text, place)
        if token is None:
            raise FormatError("is no call.")
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
            raise FormatError("is no call.")
        else:
            yield mark or token["number"] or _CONSTANTS[name]


def _escape(match: re.Match[str]) -> str:
    """A character of a string of Python's as JSON writes it; a backslash before another than JSON's is one itself."""
    if match[1] == "'":
        return "'"
    if match[1] or len(match[0]) == 1:
        return json.dumps(match[0])[1:-1]
    return match[0]


class CallFormat(NamedTuple):
    """How calls are spelled: what stands before all, each of them, what stands between two, and what stands behind all."""

    opening: str
    call: str  # with NAME and ARGUMENTS
    between: str
    closing: str


_OBJECT = '{"name": "NAME", "arguments": ARGUMENTS}'
_SEPARATED = "<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>ARGUMENTS<｜tool▁call▁end｜>"
CALL_FORMATS = {  # by what the chat template holds, or a token that there is; the first that fits
    "[ARGS]": CallFormat("", "[TOOL_CALLS]NAME[ARGS]ARGUMENTS", "", ""),
    "[TOOL_CALLS]": CallFormat("[TOOL_CALLS][", _OBJECT, ", ", "]"),
    "<|tool_call_start|>": CallFormat("<|tool_call_start|>[", _OBJECT, ", ", "]<|tool_call_end|>"),
    "<|START_ACTION|>": CallFormat(
        "<|START_ACTION|>[", '{"tool_name": "NAME", "parameters": ARGUMENTS}', ", ", "]<|END_ACTION|>"
    ),
    "<|tools_prefix|>": CallFormat("<|tools_prefix|>[", '{"NAME": ARGUMENTS}', ", ", "]<|tools_suffix|>"),
    "<｜tool▁calls▁begin｜>": CallFormat("<｜tool▁calls▁begin｜>", _SEPARATED, "", "<｜tool▁calls▁end｜>"),
    "<tool_call>": CallFormat("", f"<tool_call>\n{_OBJECT}\n</tool_call>", "\n", ""),
}
_BARE = CallFormat("", '{"name": "NAME", "parameters": ARGUMENTS}', "; ", "")


def format_of(template: str, tokens: Container[str]) -> CallFormat:
    """How a model spells calls, by its chat template or else by the tokens that it has; as bare JSON where neither says."""
    told = [form for mark, form in CALL_FORMATS.items() if mark in template]
    return next(iter((*told, *(form for mark, form in CALL_FORMATS.items() if mark in tokens), _BARE)))
