"""From a model type and a task to a class: one import by name.

A family's file is named after its ``model_type`` (with ``-`` written ``_``), and its classes after their tasks, so there is
nothing to register: ``resolve("bert", "ForMaskedLM")`` is ``transept.models.bert.BertForMaskedLM``.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from transept.backbone import Model, TaskModel
from transept.config import Config
from transept.errors import UnsupportedError, nearest

# By name, since families stand above: a model that is made of models asks here.
_FAMILIES = "transept.models"


@cache
def model_types() -> tuple[str, ...]:
    """The model types that there are files for."""
    return tuple(sorted(info.name for info in pkgutil.iter_modules(importlib.import_module(_FAMILIES).__path__)))


def family(model_type: str) -> ModuleType:
    """The module of a family.

    Raises:
        UnsupportedError: there is none of that name, with the nearest.
    """
    name = model_type.replace("-", "_")
    if name not in model_types():
        raise UnsupportedError(f"there is no model type {model_type!r}.", hint=nearest(name, model_types()))
    return importlib.import_module(f"{_FAMILIES}.{name}")


def config_class(model_type: str) -> type[Config]:
    """The configuration class of a family."""
    return next(cls.config_class for cls in models_of(family(model_type)) if hasattr(cls, "config_class"))


def read_config(values: dict[str, Any], path: Path) -> type[Config]:
    """The configuration class that a ``config.json`` is for.

    Raises:
        UnsupportedError: no model type, or one that is not ours; says so where the repository would run code.
    """
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


def resolve(model_type: str, *tasks: str) -> type[Model]:
    """The class of a family for the first of some tasks that it has.

    Args:
        model_type: as in ``config.json``.
        tasks: endings of class names, such as ``ForMaskedLM``; ``Model`` is the model without one.

    Raises:
        UnsupportedError: the family has none of them; says what it has.
    """
    found = models_of(family(model_type))
    for task in tasks:
        for cls in found:
            if cls.__name__.endswith(task) and (task != "Model" or not issubclass(cls, TaskModel)):
                return cls
    names = ", ".join(cls.__name__ for cls in found)
    raise UnsupportedError(f"{model_type!r} has no model {tasks[0]!r}.", hint=f"It has: {names}.")


def models_of(module: ModuleType) -> list[type[Model]]:
    """The models that a family's file defines, in its order."""
    classes = [value for name, value in vars(module).items() if isinstance(value, type) and not name.startswith("_")]
    return [cls for cls in classes if issubclass(cls, Model) and cls.__module__ == module.__name__]
