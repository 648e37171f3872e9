"""Models that are made of models, and the configs of such models: a composite states its parts and its forward pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from torch import nn

from transept.checkpoint.names import Names
from transept.config.model import Config
from transept.core.auto import config_class
from transept.core.model import Backbone, Model
from transept.errors import ConfigError


class PartConfig(Config):
    """The config of a part of a composed model; of the whole model's ``config.json`` it reads its ``section``."""

    section: ClassVar[str] = ""

    @classmethod
    def read_values(cls, values: Mapping[str, Any]) -> Self:
        if values.get("model_type") not in (None, cls.model_type):
            values = CompositeConfig.section_of(values, cls.section) or values
        return super().read_values(values)


class CompositeConfig(Config):
    """A config that holds the configs of the model's parts, given as such or as the content of their ``config.json``.

    ``parts`` maps the name of each field to what it is where nothing is given: a config class, which also reads older files
    without a ``model_type``, or settings with one.
    """

    parts: ClassVar[dict[str, type[Config] | dict[str, Any]]] = {}

    @classmethod
    def upgrade(cls, values: dict[str, Any]) -> dict[str, Any]:
        values, older = super().upgrade(values), {f"{name}_dict" for name in cls.parts}
        found = {name: cls._part(name, cls.section_of(values, name)) for name in cls.parts}
        return {name: value for name, value in values.items() if name not in older} | found

    @staticmethod
    def section_of(values: Mapping[str, Any], name: str) -> Any:
        """The content of a part's config; older files have it under ``<name>_dict`` too, and there it counts."""
        value, older = values.get(name), values.get(f"{name}_dict")
        if isinstance(value, dict) and isinstance(older, dict):
            return {**value, **older}
        return value if older is None else older

    @classmethod
    def _part(cls, name: str, value: Any) -> Config:
        default = cls.parts[name]
        kind, given = (default, {}) if isinstance(default, type) else (None, dict(default))
        value = given if value is None else value
        if isinstance(value, Config):
            if kind is not None and not isinstance(value, kind):
                raise ConfigError(f"`{name}` of {cls.__name__} must be a {kind.__name__}, but is a {type(value).__name__}.")
            return value
        if not isinstance(value, dict) or not (kind or isinstance(value.get("model_type"), str)):
            what = "a config" if kind else "a config with a `model_type`"
            raise ConfigError(f"`{name}` of {cls.__name__} must be {what}, but is {str(value)[:80]!r}.")
        return (kind or config_class(value["model_type"])).from_dict(value)


class Composite(Model):
    """A model made of models: ``parts`` are the names of its attributes that hold them, and of its config's fields.

    Where the fields have other names, ``part_config`` says which.
    """

    parts: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def part_class(cls, name: str, config: Config) -> type[Model]:
        """The class of a part with this config."""
        raise NotImplementedError

    @classmethod
    def part_config(cls, name: str, config: Config) -> Config:
        """The config of a part, of the whole model's."""
        found: Config = getattr(config, name)
        return found

    def models(self) -> list[Model]:
        return [getattr(self, name) for name in self.parts]

    @classmethod
    def names_of(cls, config: Config) -> Names:
        names = super().names_of(config)
        for part in cls.parts:
            inner = cls.part_config(part, config)
            names = names | cls.part_class(part, inner).tree_names(inner).below(part)
        return names

    def untie(self) -> None:
        super().untie()
        for model in self.models():
            model.untie()

    @property
    def stacks(self) -> tuple[Backbone, ...]:
        return tuple(stack for model in self.models() for stack in model.stacks)

    def set_attn_implementation(self, name: str) -> None:
        super().set_attn_implementation(name)
        for model in self.models():
            model.set_attn_implementation(name)

    def initialize_module(self, module: nn.Module) -> None:
        """By the scheme of the part that the module belongs to, or by this model's own."""
        owners = (model for model in self.models() if any(module is inner for inner in model.modules()))
        owner: Any = next(owners, super())
        owner.initialize_module(module)
