"""The arguments of a model's tool calls, as the tools' schemas want them: ``"7"`` is 7 for an integer, and a text else."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from transept.errors import FormatError
from transept.files import parse_json
from transept.preprocess.text.tools import schemas_of

Properties = Mapping[str, Mapping[str, Any]]
_MAX_DIGITS = 64


def properties_of(tools: Any) -> dict[str, Properties]:
    """For each tool by name the schemas of its arguments; tools are functions or schemas."""
    found: dict[str, Properties] = {}
    for tool in schemas_of(tools) or ():
        function = tool.get("function", tool)
        if isinstance(function, Mapping) and isinstance(name := function.get("name"), str):
            parameters = function.get("parameters")
            properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
            found[name] = properties if isinstance(properties, Mapping) else {}
    return found


def cast_call(call: Any, known: Mapping[str, Properties]) -> Any:
    """A tool call, or a list of them, with the arguments that are texts cast to what the tool's schema says."""
    if isinstance(call, list):
        return [cast_call(item, known) for item in call]
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(arguments := function.get("arguments"), dict):
        return call
    name = function.get("name")
    properties = known.get(name, {}) if isinstance(name, str) else {}
    for key, value in arguments.items():
        kinds = list(_kinds(properties.get(key)))
        if isinstance(value, str):
            arguments[key] = cast(value, kinds)
        elif isinstance(value, list) and kinds and "array" not in kinds:
            arguments[key] = [cast(item, kinds) if isinstance(item, str) else item for item in value]
    return call


def _kinds(schema: Any) -> Iterator[str]:
    """The JSON types that a schema allows, in its order."""
    if not isinstance(schema, Mapping):
        return
    kind = schema.get("type")
    yield from (item for item in (kind if isinstance(kind, list) else [kind]) if isinstance(item, str))
    for union in ("anyOf", "oneOf"):
        for choice in schema.get(union) or ():
            yield from _kinds(choice)
    if schema.get("nullable"):
        yield "null"


def cast(text: str, kinds: list[str]) -> Any:
    """``text`` as the first of these JSON types that it can be; else itself."""
    for kind in kinds:
        if kind not in _CASTS:
            continue
        try:
            return _CASTS[kind](text)
        except (ValueError, FormatError):
            continue
    return text


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise FormatError("is too long for a number")
    try:
        return int(text)
    except ValueError:
        number = float(text)
        if not number.is_integer():
            raise FormatError("is no integer") from None
        return int(number)


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise FormatError("is no finite number")
    return int(number) if number.is_integer() and "." not in text else number


def _boolean(text: str) -> bool:
    value = {"true": True, "1": True, "false": False, "0": False}.get(text.strip().lower())
    if value is None:
        raise FormatError("is no truth value")
    return value


def _null(text: str) -> None:
    if text.strip() not in ("null", "None"):
        raise FormatError("is not null")


def _container(kind: type) -> Callable[[str], Any]:
    def decoded(text: str) -> Any:
        value = parse_json(text)
        if not isinstance(value, kind):
            raise FormatError(f"is no {kind.__name__}")
        return value

    return decoded


_CASTS: dict[str, Callable[[str], Any]] = {
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "null": _null,
    "object": _container(dict),
    "array": _container(list),
}
