"""What a field of settings may hold: its type, and the rules that are declared on it. No torch here."""

from __future__ import annotations

import copy
import inspect
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache, cached_property, partial
from typing import Annotated, Any, Literal

from transept.errors import ConfigError

# Far above any model that exists; a hostile file must not make a constructor build layers for hours.
MAX_LAYERS = 1024
MAX_EXPERTS = 8192
MAX_SIZE = 2**31 - 1
WORD = 2**63
UNIONS = (types.UnionType, typing.Union)
# Settings that are secrets, in small letters. Tokens of a vocabulary (`eos_token`) are none.
SECRETS = frozenset(
    {
        *("token", "hub_token", "push_to_hub_token", "hf_token", "use_auth_token", "auth_token", "access_token", "api_token"),
        *("api_key", "secret", "secret_key", "client_secret", "password", "passphrase", "private_key", "credentials"),
        *("authorization", "proxies", "storage_options"),
    }
)
HIDDEN = "<secret>"

# A rule of a field has a method ``check(settings, name)`` that raises ``ConfigError`` unless the setting keeps to it, or
# ``check_model``, which is called where a model is built: a config may be made, read and changed one setting after the other.


@dataclass(frozen=True)
class Range:
    """The numbers from ``low`` to ``high``; an ``open`` end (``"("``, ``")"`` or both) is not one of them itself.

    Args:
        remedy: what to do about a number outside, as one sentence.
    """

    low: float
    high: float = math.inf
    open: str = ""
    remedy: str | None = None

    def __contains__(self, number: float) -> bool:
        above = number > self.low if "(" in self.open else number >= self.low
        return above and (number < self.high if ")" in self.open else number <= self.high)

    def __str__(self) -> str:
        low, high = (f"{end}" if isinstance(end, int) else f"{end:g}" for end in (self.low, self.high))
        if self.high == math.inf:
            return f"above {low}" if "(" in self.open else f"at least {low}"
        return f"in {'(' if '(' in self.open else '['}{low}, {high}{')' if ')' in self.open else ']'}"

    def check(self, settings: Any, name: str) -> None:
        value = getattr(settings, name)
        for number in value if isinstance(value, list) else [value]:
            if not isinstance(number, int | float) or isinstance(number, bool) or self.low < number < self.high:
                continue
            if number not in self:  # an end counts where it is not open
                settings.fail(name, f"must be {self}", self.remedy)


@dataclass(frozen=True)
class Multiple:
    """A positive multiple of the setting that ``of`` names."""

    of: str

    def check_model(self, settings: Any, name: str) -> None:
        settings.divided(name, self.of)


class InVocabulary:
    """A token of the vocabulary, or ``None``; negative ids count from its end."""

    def check(self, settings: Any, name: str) -> None:
        value, size = getattr(settings, name), getattr(settings, "vocab_size", 0)
        if value is not None and not -size <= value < size:
            settings.fail(name, f"must be an id of the vocabulary, below `vocab_size` ({size})")


@dataclass(frozen=True)
class Below:
    """A number from 0 on that is below the setting that ``of`` names, and not ``None``."""

    of: str

    def check(self, settings: Any, name: str) -> None:
        value, end = getattr(settings, name), getattr(settings, self.of)
        if value is None or not 0 <= value < end:
            settings.fail(name, f"must be at least 0 and below `{self.of}` ({end})")


Share = Annotated[float, Range(0, 1)]
Deviation = Annotated[float, Range(0)]
Positive = Annotated[float, Range(0, open="(")]
Count = Annotated[int, Range(1)]
Layers = Annotated[int, Range(0, MAX_LAYERS)]
Experts = Annotated[int, Range(0, MAX_EXPERTS)]
Signed = Annotated[int, Range(-WORD, WORD - 1)]
PaddingId = Annotated[int, InVocabulary()]


