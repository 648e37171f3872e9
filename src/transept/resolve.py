"""From a model type and a task to a class: one import by name.

A family's file is named after its ``model_type`` (with ``-`` written ``_``), and its classes after their tasks, so there is
nothing to register: ``resolve("bert", "ForMaskedLM")`` is ``transept.models.bert.BertForMaskedLM``.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from types import ModuleType

from transept import models
from transept.backbone import Backbone, Model
from transept.errors import UnsupportedError, nearest


@cache
def model_types() -> tuple[str, ...]:
    """The model types that there are files for."""
    return tuple(sorted(info.name for info in pkgutil.iter_modules(models.__path__)))


def family(model_type: str) -> ModuleType:
    """The module of a family.

    Raises:
        UnsupportedError: there is none of that name, with the nearest.
    """
    name = model_type.replace("-", "_")
    if name not in model_types():
        raise UnsupportedError(f"there is no model type {model_type!r}.", hint=nearest(name, model_types()))
    return importlib.import_module(f"{models.__name__}.{name}")


def backbones(module: ModuleType) -> list[type[Backbone]]:
    """The backbones that a family's file defines."""
    return [cls for cls in models_of(module) if issubclass(cls, Backbone)]


def resolve(model_type: str, *tasks: str) -> type[Model]:
    """The class of a family for the first of some tasks that it has.

    Args:
        model_type: as in ``config.json``.
        tasks: endings of class names, such as ``ForMaskedLM``; ``Model`` is the backbone.

    Raises:
        UnsupportedError: the family has none of them; says what it has.
    """
    found = models_of(family(model_type))
    for task in tasks:
        for cls in found:
            if cls.__name__.endswith(task) and (task != "Model" or issubclass(cls, Backbone)):
                return cls
    names = ", ".join(cls.__name__ for cls in found)
    raise UnsupportedError(f"{model_type!r} has no model {tasks[0]!r}.", hint=f"It has: {names}.")


def models_of(module: ModuleType) -> list[type[Model]]:
    """The models that a family's file defines, in its order."""
    classes = [value for name, value in vars(module).items() if isinstance(value, type) and not name.startswith("_")]
    return [cls for cls in classes if issubclass(cls, Model) and cls.__module__ == module.__name__]
