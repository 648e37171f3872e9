"""Tools of a model: the JSON schema of a Python function, and the arguments of the model's calls as that schema wants them.

A schema comes from the function's type hints and its Google-style docstring. In a call ``"7"`` is 7 for an integer, and a text
else.
"""

from __future__ import annotations

import inspect
import math
import re
import types
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import partial
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from transept.errors import FormatError, InputError, InputTypeError
from transept.files import parse_json

Schema = dict[str, Any]
Properties = Mapping[str, Mapping[str, Any]]
_MAX_DIGITS = 64
_PLAIN: dict[Any, str] = {
    int: "integer",
    float: "number",
    str: "string",
    bool: "boolean",
    type(None): "null",
    list: "array",
    tuple: "array",
    dict: "object",
}
_SCALARS = (int, float, str, bool, type(None))
# Known by name, since neither library is imported for it.
_MEDIA = {("PIL.Image", "Image"): "image", ("torch", "Tensor"): "audio"}
_SECTIONS = {"Args:": "Args", "Returns:": "Returns", "Raises:": "Raises"}
_NAMED = re.compile(r"([ \t]*)(\w+):")
_CHOICES = "(choices:"
_HINT = "Or pass the tool's JSON schema as a dict."


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
    description, arguments, returned = _parts_of(text.strip())
    parameters = _parameters(func, name)
    returns = parameters["properties"].pop("return", None)
    if returns is not None and returned is not None:
        returns["description"] = returned
    for argument, schema in parameters["properties"].items():
        if argument not in arguments:
            hint = f'Write "{argument}: ..." under "Args:". {_HINT}'
            raise InputError(f"the docstring of the tool {name!r} does not describe the argument {argument!r}.", hint=hint)
        _describe(schema, arguments[argument], name)
    function: Schema = {"name": name, "description": description, "parameters": parameters}
    if returns is not None:
        function["return"] = returns
    return {"type": "function", "function": function}


def schemas_of(tools: Any) -> list[Any] | None:
    """The schemas of tools that are schemas already, or functions.

    Raises:
        InputTypeError: a tool that is neither.
    """
    if tools is None:
        return None
    if not isinstance(tools, list | tuple):
        raise InputTypeError(f"tools are a list of functions or JSON schemas, but {type(tools).__name__} was passed.")
    schemas = []
    for place, tool in enumerate(tools):
        if isinstance(tool, Mapping):
            schemas.append(tool)
        elif inspect.isfunction(tool) or inspect.ismethod(tool):
            schemas.append(get_json_schema(tool))
        else:
            raise InputTypeError(f"tool {place} is {tool!r:.80}, but must be a function or a JSON schema (dict).")
    return schemas


def _describe(schema: Schema, text: str, name: str) -> None:
    start = text.lower().rfind(_CHOICES)
    if start >= 0 and text.endswith(")"):
        try:
            choices = parse_json(text[start + len(_CHOICES) : -1].strip())
        except FormatError as error:
            raise InputError(f"the choices in the docstring of the tool {name!r} are no JSON: {error}") from error
        if not isinstance(choices, list):
            raise InputError(f"the choices in the docstring of the tool {name!r} are no list, but {choices!r:.80}.")
        schema["enum"] = [choice.strip() if isinstance(choice, str) else choice for choice in choices]
        text = text[:start].strip()
    schema["description"] = text


def _parts_of(text: str) -> tuple[str, dict[str, str], str | None]:
    """The description, the arguments' descriptions, and what is returned, of a docstring."""
    sections: dict[str, list[str]] = {"": []}
    current = sections[""]
    for line in text.split("\n"):
        if (title := _SECTIONS.get(line.strip())) and title not in sections:
            current = sections[title] = []
        else:
            current.append(line)
    arguments = dict(_arguments(line for line in sections.get("Args", []) if line.strip()))
    returned = "\n".join(sections["Returns"]).strip() if "Returns" in sections else None
    return "\n".join(sections[""]).strip(), arguments, returned


def _arguments(lines: Iterator[str]) -> Iterator[tuple[str, str]]:
    """Names and descriptions: a line that begins with a name goes on over all lines that are indented deeper."""
    name, indent, parts = "", "", [""]
    for line in lines:
        found = _NAMED.match(line)
        deeper = line.startswith((indent + " ", indent + "\t"))
        if found is not None and not (name and deeper):
            if name:
                yield name, " ".join(filter(None, parts))
            indent, name, parts = found[1], found[2], [line[found.end() :].strip()]
        else:
            parts.append(line.strip())
    if name:
        yield name, " ".join(filter(None, parts))


