"""What a JSON document must hold, declared by types and checked where it is read. No torch here.

A kind is one of these:

- ``bool``, ``int``, ``float``, ``str``, ``None``, ``Any``, a ``Literal``, an enumeration of texts, and unions of kinds;
- ``list[K]``, ``dict[str, K]``, ``tuple[K, ...]``, and ``tuple[K, L]`` for a list of two values;
- a dataclass, or a mapping of keys to kinds, for an object with these keys. Further keys are passed over, and a field with a
  default may be absent. ``field(metadata={"key": "class"})`` names a key that is no name in Python;
- ``Annotated[K, rule]``, where ``value in rule`` tells whether a value is allowed, and ``str(rule)`` completes "must be".
"""

from __future__ import annotations

import math
import typing
from collections.abc import Container, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, cast

from transept.config.fields import UNIONS, WORD
from transept.errors import FormatError, naming
from transept.storage.files import MAX_JSON_BYTES, PathName, load_json

T = TypeVar("T")
HINT = "Restore the file from where it came from, or save it again."
_SHOWN = 80  # characters of a value in a message
_LONGEST = 200  # characters of a place in a message
_NAMES = {bool: "true or false", int: "an integer", float: "a number", str: "a text", list: "a list", dict: "an object"}


@dataclass(frozen=True)
class Length:
    """Lists, objects and texts that hold so many items, entries or characters."""

    low: int
    high: float = math.inf

    def __contains__(self, value: Any) -> bool:
        return self.low <= len(value) <= self.high

    def __str__(self) -> str:
        return f"at least {self.low} long" if self.high == math.inf else f"{self.low} to {self.high} long"


class _MisfitError(Exception):
    """What is wrong with a value, the keys that lead to it, and whether it is of the right kind and breaks a rule."""

    def __init__(self, what: str, keys: tuple[Any, ...] = (), *, is_rule: bool = False) -> None:
        super().__init__(what)
        self.what, self.keys, self.is_rule = what, keys, is_rule


def read_typed(path: PathName, kind: type[T], *, hint: str = HINT, max_bytes: int = MAX_JSON_BYTES, finite: bool = True) -> T:
    """Read a JSON document as a kind.

    Args:
        path: the file.
        kind: what it must hold (see this module).
        hint: what to do where it does not.
        max_bytes, finite: those of :func:`transept.storage.files.load_json`.

    Raises:
        FileError: the file cannot be read.
        FormatError: it is not JSON, or holds something else; names the key and its value.
    """
    return typed(load_json(path, max_bytes=max_bytes, finite=finite), kind, path=path, hint=hint)


def typed(value: Any, kind: type[T], *, path: PathName | None = None, hint: str = HINT) -> T:
    """A value that came out of a file as a kind; ``FormatError`` where it is of another kind (see :func:`read_typed`)."""
    try:
        with naming(path):  # in errors of a dataclass's own checks
            return cast(T, _fit(value, kind))
    except _MisfitError as error:
        place = f"`{_place(error.keys)}`" if error.keys else "the document"
        raise FormatError(f"{place} {error.what}.", path=path, hint=hint) from None


def kind_of(example: Any, *, lengths: bool = False) -> Any:
    """The kind of values that can stand in place of an example, such as of the state that an object has before it is loaded.

    Objects have the example's keys, tuples its length and, with ``lengths``, lists too; items of lists are alike where the
    example's are.
    ``None`` stands for anything, and any number for any other.
    """
    match example:
        case None:
            return Any
        case bool() | str():
            return type(example)
        case int() | float():
            return float
        case Mapping():
            has_names = all(isinstance(key, str) for key in example)
            return {key: kind_of(item, lengths=lengths) for key, item in example.items()} if has_names else dict
        case tuple():
            return tuple[tuple(kind_of(item, lengths=lengths) for item in example)] if example else tuple  # type: ignore[misc]
        case [_, *_]:
            kinds = [kind_of(item, lengths=lengths) for item in example]
            kind: Any = list[kinds[0] if all(each == kinds[0] for each in kinds) else Any]  # type: ignore[misc]
            return Annotated[kind, Length(len(example), len(example))] if lengths else kind
    return type(example)


