"""The base of all settings: typed fields that are checked, read from JSON and written back. No torch here.

A subclass lists its fields; what holds for one field is declared on it (see :mod:`transept.config.fields`): a range or another
rule by ``Annotated``, with short names for the usual ones, and a value that follows from others by ``derived``. ``aliases``
gives other names for the same value. Keys of a file that the class does not know, and attributes that users add, are kept in
``extra`` and written back.
"""

from __future__ import annotations

import copy
import difflib
import inspect
import json
import os
import typing
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import FunctionType
from typing import Any, ClassVar, Self, dataclass_transform

from transept.config.fields import checked, plain, specs
from transept.errors import ConfigError, InputTypeError, TranseptWarning, nearest
from transept.storage.files import PathName, dump_json, load_object, make_directory, safe_join, write_text
from transept.storage.publish import Pushable
from transept.storage.source import GGUF_ENDING, Source, model_name, take_source_options

MAX_BYTES = 4 * 2**20
# How like one of ours an unknown name must be to be shown with it: one that the caller wrote, and one of a file, where most
# are of other libraries and versions; a slip of the pen adds or drops a character or two.
_LIKE, _ALMOST, _SLIP = 0.5, 0.85, 2


@dataclass_transform(kw_only_default=True)
class Settings(Pushable):
    """Settings, all of them keywords; a subclass is a dataclass by being defined.

    Raises:
        ConfigError: an unknown argument, a value of the wrong type or out of range.
    """

    noun = "config"
    file_name: ClassVar[str] = "config.json"
    aliases: ClassVar[dict[str, str]] = {}
    attribute_map: ClassVar[dict[str, str]] = {}  # what the reference calls them
    unread: ClassVar[frozenset[str]] = frozenset()  # keys that a file can never set
    unwritten: ClassVar[frozenset[str]] = frozenset()  # settings of one run, which no file holds
    keeps_unknown: ClassVar[bool] = False  # whether a setting that a caller passes may be unknown, with a warning

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclass(kw_only=True, init=False, repr=False, eq=False)(cls)
        names = {field.name for field in fields(cls)}  # type: ignore[arg-type]
        every: dict[str, str] = {}
        for base in reversed(cls.__bases__):
            every |= getattr(base, "aliases", {})
        every |= cls.__dict__.get("attribute_map", {}) | cls.__dict__.get("aliases", {})
        cls.aliases = cls.attribute_map = {name: real for name, real in every.items() if name not in names}
        if "__init__" not in vars(cls) and cls.__init__.__code__.co_varnames[:2] == ("self", "values"):
            cls.__init__ = _listing(cls)  # type: ignore[method-assign]

    def __init__(self, **values: Any) -> None:
        self.fill_in(values, keep=False)
        self.validate()

    def fill_in(self, values: Mapping[str, Any], *, keep: bool) -> None:
        """Set all fields, from ``values`` or else to their defaults; those of a file (``keep``) may be unknown."""
        values = self.upgrade(dict(values))
        for name, spec in specs(type(self)).items():
            if name in values:
                setattr(self, name, values.pop(name))
            elif name in self.__dict__ or spec.derived is not None:
                continue
            elif spec.is_unset:
                object.__setattr__(self, name, None)
            else:
                setattr(self, name, spec.default())
        unknown = [name for name in values if not self.knows(name)]
        for name in () if keep or self.keeps_unknown else unknown:
            self.need_known(name)
        for name, value in values.items():
            if (keep or name in unknown) and name[:1] != "_" and self._property(name) is None:
                self.extra[name] = value
            elif not self._is_computed(name):
                setattr(self, name, value)
        self.warn_of(unknown, _ALMOST if keep else None)

    @classmethod
    def upgrade(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Rewrite the keys of older files as today's; of two names for one setting the older counts, unless it is None."""
        for other, name in cls.aliases.items():
            if other in values:
                value = values.pop(other)
                values[name] = values.get(name) if value is None else value
        return values

    @property
    def extra(self) -> dict[str, Any]:
        """Keys of a file that the class does not know, and attributes that users added."""
        kept: dict[str, Any] = self.__dict__.setdefault("_extra", {})
        return kept

    def knows(self, name: str) -> bool:
        """Whether that is a setting, another name for one, or a key that was kept."""
        return name in specs(type(self)) or name in self.aliases or name in self.extra or self._property(name) is not None

    def need_known(self, name: str) -> None:
        """Raise ``ConfigError`` unless that is a setting, another name for one, or a key that was kept."""
        if not self.knows(name):
            names = [*specs(type(self)), *self.aliases]
            raise ConfigError(f"{type(self).__name__} has no setting {name!r}.", hint=nearest(name, names))

    def warn_of(self, unknown: Sequence[str], likeness: float | None = None) -> None:
        """Warn once of names that are only kept; with ``likeness``, of those that are so like one of ours."""
        names = [*specs(type(self)), *self.aliases]
        said = []
        for name in unknown:
            like = difflib.get_close_matches(name, names, n=1, cutoff=likeness or _LIKE)
            if not likeness or (like and abs(len(like[0]) - len(name)) <= _SLIP):
                said.append(f"{name!r}" + (f" (did you mean {like[0]!r}?)" if like else ""))
        if said:
            what = f"{type(self).__name__} has no setting {', '.join(said)}: kept as an attribute that nothing reads."
            warnings.warn(what, TranseptWarning, stacklevel=5)

    def _property(self, name: str) -> property | None:
        found = inspect.getattr_static(type(self), name, None)
        return found if isinstance(found, property) and name != "extra" else None

    def _is_computed(self, name: str) -> bool:
        """Whether that is a property that cannot be set; files of the reference hold some."""
        return (found := self._property(name)) is not None and found.fset is None

    def __setattr__(self, name: str, value: Any) -> None:
        name = self.aliases.get(name, name)
        if (spec := specs(type(self)).get(name)) is not None:
            rule, follows = spec.derived, spec.derived is not None and spec.derived.is_absent(value)
            if not follows:
                value = checked(value, spec.kind, name, type(self).__name__)
            if rule is not None and (follows or rule.fixed):
                self.__dict__.pop(name, None)
            else:
                object.__setattr__(self, name, value)
        elif name == "extra" or self._is_computed(name):
            raise ConfigError(f"`{name}` of {type(self).__name__} follows from other settings and cannot be set.")
        elif name[:1] == "_" or self._property(name) is not None:
            object.__setattr__(self, name, value)
        else:
            self.extra[name] = value

    def __getattr__(self, name: str) -> Any:
        # Only called where normal look-up failed: another name, a kept key, or a mistake.
        if name in self.aliases:
            return getattr(self, self.aliases[name])
        kept = self.__dict__.get("_extra", {})
        if name in kept:
            return kept[name]
        raise AttributeError(f"{type(self).__name__} has no setting {name!r}")

    def __delattr__(self, name: str) -> None:
        if self.extra.pop(name, self) is self:
            object.__delattr__(self, self.aliases.get(name, name))

    def validate(self) -> None:
        """Check what the fields declare; subclasses add rules of their own."""
        for name, spec in specs(type(self)).items():
            for rule in spec.checks:
                rule.check(self, name)

    def check(self) -> None:
        """The same, without warnings where a class gives some."""
        self.validate()

    def fail(self, name: str, rule: str, remedy: str | None = None) -> typing.NoReturn:
        """Raise the error for one setting: ``rule`` completes the sentence that begins with its name."""
        value = repr(getattr(self, name))[:80]
        raise ConfigError(f"`{name}` of {type(self).__name__} {rule}, but is {value}.", hint=remedy)

    def divided(self, name: str, divisor: str) -> int:
        """One setting by another, of which it must be a positive multiple (``ConfigError`` where it is not)."""
        value, by = getattr(self, name), getattr(self, divisor)
        if by < 1 or value < 1 or value % by:
            self.fail(name, f"must be a positive multiple of `{divisor}` ({by})")
        return int(value // by)

    def with_settings(self, **settings: Any) -> Self:
        """A checked copy in which some settings are replaced (``ConfigError`` for those that it does not have)."""
        twin = copy.deepcopy(self)
        for name in settings:
            twin.need_known(name)
        twin.change(settings)
        return twin

    def change(self, settings: Mapping[str, Any]) -> None:
        """Set several settings or attributes; all of them or, where one is wrong, none."""
        twin = copy.deepcopy(self)
        for name, value in settings.items():
            setattr(twin, name, value)
        twin.validate()
        object.__setattr__(self, "__dict__", twin.__dict__)

    @classmethod
    def from_dict(
        cls,
        config_dict: Mapping[str, Any],
        *,
        path: PathName | None = None,
        return_unused_kwargs: bool = False,
        **overrides: Any,
    ) -> Self:
        """Build from the content of a file, of which unknown keys are kept.

        Args:
            config_dict: the content.
            path: the file, for messages.
            return_unused_kwargs: return a pair of the settings and the overrides that are not known, in place of an error.
            overrides: settings that replace the file's; a mapping for settings within these replaces those that it names.

        Raises:
            ConfigError: naming the setting and its value, and the file where that is the file's.
        """
        given: Any = config_dict
        if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
            raise InputTypeError(f"{cls.__name__} is made of settings by name, not of {str(config_dict)[:80]!r}.")
        try:
            settings = cls.read_values(config_dict)
            if not overrides:
                settings.check()
        except ConfigError as error:
            error.path = error.path or (None if path is None else str(path))
            raise
        unused = {name: overrides.pop(name) for name in [*overrides] if return_unused_kwargs and not settings.knows(name)}
        for name in overrides:
            settings.need_known(name)
        if overrides or unused:
            settings.change({name: settings._within(name, value) for name, value in overrides.items()})
        return (settings, unused) if return_unused_kwargs else settings  # type: ignore[return-value]

    def _within(self, name: str, value: Any) -> Any:
        """A new value of a setting; of settings within these, a mapping of the same type replaces those that it names."""
        inner = getattr(self, name, None)
        if not isinstance(inner, Settings) or not isinstance(value, Mapping):
            return value
        kind = getattr(inner, "model_type", None)
        if value.get("model_type", kind) != kind:
            return value
        return inner.with_settings(**{key: each for key, each in value.items() if key != "model_type"})

    @classmethod
    def read_values(cls, values: Mapping[str, Any]) -> Self:
        """The settings of a file, not yet checked against each other."""
        return cls.filled({k: v for k, v in values.items() if (k[:1] != "_" or k in specs(cls)) and k not in cls.unread})

    @classmethod
    def filled(cls, values: Mapping[str, Any]) -> Self:
        """Settings with these values, of which unknown ones are kept; not yet checked."""
        settings = cls.__new__(cls)
        settings.fill_in(values, keep=True)
        return settings

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: PathName, config_file_name: str | None = None, **options: Any
    ) -> Self:
        """Read the settings of a directory, a repository, or the file itself.

        ``options`` say where to look (see :class:`transept.storage.source.Source`), or are those of :meth:`from_dict`.

        Raises:
            FileError: there is no such file.
            FormatError: it is no JSON object.
            ConfigError: see :meth:`from_dict`.
        """
        values, path = cls.read(pretrained_model_name_or_path, take_source_options(options), config_file_name)
        return cls.from_dict(values, path=path, **options)

    @classmethod
    def read(cls, name_or_path: PathName, hub: dict[str, Any], file_name: str | None = None) -> tuple[dict[str, Any], Path]:
        """The content of the file of a directory, of a repository, or of the file itself, and where it stands."""
        is_file = os.path.isfile(name := model_name(name_or_path)) and not name.lower().endswith(GGUF_ENDING)
        path = Path(name_or_path) if is_file else Source(model_name(name_or_path), **hub).need(file_name or cls.file_name)
        return load_object(path, finite=False, max_bytes=MAX_BYTES), path

    @classmethod
    def get_config_dict(cls, name_or_path: PathName, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The content of the file, and the arguments that do not say where to look."""
        hub, file_name = take_source_options(options), options.pop("config_file_name", None)
        return cls.read(name_or_path, hub, file_name)[0], options

    @classmethod
    def from_json_file(cls, json_file: PathName) -> Self:
        """Read one file; see :meth:`from_pretrained` for errors."""
        return cls.from_dict(load_object(json_file, finite=False, max_bytes=MAX_BYTES), path=json_file)

    def to_dict(self) -> dict[str, Any]:
        """All settings as JSON types, ``None`` for those that are not set, and the kept unknown keys."""
        own = {name: getattr(self, name) for name in specs(type(self)) if name not in self.unwritten}
        return {name: plain(value) for name, value in (self.extra | own).items()}

    def to_diff_dict(self) -> dict[str, Any]:
        """Like :meth:`to_dict`, without what a file says by silence."""
        own = specs(type(self))
        silent = {name for name, spec in own.items() if spec.derived is not None or spec.default() is None}
        nested = {name: part.to_diff_dict() for name in own if isinstance(part := getattr(self, name), Settings)}
        return {name: value for name, value in (self.to_dict() | nested).items() if value is not None or name not in silent}

    def to_json_string(self, use_diff: bool = True) -> str:
        """The text of the file, without what it says by silence (``ConfigError``: an attribute that JSON cannot hold)."""
        values = self.to_diff_dict() if use_diff else self.to_dict()
        for name, value in values.items():
            try:
                dump_json(value)
            except (TypeError, ValueError) as error:
                wrong = f"`{name}` of {type(self).__name__} cannot be written as JSON: {str(value)[:80]!r}."
                raise ConfigError(wrong) from error
        return dump_json({name: value for name, value in values.items() if name not in self.unread})

    def to_json_file(self, json_file_path: PathName, use_diff: bool = True) -> None:
        """Write that text to a file."""
        write_text(Path(json_file_path), self.to_json_string(use_diff))

    def save_pretrained(self, directory: PathName, config_file_name: str | None = None) -> None:
        """Write the file into a directory (``ConfigError``: settings that were changed one by one contradict each other)."""
        self.check()
        write_text(safe_join(make_directory(directory), config_file_name or self.file_name), self.to_json_string())

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__} {json.dumps(self.to_diff_dict(), indent=2, sort_keys=True, default=str)}"


dataclass(kw_only=True, init=False, repr=False, eq=False)(Settings)


def _listing(cls: type[Settings]) -> Any:
    """The constructor that a class inherits, with a signature that lists its settings for editors and for code that asks."""
    above: Any = cls.__init__
    made: Any = FunctionType(above.__code__, above.__globals__, above.__name__, above.__defaults__, above.__closure__)
    made.__doc__, made.__qualname__ = above.__doc__, f"{cls.__qualname__}.__init__"
    keyword, (own, *_, rest) = inspect.Parameter.KEYWORD_ONLY, inspect.signature(above).parameters.values()
    defaults = {field.name: getattr(cls, field.name, None) for field in fields(cls)}  # type: ignore[arg-type]
    settings = [inspect.Parameter(name, keyword, default=default) for name, default in defaults.items() if name[0] != "_"]
    made.__signature__ = inspect.Signature([own, *settings, rest])
    return made