def _parameters(func: Callable[..., Any], name: str) -> Schema:
    try:
        hints, signature = get_type_hints(func), inspect.signature(func)
    except (NameError, AttributeError, SyntaxError, TypeError, ValueError) as error:
        raise InputError(f"the type hints of the tool {name!r} cannot be read: {error}.", hint=_HINT) from error
    first = next(iter(signature.parameters), "")
    # An argument of that name without a hint is what a method is called on.
    implicit = first in ("self", "cls") and signature.parameters[first].annotation is inspect.Parameter.empty
    required = []
    for argument, parameter in signature.parameters.items():
        if implicit and argument == first:
            continue
        if parameter.annotation is inspect.Parameter.empty:
            raise InputError(f"the argument {argument!r} of the tool {name!r} has no type hint.", hint=_HINT)
        if parameter.default is inspect.Parameter.empty:
            required.append(argument)
    properties: Schema = {}
    for argument, hint in hints.items():
        try:
            properties[argument] = _schema_of(hint)
        except InputError as error:
            # The model never writes what is returned.
            if argument != "return":
                raise InputError(f"the argument {argument!r} of the tool {name!r}: {error.message}", hint=_HINT) from error
    schema: Schema = {"type": "object", "properties": properties}
    return schema | {"required": required} if required else schema


def _schema_of(hint: Any) -> Schema:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is None:
        return _of_plain(hint)
    if origin in (list, dict) and len(arguments) < {list: 1, dict: 2}[origin]:
        return {"type": _PLAIN[origin]}
    if origin in (Union, types.UnionType):
        return _of_union(arguments)
    if origin is Literal:
        return _of_values(list(arguments), "the literals")
    if origin is list:
        return {"type": "array", "items": _schema_of(arguments[0])}
    if origin is tuple:
        if len(arguments) == 1 or ... in arguments:
            raise InputError(f"a tuple such as {hint} says nothing to JSON.", hint="Use list[...].")
        return {"type": "array", "prefixItems": [_schema_of(item) for item in arguments]}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema_of(arguments[1])}
    raise _untold(hint)


def _of_plain(hint: Any) -> Schema:
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _of_values([member.value for member in hint], f"the members of {hint.__name__}")
    if hint is Any:
        return {}
    if isinstance(hint, type) and hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    media = _MEDIA.get((getattr(hint, "__module__", ""), getattr(hint, "__name__", "")))
    if media is None:
        raise _untold(hint)
    return {"type": media}


def _of_union(hints: tuple[Any, ...]) -> Schema:
    schemas = [_schema_of(hint) for hint in hints if hint is not type(None)]
    if len(schemas) == 1:
        schema = schemas[0]
    elif all(schema.keys() == {"type"} and isinstance(schema["type"], str) for schema in schemas):
        names = sorted({schema["type"] for schema in schemas})
        schema = {"type": names[0] if len(names) == 1 else names}
    else:
        schema = {"anyOf": schemas}
    return schema | {"nullable": True} if type(None) in hints else schema


def _of_values(values: list[Any], what: str) -> Schema:
    if not values or any(type(value) not in _SCALARS for value in values):
        raise InputError(f"{what} must be texts, numbers, truth values or None, but are {values!r:.80}.")
    names = list(dict.fromkeys(_PLAIN[type(value)] for value in values))
    return {"type": names[0] if len(names) == 1 else names, "enum": values}


def _untold(hint: Any) -> InputError:
    return InputError(f"the type hint {hint!r:.80} cannot be told in JSON.")


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
        choices = schema.get(union)
        for choice in choices if isinstance(choices, list) else ():
            yield from _kinds(choice)
    if schema.get("nullable"):
        yield "null"


def cast(text: str, kinds: list[str]) -> Any:
    """``text`` as the first of these JSON types that it can be; else itself."""
    for kind in kinds:
        try:
            return _CASTS[kind](text)
        except (KeyError, ValueError):
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
            raise
        return int(number)


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise FormatError("is no finite number")
    return int(number) if number.is_integer() and "." not in text else number


def _parsed(kind: type, text: str) -> Any:
    value = parse_json(text)
    if not isinstance(value, kind):
        raise FormatError(f"is no {kind.__name__}")
    return value


_CASTS: dict[str, Callable[[str], Any]] = {
    "integer": _integer,
    "number": _number,
    "boolean": lambda text: {"true": True, "1": True, "false": False, "0": False}[text.strip().lower()],
    "null": lambda text: {"null": None, "None": None}[text.strip()],
    "object": partial(_parsed, dict),
    "array": partial(_parsed, list),
}