def _fit(value: Any, kind: Any) -> Any:
    """The value as that kind."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        inner, *rules = arguments
        value = _fit(value, inner)
        if (broken := next((rule for rule in rules if value not in rule), None)) is not None:
            raise _MisfitError(_must_be(str(broken), value), is_rule=True)
        return value
    if origin in UNIONS:
        return _fit_union(value, kind, arguments)
    if isinstance(kind, Mapping):
        return _fit_keys(value, kind)
    if is_dataclass(kind):
        return _fit_dataclass(value, kind)
    if isinstance(kind, type) and issubclass(kind, Enum) and value in [member.value for member in kind]:
        return kind(value)
    if not _is_plain(value, origin or kind, arguments):
        raise _MisfitError(_must_be(_named(kind), value))
    if origin is list:
        return [_fit_item(item, arguments[0], index) for index, item in enumerate(value)]
    if origin is tuple:
        kinds = arguments[:1] * len(value) if arguments[-1] is ... else arguments
        return tuple(_fit_item(item, kind, index) for index, (item, kind) in enumerate(zip(value, kinds, strict=True)))
    if origin is dict:
        return {key: _fit_item(item, arguments[1], key) for key, item in value.items()}
    return value


def _is_plain(value: Any, kind: Any, arguments: tuple[Any, ...]) -> bool:
    """Whether a value is of a kind, apart from what it holds; numbers have at most 64 bits."""
    if kind is Any:
        return True
    if kind is Literal:
        return any(value == known and type(value) is type(known) for known in arguments)
    if kind is None or kind is type(None):
        return value is None
    if kind is int or kind is float:
        fits = isinstance(value, float) and kind is float
        return fits or (isinstance(value, int) and not isinstance(value, bool) and -WORD <= value < WORD)
    if kind is tuple:
        many = not arguments or arguments[-1] is ...
        return isinstance(value, list | tuple) and (many or len(value) == len(arguments))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return False  # what is one of its values has been taken before
    return isinstance(value, kind)


def _fit_item(value: Any, kind: Any, key: Any) -> Any:
    try:
        return _fit(value, kind)
    except _MisfitError as error:
        raise _MisfitError(error.what, (key, *error.keys)) from None


def _fit_union(value: Any, kind: Any, arms: tuple[Any, ...]) -> Any:
    """The value as the first of several kinds; the error is of the one that fits the furthest."""
    furthest = _MisfitError(_must_be(_named(kind), value))
    for arm in arms:
        try:
            return _fit(value, arm)
        except _MisfitError as error:
            furthest = max(furthest, error, key=lambda each: (len(each.keys), each.is_rule))
    raise furthest


def _fit_keys(value: Any, kinds: Mapping[str, Any], optional: Container[str] = ()) -> dict[str, Any]:
    """An object that has these keys, but for those that may be absent, and maybe others."""
    if not isinstance(value, Mapping):
        raise _MisfitError(_must_be("an object", value))
    if (missing := next((key for key in kinds if key not in value and key not in optional), None)) is not None:
        raise _MisfitError(f"is missing, but must be {_named(kinds[missing])}", (missing,))
    return {key: _fit_item(item, kinds.get(key, Any), key) for key, item in value.items()}


def _fit_dataclass(value: Any, kind: Any) -> Any:
    known = _fields(kind)
    optional = {key for key, field in known.items() if field.has_default}
    found = _fit_keys(value, {key: field.kind for key, field in known.items()}, optional)
    return kind(**{field.name: found[key] for key, field in known.items() if key in found})


class _Field(NamedTuple):
    """A field of a dataclass."""

    name: str
    kind: Any
    has_default: bool


@cache
def _fields(kind: Any) -> dict[str, _Field]:
    """The keys of an object, and the fields of a dataclass that they fill."""
    kinds, found = typing.get_type_hints(kind, include_extras=True), dict[str, _Field]()
    for field in fields(kind):
        has_default = field.default is not MISSING or field.default_factory is not MISSING
        found[field.metadata.get("key", field.name)] = _Field(field.name, kinds[field.name], has_default)
    return found


def _must_be(wanted: str, value: Any) -> str:
    return f"must be {wanted}, but is {repr(value)[:_SHOWN]}"


def _named(kind: Any) -> str:
    """A kind in words."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _named(arguments[0])
    if origin in UNIONS:
        return " or ".join(dict.fromkeys(map(_named, arguments)))
    if kind is None or kind is type(None):
        return "null"
    if kind is Any:
        return "anything"
    if origin is Literal:
        return f"one of {', '.join(map(repr, arguments))}"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return f"one of {', '.join(repr(member.value) for member in kind)}"
    if (origin or kind) is tuple:
        return "a list" if not arguments or arguments[-1] is ... else f"a list of {len(arguments)} values"
    if isinstance(kind, Mapping) or is_dataclass(kind):
        return "an object"
    return _NAMES.get(origin or kind) or str(getattr(kind, "__name__", kind))


def _place(keys: tuple[Any, ...]) -> str:
    """Keys as a path, such as ``groups[0].params``."""
    text = ""
    for key in keys:
        is_name = isinstance(key, str) and key.isidentifier()
        text += (f".{key}" if text else key) if is_name else f"[{key!r}]"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