class Derived:
    """The default of a field that follows from other settings, also when these change later, until it is given itself.

    Args:
        rule: settings -> value.
        absent: a value that says, like ``None``, that the setting is not given.
        fixed: the value always follows, whatever is given.
    """

    def __init__(self, rule: Callable[[Any], Any], *, absent: Any = None, fixed: bool = False) -> None:
        self.rule, self.absent, self.fixed = rule, absent, fixed

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Only asked where the value is not given; one that is stands in the instance, where Python finds it first."""
        return None if instance is None else self.rule(instance)

    def is_absent(self, value: Any) -> bool:
        """Whether this value says that the setting is not given."""
        return value is None or (self.absent is not None and value == self.absent)


derived: Any = Derived  # a field of any type may have it as its default


@dataclass(frozen=True)
class Spec:
    """One field: its type, its rules, how its default is made, and what it follows from."""

    kind: Any
    rules: tuple[Any, ...]
    default: Callable[[], Any]
    derived: Derived | None

    @cached_property
    def checks(self) -> tuple[Any, ...]:
        """The rules that each value is checked by."""
        return tuple(rule for rule in self.rules if hasattr(rule, "check"))

    @cached_property
    def by_type(self) -> dict[type, Any]:
        """The rules by their class; of two of one class the first."""
        return {type(rule): rule for rule in reversed(self.rules)}

    @cached_property
    def is_unset(self) -> bool:
        """Whether the default is ``None``, and follows from nothing."""
        return self.derived is None and self.default() is None


def _specs(cls: type[Any]) -> dict[str, Spec]:
    """The fields of a class by name, in their order."""
    try:
        kinds, annotated = typing.get_type_hints(cls), typing.get_type_hints(cls, include_extras=True)
    except NameError:  # a user's class with types that only its checker sees: its own fields hold anything
        above = specs(next(base for base in cls.__mro__[1:] if hasattr(base, "__dataclass_fields__")))
        own = [field.name for field in fields(cls) if field.name not in above]
        return above | {name: Spec(Any, (), partial(getattr, cls, name, None), None) for name in own}
    found = {}
    for field in fields(cls):
        factory, default = field.default_factory, None if field.default is MISSING else field.default
        make = factory if factory is not MISSING else lambda default=default: default
        static = inspect.getattr_static(cls, field.name, None)
        follows = static if isinstance(static, Derived) else None
        found[field.name] = Spec(kinds[field.name], tuple(_rules(annotated[field.name])), make, follows)
    return found


specs: Callable[[type[Any]], dict[str, Spec]] = cache(_specs)  # type: ignore[assignment]


def _rules(kind: Any) -> Iterator[Any]:
    """What a type, or one of its parts, is annotated with."""
    yield from getattr(kind, "__metadata__", ())
    for part in typing.get_args(kind) if typing.get_origin(kind) is not Literal else ():
        yield from _rules(part)


def checked(value: Any, kind: Any, name: str, owner: str) -> Any:
    """``value`` if it is of ``kind``; whole floats and integers stand for each other, and tuples become lists.

    Raises:
        ConfigError: it is not.
    """
    kinds = typing.get_args(kind) if typing.get_origin(kind) in UNIONS else (kind,)
    if isinstance(value, float) and value.is_integer() and int in kinds and float not in kinds:
        value = int(value)
    if isinstance(value, tuple):  # JSON has lists only, and what is read back must be equal
        value = list(value)
    if not _fits(value):
        raise ConfigError(f"`{name}` of {owner} holds an integer longer than 64 bits: {str(value)[:80]!r}.")
    if not _is(value, kind):
        expected = kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")
        shown = HIDDEN if name.lower() in SECRETS else repr(str(value)[:80])
        raise ConfigError(f"`{name}` of {owner} must be {expected}, but is {shown}.")
    return float(value) if type(value) is int and float in kinds and int not in kinds else value


def _is(value: Any, kind: Any) -> bool:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in UNIONS:
        return any(_is(value, arg) for arg in args)
    if origin is Literal:
        return value in args
    if origin is dict:
        return isinstance(value, dict) and all(_is(k, args[0]) and _is(v, args[1]) for k, v in value.items())
    if origin is list:
        return isinstance(value, list | tuple) and all(_is(item, args[0]) for item in value)
    if kind in (int, float) and isinstance(value, int | float):
        return not isinstance(value, bool) and (isinstance(value, int) if kind is int else -1e308 < value < 1e308)
    kind = list if origin is tuple else origin or kind  # tuples are lists by now
    return kind is Any or not isinstance(kind, type) or isinstance(value, kind)


def _fits(value: Any) -> bool:
    """Whether no integer in a value is longer than the 64 bits that a tensor can hold."""
    if isinstance(value, Mapping):
        return all(_fits(key) and _fits(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(map(_fits, value))
    return not isinstance(value, int) or -WORD <= value < WORD


def plain(value: Any) -> Any:
    """A copy of a value as JSON types where that is clear: settings inside become mappings, tensors' types their names."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if type(value).__module__ == "torch" and type(value).__name__ == "dtype":
        return str(value).removeprefix("torch.")
    return copy.deepcopy(value)


def without_secrets(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of settings that may be written or shown: each of :data:`SECRETS` that is given, at any depth, is ``HIDDEN``.

    What becomes a file, a log or a card passes here first.
    """
    return {name: HIDDEN if str(name).lower() in SECRETS and value else _shown(value) for name, value in settings.items()}


def _shown(value: Any) -> Any:
    if isinstance(value, Mapping):
        return without_secrets(value)
    return [_shown(item) for item in value] if isinstance(value, list | tuple) else value
