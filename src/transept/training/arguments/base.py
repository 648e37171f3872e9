"""What settings of a run have in common: every value is checked when it is set, older names are known, and JSON."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from functools import cache
from inspect import Signature, signature
from typing import Any, ClassVar, NoReturn, Self, get_args

from transept.errors import ConfigError, UnsupportedError, nearest
from transept.fields import HIDDEN, Spec, checked, plain, specs, without_secrets
from transept.files import PathName, dump_json, load_object, parse_json
from transept.training.arguments.limits import Limit

# Older names of fields -> today's.
RENAMED = {
    "evaluation_strategy": "eval_strategy",
    "no_cuda": "use_cpu",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "push_to_hub_model_id": "hub_model_id",
    "push_to_hub_token": "hub_token",
}


class _Renaming(type):
    """Lets a class be called with older names of its fields; an unknown one is an error that names those like it."""

    def __call__(cls, *args: Any, **values: Any) -> Any:
        values = _today(values)
        known = specs(cls)
        for name in values:
            if name not in known:
                raise ConfigError(f"{cls.__name__} has no setting {name!r}.", hint=nearest(name, known))
        return super().__call__(*args, **values)

    @property
    def __signature__(cls) -> Signature:
        return signature(cls.__init__).replace(parameters=[*signature(cls.__init__).parameters.values()][1:])  # type: ignore[misc]


def _today(values: dict[str, Any]) -> dict[str, Any]:
    """The same settings under today's names."""
    settings = {RENAMED.get(name, name): value for name, value in values.items()}
    share = settings.pop("warmup_ratio", None)
    if share and not settings.get("warmup_steps"):
        settings["warmup_steps"] = share
    if settings.pop("group_by_length", False):
        settings["train_sampling_strategy"] = "group_by_length"
    if not settings.pop("save_safetensors", True):
        raise UnsupportedError("`save_safetensors=False` cannot be honoured: weights are saved as safetensors only.")
    settings.pop("overwrite_output_dir", None)  # what is not resumed is trained anew, and checkpoints are replaced one by one
    return settings


class ArgumentsBase(metaclass=_Renaming):
    """The base of dataclasses of settings.

    ``json_fields`` may be given as JSON texts, and ``limits`` are the fields that cannot be honoured, or not with every value.
    """

    json_fields: ClassVar[frozenset[str]] = frozenset()
    limits: ClassVar[Mapping[str, Limit]] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        name = RENAMED.get(name, name)
        if (spec := _own(type(self)).get(name)) is not None:
            value = self._accept(name, value, spec)
        object.__setattr__(self, name, value)
        if spec is not None:
            for rule in spec.rules:
                rule.check(self, name)

    def __getattr__(self, name: str) -> Any:
        if name in RENAMED:
            return getattr(self, RENAMED[name])
        raise AttributeError(f"{type(self).__name__} has no setting {name!r}")

    def _accept(self, name: str, value: Any, spec: Spec) -> Any:
        """The value as it is kept: of the field's type, and one that can be honoured."""
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if name in self.json_fields and isinstance(value, str):
            value = parse_json(value)
        if value is not None and (names := _enum(spec.kind)) is not None:
            value = names(value)
        value = checked(value, spec.kind, name, type(self).__name__)
        if name in self.limits and value not in (spec.default(), None, [], {}):
            limit = self.limits[name]
            if limit.applies(value):
                raise UnsupportedError(f"`{name}={str(value)[:80]!r}` cannot be honoured: {limit.reason}", hint=limit.remedy)
        return value

    def fail(self, name: str, rule: str, remedy: str | None = None) -> NoReturn:
        """Raise the error for one setting: ``rule`` completes the sentence that begins with its name."""
        value = getattr(self, name)
        shown = repr(value.value if isinstance(value, Enum) else value)[:80]
        raise ConfigError(f"`{name}` of {type(self).__name__} {rule}, but is {shown}.", hint=remedy)

    def to_dict(self) -> dict[str, Any]:
        """All settings as JSON types; secrets are left out."""
        settings = {}
        for setting in fields(self):  # type: ignore[arg-type]  # subclasses are dataclasses
            if setting.init:
                value = getattr(self, setting.name)
                settings[setting.name] = value.value if isinstance(value, Enum) else plain(value)
        shown = without_secrets(settings)
        return {name: f"<{name.upper()}>" if value == HIDDEN else value for name, value in shown.items()}  # as the reference

    def to_json_string(self) -> str:
        return dump_json(self.to_dict())

    def to_sanitized_dict(self) -> dict[str, Any]:
        """Settings and batch sizes as numbers, texts and booleans."""
        settings = self.to_dict() | {"train_batch_size": self.train_batch_size, "eval_batch_size": self.eval_batch_size}
        return {name: value if isinstance(value, bool | int | float | str) else str(value) for name, value in settings.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Settings as :meth:`to_dict` gives them."""
        return cls(**{name: value for name, value in values.items() if value != f"<{name.upper()}>"})

    @classmethod
    def from_json_file(cls, json_file: PathName) -> Self:
        """Settings of a file (``FileError``, ``FormatError``, ``ConfigError``)."""
        try:
            return cls.from_dict(load_object(json_file))
        except ConfigError as error:
            error.path = str(json_file)
            raise

    def __repr__(self) -> str:
        own = self.to_dict()
        return f"{type(self).__name__}(\n" + "".join(f"{name}={own[name]!r},\n" for name in sorted(own)) + ")"

    __str__ = __repr__


@cache
def _enum(kind: Any) -> type[Enum] | None:
    """The names that a field holds one of, where its type is an ``Enum`` or a text."""
    return next((part for part in get_args(kind) if isinstance(part, type) and issubclass(part, Enum)), None)


@cache
def _own(cls: type[Any]) -> dict[str, Spec]:
    """The fields that the library defines; those that users add hold anything."""
    return specs(next(base for base in cls.__mro__ if base.__module__.startswith(f"{__package__}.")))
