"""What settings of a run have in common: every value is checked when it is set, older names are known, and JSON."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from functools import cache
from inspect import Signature, signature
from typing import Any, ClassVar, NoReturn, Self

from transept.errors import ConfigError, UnsupportedError, nearest
from transept.fields import Spec, checked, plain, specs
from transept.files import PathName, dump_json, load_object, parse_json
from transept.training.options.limits import Limit

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
    found = {RENAMED.get(name, name): value for name, value in values.items()}
    share = found.pop("warmup_ratio", None)
    if share and not found.get("warmup_steps"):
        found["warmup_steps"] = share
    if found.pop("group_by_length", False):
        found["train_sampling_strategy"] = "group_by_length"
    if not found.pop("save_safetensors", True):
        raise UnsupportedError("`save_safetensors=False` cannot be honoured: weights are saved as safetensors only.")
    found.pop("overwrite_output_dir", None)  # what is not resumed is trained anew, and checkpoints are replaced one by one
    return found


class RunSettings(metaclass=_Renaming):
    """The base of settings, which are dataclasses.

    ``enums`` are the kinds of fields that hold one of a few names, ``json_fields`` may be given as JSON texts, and ``limits``
    are the fields that cannot be honoured, or not with every value.
    """

    enums: ClassVar[Mapping[str, type[Enum]]] = {}
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
        if name in self.enums and value is not None:
            value = self.enums[name](value)
        value = checked(value, spec.kind, name, type(self).__name__)
        if name in self.limits and value not in (spec.default(), None, [], {}):
            limit = self.limits[name]
            if limit.applies(value):
                raise UnsupportedError(f"`{name}={str(value)[:80]!r}` cannot be honoured: {limit.reason}", hint=limit.remedy)
        return value

    def fail(self, name: str, rule: str, remedy: str | None = None) -> NoReturn:
        """Raise the error for one setting: ``rule`` completes the sentence that begins with its name."""
        found = getattr(self, name)
        value = repr(found.value if isinstance(found, Enum) else found)[:80]
        raise ConfigError(f"`{name}` of {type(self).__name__} {rule}, but is {value}.", hint=remedy)

    def to_dict(self) -> dict[str, Any]:
        """All settings as JSON types; tokens are left out."""
        found = {each.name: getattr(self, each.name) for each in fields(self) if each.init}  # type: ignore[arg-type]  # subclasses are
        kept = {name: value.value if isinstance(value, Enum) else plain(value) for name, value in found.items()}
        return {name: f"<{name.upper()}>" if name.endswith("_token") and value else value for name, value in kept.items()}

    def to_json_string(self) -> str:
        return dump_json(self.to_dict())

    def to_sanitized_dict(self) -> dict[str, Any]:
        """Settings and batch sizes as numbers, texts and booleans."""
        found = self.to_dict() | {"train_batch_size": self.train_batch_size, "eval_batch_size": self.eval_batch_size}
        return {name: value if isinstance(value, bool | int | float | str) else str(value) for name, value in found.items()}

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
def _own(cls: type[Any]) -> dict[str, Spec]:
    """The fields that the library defines; those that users add hold anything."""
    return specs(next(base for base in cls.__mro__ if base.__module__.startswith(f"{__package__}.")))
