"""The files of preprocessors: ``preprocessor_config.json`` (v4) and ``processor_config.json`` (v5), read and written.

The settings of a preprocessor have the names that the files use. None of a file's keys can name code to run.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from transept.errors import FileError, FormatError, InputError, nearest
from transept.fields import specs
from transept.files import dump_json, load_object, make_directory, write_text
from transept.settings import Settings
from transept.source import Source, SourceOptions, model_name

PREPROCESSOR_NAME = "preprocessor_config.json"
PROCESSOR_NAME = "processor_config.json"
# Names of classes, which the loader reads itself.
_CLASS_KEYS = frozenset({"image_processor_type", "feature_extractor_type", "processor_class"})


class Preprocessor(Settings):
    """Base of image processors and feature extractors: settings that are checked, loaded and saved.

    Args:
        extra: keys of a file that the class does not know, kept for saving.

    Raises:
        ConfigError: a setting of the wrong type or out of range.
        InputError: an unknown argument.
    """

    section: ClassVar[str]
    """Its key in ``processor_config.json``; ``<section>_type`` names the class."""
    model_input_names: ClassVar[list[str]] = []
    file_name = PREPROCESSOR_NAME
    unread = frozenset({"auto_map", "trust_remote_code"})

    def __init__(self, *, extra: Mapping[str, Any] | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self.extra.update(extra or {})

    @classmethod
    def read(
        cls, name_or_path: str | os.PathLike[str], hub: dict[str, Any], file_name: str | None = None
    ) -> tuple[dict[str, Any], Path]:
        """The settings of this kind in a file of either layout, and where they stand."""
        return need_section(name_or_path, cls.section, **hub)

    @classmethod
    def read_values(cls, values: Mapping[str, Any]) -> Self:
        """As for all settings; ``None`` stands for a setting's default."""
        own = specs(cls)
        kept = {name: value for name, value in values.items() if value is not None or name not in own}
        return super().read_values({name: value for name, value in kept.items() if name not in _CLASS_KEYS})

    def need_known(self, name: str) -> None:
        """Raise ``InputError`` unless that is a setting."""
        if name not in (known := specs(type(self))):
            raise InputError(f"{type(self).__name__} has no setting {name!r}.", hint=nearest(name, known))

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON types, with the kept unknown keys and the name of the class."""
        values = {name: value for name, value in super().to_dict().items() if value is not None or name in self.extra}
        return values | {f"{self.section}_type": type(self).__name__}


def is_number(value: object) -> bool:
    """Whether this is a finite number, and no boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_count(value: object) -> bool:
    """Whether this is a positive integer."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def split_options(options: dict[str, Any]) -> tuple[SourceOptions, dict[str, Any]]:
    """Part the keyword arguments of a ``from_pretrained`` into where to look and everything else."""
    hub = SourceOptions(**{k: v for k, v in options.items() if k in SourceOptions.__annotations__})  # type: ignore[typeddict-item]
    return hub, {k: v for k, v in options.items() if k not in hub}


def find_section(name_or_path: str | os.PathLike[str], section: str, **hub: Any) -> tuple[dict[str, Any], Path] | None:
    """The settings under ``section`` and the file they stand in, or ``None`` where the model has none.

    ``processor_config.json`` is asked first, as its nested settings are the newer layout.

    Raises:
        FormatError: a file that is no JSON object, or whose section is none.
    """
    if os.path.isfile(name_or_path):
        path = Path(name_or_path)
        document = load_object(path)
        return _object(document.get(section, document), path), path
    source = Source(model_name(name_or_path), **hub)
    if (path_or_none := source.find(PROCESSOR_NAME)) is not None:
        document = load_object(path_or_none)
        if section in document:
            return _object(document[section], path_or_none), path_or_none
    if (path_or_none := source.find(PREPROCESSOR_NAME)) is not None:
        return load_object(path_or_none), path_or_none
    return None


def need_section(name_or_path: str | os.PathLike[str], section: str, **hub: Any) -> tuple[dict[str, Any], Path]:
    """Like :func:`find_section`, but absent settings are a ``FileError``."""
    found = find_section(name_or_path, section, **hub)
    if found is None:
        raise FileError(
            f"holds neither {PREPROCESSOR_NAME!r} nor a {PROCESSOR_NAME!r} with {section!r}.",
            path=name_or_path,
            hint="Save the preprocessor beside the model with its save_pretrained().",
        )
    return found


def _object(value: Any, path: Path) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FormatError(f"must hold a JSON object of settings, but holds {str(value)[:80]!r}.", path=path)
    return value


def write_settings(directory: str | os.PathLike[str], name: str, values: dict[str, Any]) -> None:
    """Write one JSON file into a directory, which is made where needed."""
    write_text(make_directory(directory) / name, dump_json(values))
