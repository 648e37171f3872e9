"""What the ``Auto`` classes of preprocessing share: a name in a model's files, and the class that it stands for."""

from __future__ import annotations

import importlib
import os
from typing import Any, ClassVar, Generic, TypeVar

from transept.errors import InputTypeError, UnsupportedError, nearest
from transept.files import load_object
from transept.preprocess.settings import Preprocessor, need_section, split_options
from transept.source import Source, model_argument, model_name

Kind = TypeVar("Kind", bound=Preprocessor)


class AutoPreprocessor(Generic[Kind]):
    """Loads the one class among ``classes`` that a model's files name; no other name is ever imported."""

    section: ClassVar[str]
    classes: ClassVar[dict[str, str]]
    """Name of a class -> the module that holds it."""
    model_types: ClassVar[dict[str, str]]
    """``model_type`` of a config -> name of its class, for files that name none."""

    def __init__(self) -> None:
        name = type(self).__name__
        raise InputTypeError(f"{name} is not made by calling it.", hint=f"Use {name}.from_pretrained().")

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike[str] | None = None, **options: Any) -> Kind:
        """Load the preprocessor of a directory, of a repository, or of a JSON file.

        Args:
            pretrained_model_name_or_path: directory, file or repository id.
            options: where to look (see :class:`transept.source.Source`) and settings that replace the file's.

        Raises:
            FileError: the model has no such file.
            UnsupportedError: its class is none of ours; names the nearest.
        """
        name_or_path = model_argument(pretrained_model_name_or_path, options)
        hub, overrides = split_options(options)
        values, path = need_section(name_or_path, cls.section, **hub)
        name = cls.class_name(values)
        if name is None and not os.path.isfile(model_name(name_or_path)):
            model_type = source_setting(Source(model_name(name_or_path), **hub), "model_type")
            name = cls.model_types.get(str(model_type))
        if name not in cls.classes:
            what = "names no class" if name is None else f"names the class {name!r}, which is not supported,"
            hint = nearest(name or "", cls.classes)
            raise UnsupportedError(f"{what} under '{cls.section}_type'.", path=path, hint=hint)
        kind: type[Kind] = getattr(importlib.import_module(cls.classes[name]), name)
        return kind.from_dict(values, path=path, **overrides)

    @classmethod
    def class_name(cls, values: dict[str, Any]) -> str | None:
        """The name of the class that a file's settings give, or ``None``."""
        name = values.get(f"{cls.section}_type")
        return name if isinstance(name, str) else None


def source_setting(source: Source, key: str) -> Any:
    """One value of a model's ``config.json``, or ``None`` where there is no such file or key."""
    path = source.find("config.json")
    return None if path is None else load_object(path).get(key)
