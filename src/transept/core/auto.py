"""From a model type and a task to a class, and the classes that choose a family from ``config.json``.

A family's file is named after its ``model_type`` and its classes after their tasks: ``resolve("bert", "ForMaskedLM")`` is
``transept.models.bert.BertForMaskedLM``. Code that a repository may carry (``auto_map``) is never run.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import types
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from transept.config.model import Config
from transept.core.loading import check_config
from transept.core.model import Model
from transept.core.task_table import TASKS, Task
from transept.errors import InputTypeError, UnsupportedError, nearest, refuse
from transept.storage.gguf import GGUF, gguf_of
from transept.storage.source import Source, model_name, take_source_options

# By name, since families stand above: a model that is made of models asks here.
_FAMILIES = "transept.models"
_WRITES = ("ForCausalLM", "ForConditionalGeneration")
# Classes of users' own, by model type.
_REGISTERED: dict[str, type[Config]] = {}


@cache
def model_types() -> tuple[str, ...]:
    """The model types that there are, with ``-`` written ``_``: those of files, and those that are one by another name."""
    models = importlib.import_module(_FAMILIES)
    names = {*(info.name for info in pkgutil.iter_modules(models.__path__)), *models.ALIASES}
    return tuple(sorted({name.replace("-", "_") for name in names}))


def family(model_type: str) -> types.ModuleType:
    """The module with the classes of a model type; where there is none, an ``UnsupportedError`` with the nearest name.

    A network that a composed model is made of has a type that begins with its family's, perhaps written otherwise:
    ``clip_vision_model``, ``t5_gemma_module``.
    """
    models = importlib.import_module(_FAMILIES)
    name = model_type.replace("-", "_")
    if name not in model_types():
        owner = max((each for each in model_types() if _letters(name).startswith(_letters(each))), key=len, default=None)
        module = None if owner is None else family(owner)
        if module is None or not any(same_type(cls.config_class.model_type, name) for cls in models_of(module)):
            raise UnsupportedError(f"there is no model type {model_type!r}.", hint=nearest(name, model_types()))
        return module
    alias = next((each for each in (name, name.replace("_", "-")) if each in models.ALIASES), None)
    module = importlib.import_module(f"{_FAMILIES}.{name if alias is None else models.ALIASES[alias].family}")
    return module if alias is None else models.renamed(alias, module)


def config_class(model_type: str) -> type[Config]:
    """The configuration class of a family, or the one that was registered for a model type."""
    if model_type in _REGISTERED:
        return _REGISTERED[model_type]
    found = [cls.config_class for cls in models_of(family(model_type))]
    return next((each for each in found if same_type(each.model_type, model_type)), found[0])


def same_type(one: str, other: str) -> bool:
    """Whether two model types are one, however they are written."""
    return one.replace("-", "_") == other.replace("-", "_")


def read_config(values: dict[str, Any], path: Path) -> type[Config]:
    """The configuration class that a ``config.json`` is for, whose ``model_type`` must be one of ours."""
    model_type = values.get("model_type")
    try:
        if not isinstance(model_type, str):
            raise UnsupportedError("names no `model_type`.", hint="Load it with the class of its family.")
        return config_class(model_type)
    except UnsupportedError as error:
        error.path = str(path)
        if "auto_map" in values:
            error.hint = f"Its repository brings code for it, which is never run. {error.hint or ''}".strip()
        raise


def gguf_config_class(gguf: GGUF) -> type[Config]:
    """The configuration class for the architecture of a GGUF file (``UnsupportedError``: there is no such family)."""
    name = gguf.architecture
    known = {_letters(model_type): model_type for model_type in model_types()}
    found = importlib.import_module(_FAMILIES).GGUF_TYPES.get(name, lambda _: known.get(_letters(name)))(gguf)
    if found not in model_types():
        raise UnsupportedError(f"is of the architecture {name!r:.80}, which is not here.", path=str(gguf.paths[0]))
    return config_class(found)


def gguf_architecture(config: Config, names: Iterable[str]) -> str:
    """What GGUF files call the family of a config, of all ``names`` (``UnsupportedError``: none is its)."""
    models = importlib.import_module(_FAMILIES)
    known = {kind(GGUF((), {}, {})): name for name, kind in models.GGUF_TYPES.items()} | models.GGUF_NAMES
    like = {_letters(name): name for name in names}
    found = known.get(config.model_type) or like.get(_letters(config.model_type))
    if found is None:
        raise UnsupportedError(f"GGUF files have no architecture for {config.model_type!r}.")
    return found


def _letters(name: str) -> str:
    """A model type or an architecture without what some write between its words."""
    return name.replace("-", "").replace("_", "")


def saved_class(config: Config) -> type[Model] | None:
    """The class that a checkpoint was saved from; ``None`` where its config names none of ours."""
    kind = getattr(family(config.model_type), (config.architectures or [""])[0], None)
    return kind if isinstance(kind, type) and issubclass(kind, Model) else None


def resolve(model_type: str, *tasks: str) -> type[Model]:
    """The class of a family for the first of some tasks that it has, else an ``UnsupportedError``.

    Tasks are endings of class names, such as ``ForMaskedLM``; ``Model`` is the model without one.
    """
    found = models_of(family(model_type))
    # Where a family's parts are models of their own types, those come after the family's own.
    found.sort(key=lambda cls: not same_type(getattr(cls, "config_class", Config).model_type, model_type))
    for task in tasks:
        for cls in found:
            if cls.__name__.endswith(task) and (task != "Model" or not hasattr(cls, "backbone_class")):
                return cls
    names = ", ".join(cls.__name__ for cls in found)
    raise UnsupportedError(f"{model_type!r} has no model {tasks[0]!r}.", hint=f"It has: {names}.")


def models_of(module: types.ModuleType) -> list[type[Model]]:
    """The models that a family's file or folder defines, in their order; heads without a network have no config."""
    classes = [value for name, value in vars(module).items() if isinstance(value, type) and not name.startswith("_")]
    models = [cls for cls in classes if issubclass(cls, Model) and hasattr(cls, "config_class")]
    return [cls for cls in models if f"{cls.__module__}.".startswith(f"{module.__name__}.")]


