"""Models that are made of models, and the configs of such models: a model states its parts and its forward pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from torch import nn

from transept.checkpoint.names import Names
from transept.config.model import Config
from transept.core.auto import config_class, resolve
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


def resolved(*suffixes: str) -> Callable[[Config], type[Model]]:
    """The kind of a part that may be of any family: the family's class with one of these suffixes, the first that there is."""
    return lambda config: resolve(config.model_type, *suffixes)


@dataclass(frozen=True)
class Part:
    """A model within a model.

    Args:
        name: the attribute that holds it.
        kind: its class, or a function that gives the class for its config.
        field: the field of the whole model's config that is its config; without one it has the config of the whole.
        place: the name below which the tree of modules has it; ``name`` when absent.
        stored: the name below which files have it; ``place`` when absent.
        loose: whether a file may have it without that name, as a file of this part alone does.
        options: further arguments of its constructor.
    """

    name: str
    kind: type[Model] | Callable[[Config], type[Model]]
    field: str | None = None
    place: str | None = None
    stored: str | None = None
    loose: bool = False
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def config(self, whole: Config) -> Config:
        """Its config, of the whole model's."""
        found: Config = whole if self.field is None else getattr(whole, self.field)
        return found

    def model_class(self, config: Config) -> type[Model]:
        """Its class for its config."""
        return self.kind if isinstance(self.kind, type) else self.kind(config)

    def build(self, whole: Config) -> Model:
        """The model, of the config of the whole one."""
        config = self.config(whole)
        return self.model_class(config)(config, **self.options)

    def names(self, whole: Config) -> Names:
        """Its names, as a part of a model with this config."""
        config, place = self.config(whole), self.name if self.place is None else self.place
        inner = self.model_class(config).tree_names(config)
        found = inner.below(self.name, place if self.stored is None else self.stored, loose=self.loose, tree=place)
        return found | Names(legacy=inner.legacy, ignore=inner.ignore, heads=inner.heads) if self.loose else found


class Composed(Model):
    """A model made of models, which a class states in ``parts``, or in ``parts_of`` where they depend on the class or config.

    The constructor builds them. What is done to the model reaches all of them: ties, initialisation, names, loading, saving,
    attention kernels and gradient checkpointing.
    """

    parts: ClassVar[tuple[Part, ...]]  # without a value: modules of users' own may be called so

    def __init__(self, config: Config, **models: Model | None) -> None:
        """Build the parts, but for those that are given by name."""
        super().__init__(config)
        for part in self.parts_of(config):
            given = models.get(part.name)
            setattr(self, part.name, part.build(config) if given is None else given)
        if config.attn_implementation is not None:
            self.set_attn_implementation(config.attn_implementation)

    @classmethod
    def parts_of(cls, config: Config) -> tuple[Part, ...]:
        """The parts of a model with this config."""
        return cls.parts

    def inner_models(self) -> dict[str, Model]:
        """The models that it is made of, by the names of its attributes."""
        return {part.name: getattr(self, part.name) for part in self.parts_of(self.config)}

    @property
    def token_parts(self) -> tuple[str, ...]:
        """The names of the parts that share the model's vocabulary; the table of the first one is the model's."""
        return ()

    @classmethod
    def own_names_of(cls, config: Config) -> Names:
        """The names of what the model has beside its parts."""
        return super().names_of(config)

    @classmethod
    def part_names_of(cls, config: Config, whole: str = "", tree: str = "", stored: Mapping[str, str] | None = None) -> Names:
        """The names of the parts of a model that is below ``whole``, and in the tree of modules below ``tree``.

        ``stored`` are the names below which files have parts, where they are not those that the parts state.
        """
        names = Names()
        for part in cls.parts_of(config):
            place = part.name if part.place is None else part.place
            file = (stored or {}).get(part.name, place if part.stored is None else part.stored)
            names |= replace(part, name=f"{whole}{part.name}", place=f"{tree}{place}", stored=file).names(config)
        return names

    @classmethod
    def names_of(cls, config: Config) -> Names:
        return cls.own_names_of(config) | cls.part_names_of(config)

    def untie(self) -> None:
        super().untie()
        for model in self.inner_models().values():
            model.untie()

    @property
    def stacks(self) -> tuple[Backbone, ...]:
        return tuple(stack for model in self.inner_models().values() for stack in model.stacks)

    def set_attn_implementation(self, name: str) -> None:
        super().set_attn_implementation(name)
        for model in self.inner_models().values():
            model.set_attn_implementation(name)

    def initialize_module(self, module: nn.Module) -> None:
        """By the scheme of the part that the module belongs to, or by this model's own."""
        models = self.inner_models().values()
        owner = next((model for model in models if any(module is inner for inner in model.modules())), None)
        if owner is None:
            self.initialize_own(module)
        else:
            owner.initialize_module(module)

    def initialize_own(self, module: nn.Module) -> None:
        """Fill the parameters of a module that is in none of the parts."""
        super().initialize_module(module)

    def embedding_table(self) -> nn.Module:
        names = self.token_parts
        first: Model | None = getattr(self, names[0]) if names else None
        return super().embedding_table() if first is None else first.embedding_table()

    def replace_embedding_table(self, table: nn.Module) -> None:
        if not self.token_parts:
            super().replace_embedding_table(table)
        for name in self.token_parts:
            getattr(self, name).replace_embedding_table(table)

    def resize_token_embeddings(self, *args: Any, **options: Any) -> nn.Embedding:
        table = super().resize_token_embeddings(*args, **options)
        for name in self.token_parts:  # whose configs may be their own
            getattr(self, name).config.set_vocab_size(table.num_embeddings)
        return table

    def vocabulary_layers(self) -> list[nn.Module]:
        if not self.token_parts:
            return super().vocabulary_layers()
        layers = [layer for name in self.token_parts for layer in getattr(self, name).vocabulary_layers()]
        output = self.get_output_embeddings()
        layers += [] if output is None else [output]
        return [*dict.fromkeys(layers)]
