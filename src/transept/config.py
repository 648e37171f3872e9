"""Configurations: typed dataclasses that read and write the ecosystem's ``config.json``.

A family's config lists its fields under the names of its ``config.json``. ``aliases`` gives other names for
the same value (``hidden_size`` for GPT-2's ``n_embd``), in both directions. Keys of a file that the class does not
know are kept in ``extra`` and written back; nothing in a file can name code or an implementation to run. No torch here.
"""

from __future__ import annotations

import copy
import json
import math
import os
import re
import types
import typing
from collections.abc import Container
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, dataclass_transform

from transept.errors import ConfigError, nearest
from transept.files import dump_json, load_object, make_directory, write_text
from transept.publish import Pushable
from transept.source import Source, model_name, take_source_options

CONFIG_NAME = "config.json"
# Far above any model that exists; a hostile file must not make the constructor build layers or labels for hours.
MAX_CONFIG_BYTES = 4 * 2**20
MAX_LAYERS = 1024
MAX_LABELS = 10**6
MAX_SIZE = 2**31 - 1


@dataclass_transform(kw_only_default=True)
class Config(Pushable):
    """Base of all configurations; a subclass is a dataclass by being defined.

    Args:
        architectures: class names that the checkpoint was saved from.
        dtype: the weights' type in the checkpoint, such as ``"float32"`` (``torch_dtype`` in older files).
        chunk_size_feed_forward: positions per chunk in the feed-forward layers; 0 for all at once.
        num_labels, id2label, label2id: the classes of a task head; any one of them gives the others.
        problem_type: how a sequence classifier reads its labels; inferred from them when absent.
        attn_implementation: ``"eager"``, ``"sdpa"`` or ``"flex"``; never read from or written to a file.

    Raises:
        ConfigError: an unknown argument, a value of the wrong type or out of range.
    """

    noun = "config"
    model_type: ClassVar[str] = ""
    aliases: ClassVar[dict[str, str]] = {}

    architectures: list[str] | None = None
    dtype: str | None = None
    chunk_size_feed_forward: int = 0
    output_attentions: bool = False
    output_hidden_states: bool = False
    return_dict: bool = True
    use_cache: bool = True
    is_encoder_decoder: bool = False
    tie_word_embeddings: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    num_labels: int = 2
    id2label: dict[int, str] | None = None
    label2id: dict[str, int] | None = None
    problem_type: Literal["regression", "single_label_classification", "multi_label_classification"] | None = None
    attn_implementation: str | None = None

    if typing.TYPE_CHECKING:
        extra: dict[str, Any]  # set in __init__; annotated here only for type checkers, or it would be a field

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclass(kw_only=True, init=False, repr=False, eq=False)(cls)

    def __init__(self, **values: Any) -> None:
        self._set_all(dict(values), known_only=values)
        self.validate()

    def _set_all(self, values: dict[str, Any], known_only: Container[str]) -> None:
        """Set every field from ``values`` or its default; other keys go to ``extra``, or fail if in ``known_only``."""
        self.extra: dict[str, Any] = {}
        for name, field in _fields(type(self)).items():
            setattr(self, name, _default(field))
        values = self.upgrade(values)
        for name in tuple(values):
            if self.aliases.get(name, name) in _fields(type(self)):
                setattr(self, name, values.pop(name))
        for name in values:
            if name in known_only:
                names = [*_fields(type(self)), *self.aliases]
                raise ConfigError(f"{type(self).__name__} has no setting {name!r}.", hint=nearest(name, names))
        self.extra.update(values)

    @classmethod
    def upgrade(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Rewrite the keys of older files as today's; families extend it."""
        if "torch_dtype" in values:
            old = values.pop("torch_dtype")
            values["dtype"] = values.get("dtype") or old
        if values.get("dtype") is not None:  # a torch.dtype reads as "torch.float16"
            values["dtype"] = str(values["dtype"]).removeprefix("torch.")
        if (labels := values.get("id2label")) is not None and isinstance(labels, dict):
            values["id2label"] = {int(k) if _NUMBER.fullmatch(str(k)) else k: v for k, v in labels.items()}
        numbers = values.get("label2id")
        if (
            values.get("id2label") is None
            and isinstance(numbers, dict)
            and len(set(map(str, numbers.values()))) == len(numbers)
        ):
            values["id2label"] = {number: label for label, number in numbers.items()}
        order = ("num_labels", "id2label", "label2id")  # the most specific is set last and wins
        return {**{k: v for k, v in values.items() if k not in order}, **{k: values[k] for k in order if k in values}}

    @classmethod
    def merge(cls, values: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
        """A file's values with the caller's laid over them, before they are upgraded."""
        labels = {"num_labels", "id2label", "label2id"}  # one stands for all three
        dropped = labels if labels & overrides.keys() else set()
        return {k: v for k, v in values.items() if k not in dropped} | overrides

    def validate(self) -> None:
        """Check ranges that hold for every family; families extend it with their own."""
        for name in _types(type(self)):
            value = getattr(self, name)
            if isinstance(value, float) and "dropout" in name and not 0 <= value <= 1:
                self.fail(name, "must be between 0 and 1")
            if isinstance(value, float) and "initializer" in name and value < 0:
                self.fail(name, "must not be negative")
            if isinstance(value, list) and len(value) > MAX_LAYERS:
                self.fail(name, f"must hold at most {MAX_LAYERS} values")
            if not isinstance(value, int) or isinstance(value, bool) or name.endswith(("_id", "_index", "_len")):
                continue
            top = MAX_LAYERS if name.endswith(("layer", "layers")) else MAX_SIZE
            if not 0 <= value <= top:
                self.fail(name, f"must be between 0 and {top}")

    def with_settings(self, **settings: Any) -> Self:
        """A checked copy in which some settings are replaced (``ConfigError`` for those that it does not have)."""
        twin, names = copy.deepcopy(self), [*_fields(type(self)), *self.aliases]
        for name, value in settings.items():
            if name not in names:
                raise ConfigError(f"{type(self).__name__} has no setting {name!r}.", hint=nearest(name, names))
            setattr(twin, name, value)
        twin.validate()
        return twin

    def fail(self, name: str, rule: str) -> typing.NoReturn:
        """Raise the error for one setting: ``rule`` completes the sentence that begins with its name."""
        raise ConfigError(f"`{name}` of {type(self).__name__} {rule}, but is {repr(getattr(self, name))[:80]}.")

    def check_multiple(self, name: str, divisor: str) -> None:
        """Require that one setting is a positive multiple of another."""
        value, by = getattr(self, name), getattr(self, divisor)
        if by < 1 or value < 1 or value % by:
            self.fail(name, f"must be a positive multiple of `{divisor}` ({by})")

    def check_padding(self) -> None:
        """Require that the padding id, where there is one, is a token."""
        pad, vocab = self.pad_token_id, getattr(self, "vocab_size", 0)
        if pad is not None and not -vocab <= pad < vocab:
            self.fail("pad_token_id", f"must be an id of the vocabulary, below `vocab_size` ({vocab})")

    def __setattr__(self, name: str, value: Any) -> None:
        name = self.aliases.get(name, name)
        kind = _types(type(self)).get(name)
        if kind is not None:
            value = _checked(value, kind, name, type(self).__name__)
        if name == "num_labels" and not 0 <= value <= MAX_LABELS:
            raise ConfigError(f"`num_labels` of {type(self).__name__} must be between 0 and {MAX_LABELS}, but is {value}.")
        if value is None and name in ("id2label", "label2id") and self.__dict__.get(name):
            return  # `num_labels` has made them
        object.__setattr__(self, name, value)
        if value is None:
            return
        if name == "num_labels" and len(self.__dict__.get("id2label") or ()) != value:
            self.__dict__["id2label"] = {i: f"LABEL_{i}" for i in range(value)}
            self.__dict__["label2id"] = {label: i for i, label in self.__dict__["id2label"].items()}
        elif name == "id2label":
            self.__dict__["num_labels"] = len(value)
            self.__dict__["label2id"] = {label: i for i, label in value.items()}

    def __getattr__(self, name: str) -> Any:
        # Only called where normal look-up failed: an alias, a key kept from the file, or a mistake.
        if name.startswith("__") or "extra" not in self.__dict__:
            raise AttributeError(name)
        if name in self.aliases:
            return getattr(self, self.aliases[name])
        if name in self.extra:
            return self.extra[name]
        raise AttributeError(f"{type(self).__name__} has no setting {name!r}")

    @classmethod
    def from_dict(cls, values: dict[str, Any], *, path: str | os.PathLike[str] | None = None, **overrides: Any) -> Self:
        """Build from the content of a ``config.json``; ``overrides`` are settings that must be known.

        Raises:
            ConfigError: naming the file, the setting and its value.
        """
        model_type = values.get("model_type", cls.model_type)
        if cls.model_type and model_type != cls.model_type:
            raise ConfigError(
                f"holds a model of type {model_type!r}, but {cls.__name__} is for {cls.model_type!r}.",
                path=path,
                hint="Load it with AutoConfig, AutoModel or the class of its own family.",
            )
        known = {k: v for k, v in values.items() if (k[:1] != "_" or k in _fields(cls)) and k not in _NEVER_FROM_FILE}
        known.pop("model_type", None)
        config = cls.__new__(cls)
        try:
            config._set_all(cls.merge(known, overrides), known_only=overrides)
            config.validate()
        except ConfigError as error:
            error.path = error.path or (None if path is None else str(path))
            raise
        return config

    @classmethod
    def from_pretrained(
        cls, name_or_path: str | os.PathLike[str], *, overrides: dict[str, Any] | None = None, **options: Any
    ) -> Self:
        """Read ``config.json`` of a directory, a repository, or the file itself.

        Args:
            name_or_path: directory, file or repository id.
            overrides: settings that replace the file's; they may also be given as keyword arguments.
            options: where to look (see :class:`transept.source.Source`) and overrides.
        """
        hub = take_source_options(options)
        values, path = cls.read(name_or_path, hub)
        return cls.from_dict(values, path=path, **(overrides or {}), **options)

    @staticmethod
    def read(name_or_path: str | os.PathLike[str], hub: dict[str, Any]) -> tuple[dict[str, Any], Path]:
        """The content of ``config.json`` of a directory, a repository, or the file itself, and where it stands."""
        is_file = os.path.isfile(model_name(name_or_path))
        path = Path(name_or_path) if is_file else Source(model_name(name_or_path), **hub).need(CONFIG_NAME)
        return load_object(path, finite=False, max_bytes=MAX_CONFIG_BYTES), path

    def to_dict(self) -> dict[str, Any]:
        """All settings as JSON types, under the names of ``config.json``, with the kept unknown keys."""
        values = ({"model_type": self.model_type} if self.model_type else {}) | copy.deepcopy(self.extra)
        for name, field in _fields(type(self)).items():
            value = getattr(self, name)
            if name not in _NEVER_TO_FILE and (value is not None or _default(field) is not None):
                values[name] = value.to_dict() if isinstance(value, Config) else copy.deepcopy(value)
        if self.id2label == {i: f"LABEL_{i}" for i in range(_default(_fields(type(self))["num_labels"]))}:
            del values["id2label"], values["label2id"]  # what a file says by silence
        elif self.id2label is not None:
            values["id2label"] = {str(i): label for i, label in self.id2label.items()}
        return values

    def to_json_string(self) -> str:
        """The text of ``config.json``."""
        return dump_json(self.to_dict())

    def save_pretrained(self, directory: str | os.PathLike[str]) -> None:
        """Write ``config.json`` into a directory, which is made where needed."""
        write_text(make_directory(directory) / CONFIG_NAME, self.to_json_string())

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__} {json.dumps(self.to_dict(), indent=2, sort_keys=True, default=str)}"


class RotaryConfig(Config):
    """A config with rotary position embeddings.

    ``rope_parameters`` holds ``rope_type``, ``rope_theta`` and what the type needs; files of the older layout
    (``rope_theta`` beside ``rope_scaling``) are read into it. A family with several kinds of layers nests one such
    mapping per kind.
    """

    default_theta: ClassVar[float] = 10000.0

    rope_parameters: dict[str, Any] | None = None

    @classmethod
    def upgrade(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Gather ``rope_theta``, ``rope_scaling`` and ``partial_rotary_factor`` into ``rope_parameters``."""
        values = super().upgrade(values)
        rope = cls._scaling(values)
        values.pop("rope_scaling", None)
        theta = values.pop("rope_theta", None)
        if any(isinstance(value, dict) for value in rope.values()):
            return values | {"rope_parameters": rope}
        rope.setdefault("rope_type", rope.get("type", "default"))
        rope.setdefault("rope_theta", cls.default_theta if theta is None else theta)
        if (part := values.pop("partial_rotary_factor", None)) is not None:
            rope.setdefault("partial_rotary_factor", part)
        return values | {"rope_parameters": rope}

    @classmethod
    def _scaling(cls, values: dict[str, Any]) -> dict[str, Any]:
        """A copy of what a file says under the older name or under today's."""
        for key in ("rope_scaling", "rope_parameters"):
            rope = values.get(key) or {}
            if not isinstance(rope, dict):
                raise ConfigError(f"`{key}` of {cls.__name__} must be a mapping, but is {str(rope)[:80]!r}.")
            if rope:
                return dict(rope)
        return {}

    @classmethod
    def merge(cls, values: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
        """Let an overriding theta, share or scaling replace the file's; what is not overridden stays."""
        scaling, names = cls._scaling(values), ("rope_parameters", "rope_scaling")
        replaced = overrides.keys() & {"rope_theta", "partial_rotary_factor"}
        if any(name in overrides for name in names):
            values = {"rope_theta": scaling.get("rope_theta")} | {k: v for k, v in values.items() if k not in names}
        elif replaced and scaling:
            kept = {k: v for k, v in scaling.items() if k not in replaced}
            values = {k: v for k, v in values.items() if k not in names} | {"rope_parameters": kept}
        return super().merge(values, overrides)

    def rope(self, kind: str | None = None) -> dict[str, Any]:
        """The parameters of the rotary layer, or of that for one kind of layers, and the lengths it may depend on."""
        rope = (self.rope_parameters or {}) if kind is None else (self.rope_parameters or {}).get(kind)
        if not isinstance(rope, dict):
            raise ConfigError(f"`rope_parameters` of {type(self).__name__} needs a mapping for {kind!r}.")
        most: int = self.max_position_embeddings
        # Some families keep the original length beside the parameters, and there it counts.
        original = getattr(self, "original_max_position_embeddings", None) or rope.get("original_max_position_embeddings")
        return {**rope, "max_position_embeddings": most, "original_max_position_embeddings": original or most}

    @property
    def rope_theta(self) -> float:
        """The base of the rotary frequencies, for families with one kind of layer."""
        return float((self.rope_parameters or {})["rope_theta"])


_NUMBER = re.compile(r"-?[0-9]{1,9}")
# Runtime choices and code references: a file can never set them.
_NEVER_FROM_FILE = frozenset({"attn_implementation", "auto_map", "trust_remote_code", "custom_pipelines"})
_NEVER_TO_FILE = frozenset({"attn_implementation", "num_labels"})

dataclass(kw_only=True, init=False, repr=False, eq=False)(Config)


def _default(field: Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


_FIELDS: dict[type[Any], dict[str, Field[Any]]] = {}
_TYPES: dict[type[Any], dict[str, Any]] = {}


def _fields(cls: type[Any]) -> dict[str, Field[Any]]:
    if cls not in _FIELDS:
        _FIELDS[cls] = {field.name: field for field in fields(cls)}
    return _FIELDS[cls]


def _types(cls: type[Any]) -> dict[str, Any]:
    if cls not in _TYPES:
        hints = typing.get_type_hints(cls)
        _TYPES[cls] = {name: hints[name] for name in _fields(cls)}
    return _TYPES[cls]


def _checked(value: Any, kind: Any, name: str, owner: str) -> Any:
    """``value`` if it is of ``kind``, with JSON's integers accepted where a float is meant."""
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, tuple):  # JSON has lists only, and what is read back must be equal
        value = list(value)
    if not _is(value, kind):
        expected = getattr(kind, "__name__", str(kind)) if isinstance(kind, type) else str(kind).replace("typing.", "")
        raise ConfigError(f"`{name}` of {owner} must be {expected}, but is {str(value)[:80]!r}.")
    return value


def _is(value: Any, kind: Any) -> bool:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return True
    if origin in (types.UnionType, typing.Union):
        return any(_is(value, arg) for arg in args)
    if origin is Literal:
        return value in args
    if origin is dict:
        return isinstance(value, dict) and all(_is(k, args[0]) and _is(v, args[1]) for k, v in value.items())
    if origin is list:
        return isinstance(value, list | tuple) and all(_is(item, args[0]) for item in value)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)