def _check_class(given: Any, base: type) -> None:
    what = f"a class derived from PreTrained{base.__name__} is registered, not {given!r:.80}."
    refuse(not (isinstance(given, type) and issubclass(given, base)), what, kind=InputTypeError)


class AutoConfig:
    """Chooses the configuration class by ``model_type``."""

    @staticmethod
    def for_model(model_type: str, **settings: Any) -> Config:
        """The configuration of a family, with its defaults and the given settings."""
        return config_class(model_type)(**settings)

    @staticmethod
    def register(model_type: str, config: Any, exist_ok: bool = False) -> None:
        """Let a class of one's own be chosen for a model type.

        Where its ``model_type`` is another, or the type is taken (unless ``exist_ok``), that is an ``InputError``.
        """
        _check_class(config, Config)
        own = config.model_type
        refuse(own != model_type, f"the `model_type` of {config.__name__} is {own!r}, not {model_type!r}.")
        taken = model_type in _REGISTERED or model_type.replace("-", "_") in model_types()
        refuse(taken and not exist_ok, f"the model type {model_type!r} is taken.", "Pass exist_ok=True to replace it.")
        _REGISTERED[model_type] = config

    @staticmethod
    def from_pretrained(pretrained_model_name_or_path: str | os.PathLike[str], **options: Any) -> Config:
        """Read the ``config.json`` of a directory, a repository, or the file itself.

        ``options`` say where to look (see :class:`transept.storage.source.Source`), and are settings that replace the file's. A
        model type that is not one of ours is an ``UnsupportedError``.
        """
        hub = take_source_options(options)
        if (gguf := gguf_of(Source(model_name(pretrained_model_name_or_path), **hub))) is not None:
            of_file: Any = gguf_config_class(gguf)
            tasks = ("EncoderModel",) if gguf.architecture.endswith("encoder") else _WRITES
            task = resolve(of_file.model_type, *tasks, "Model").__name__
            loaded: Config = of_file.from_pretrained(
                pretrained_model_name_or_path, **hub, **({"architectures": [task]} | options)
            )
            return loaded
        values, path = Config.read(pretrained_model_name_or_path, hub)
        read: Any = read_config(values, path).from_dict(values, path=path, **options)
        config = read[0] if isinstance(read, tuple) else read  # with return_unused_kwargs
        config.name_or_path = pretrained_model_name_or_path
        return read  # type: ignore[no-any-return]


class _AutoModel:
    """Base of the classes that choose a model class: ``tasks`` are endings of class names, the first that fits wins.

    Of them those in ``named`` come before, where the ``architectures`` of a config name such a class. With ``has`` the class
    must have a method of that name.
    """

    tasks: ClassVar[tuple[str, ...]]
    named: ClassVar[tuple[str, ...]]
    has: ClassVar[str]
    registered: ClassVar[dict[type[Config], type[Model]]]

    def __init__(self) -> None:
        name = type(self).__name__
        raise InputTypeError(f"{name} chooses a class and has no instances.", hint=f"Use {name}.from_pretrained(...).")

    @classmethod
    def register(cls, config_class: Any, model_class: Any, exist_ok: bool = False) -> None:
        """Let a class of one's own be chosen for the configurations of a class.

        Where there is one for them, that is an ``InputError`` unless ``exist_ok``.
        """
        _check_class(config_class, Config)
        _check_class(model_class, Model)
        what = f"{cls.__name__} has a model for {config_class.__name__}."
        refuse(config_class in cls.registered and not exist_ok, what, "Pass exist_ok=True to replace it.")
        cls.registered[config_class] = model_class

    @classmethod
    def model_class(cls, config: Config) -> type[Model]:
        """The class for a configuration."""
        named = [task for task in cls.named if any(name.endswith(task) for name in config.architectures or ())]
        found = cls.registered.get(type(config)) or resolve(config.model_type, *named, *cls.tasks)
        if not hasattr(found, cls.has or "forward"):
            raise UnsupportedError(f"{found.__name__} has no {cls.has}(), which {cls.__name__} is for.")
        return found

    @classmethod
    def from_config(cls, config: Config, **overrides: Any) -> Model:
        """A model with new weights."""
        return cls.model_class(check_config(config)).from_config(config, **overrides)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike[str] | None, **options: Any) -> Any:
        """Choose the class by the config, build it and fill it; see ``Pretrained.from_pretrained`` for the arguments."""
        config = options.pop("config", None)
        if config is None or isinstance(config, str | os.PathLike):
            where: Any = pretrained_model_name_or_path if config is None else config
            config = AutoConfig.from_pretrained(where, **take_source_options(dict(options)))
        return cls.model_class(check_config(config)).from_pretrained(pretrained_model_name_or_path, config=config, **options)


def _auto(task: Task) -> type[_AutoModel]:
    body = {"tasks": task.heads, "named": task.named, "has": task.has, "registered": {}, "__module__": __name__}
    return type(task.auto, (_AutoModel,), body)


# The classes of the table of tasks are names of this module.
CHOOSERS = {task.auto: _auto(task) for task in TASKS if task.auto}
globals().update(CHOOSERS)
if TYPE_CHECKING:

    def __getattr__(name: str) -> type[_AutoModel]: ...
