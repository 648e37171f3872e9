"""The files of preprocessors: ``preprocessor_config.json`` (v4) and ``processor_config.json`` (v5), read and written.

A preprocessor is a dataclass: its fields are the settings, under the names that the files use. Keys of a file that the
class does not know are kept in ``extra`` and written back; none of them can name code to run.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self

from transept.errors import ConfigError, FileError, FormatError, InputError, nearest
from transept.files import dump_json, load_object, write_text
from transept.publish import Pushable
from transept.source import Source, SourceOptions, model_name

PREPROCESSOR_NAME = "preprocessor_config.json"
PROCESSOR_NAME = "processor_config.json"

# Names of classes and code: the loader reads the first group itself, and nothing reads the second.
_CLASS_KEYS = frozenset({"image_processor_type", "feature_extractor_type", "processor_class"})
_CODE_KEYS = frozenset({"auto_map", "trust_remote_code"})


@dataclass(kw_only=True)
class Preprocessor(Pushable):
    """Base of image processors and feature extractors: settings that are checked, loaded and saved.

    Args:
        extra: keys of a file that the class does not know, kept for saving.

    Raises:
        ConfigError: a setting of the wrong type or out of range.
    """

    section: ClassVar[str]
    """Its key in ``processor_config.json``; ``<section>_type`` names the class."""
    model_input_names: ClassVar[list[str]] = []

    extra: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def from_pretrained(cls, name_or_path: str | os.PathLike[str], **options: Any) -> Self:
        """Read the settings of a directory, of a repository, or of the JSON file itself.

        Args:
            name_or_path: directory, file or repository id.
            options: where to look (see :class:`transept.source.Source`) and settings that replace the file's.

        Raises:
            FileError: no file with settings of this kind is there.
            ConfigError: a setting that cannot be used; names file, setting and value.
        """
        hub, overrides = split_options(options)
        values, path = need_section(name_or_path, cls.section, **hub)
        return cls.from_dict(values, path=path, **overrides)

    @classmethod
    def from_dict(cls, values: dict[str, Any], *, path: str | os.PathLike[str] | None = None, **overrides: Any) -> Self:
        """Build from a file's content; ``overrides`` are settings that must be known."""
        names = cls.setting_names()
        cls.check_names(overrides)
        kept = {k: v for k, v in values.items() if not k.startswith("_") and k not in _CLASS_KEYS | _CODE_KEYS}
        kept = {k: v for k, v in kept.items() if v is not None or k not in names}
        extra = {k: copy.deepcopy(v) for k, v in kept.items() if k not in names}
        try:
            return cls(**{k: v for k, v in kept.items() if k in names} | overrides, extra=extra)
        except ConfigError as error:
            error.path = error.path or (None if path is None else str(path))
            raise

    @classmethod
    def setting_names(cls) -> list[str]:
        """Names of all settings."""
        return [item.name for item in fields(cls) if item.name != "extra"]

    @classmethod
    def check_names(cls, names: Iterable[str]) -> None:
        """Raise ``InputError`` for the first name that is no setting."""
        known = cls.setting_names()
        for name in names:
            if name not in known:
                raise InputError(f"{cls.__name__} has no setting {name!r}.", hint=nearest(name, known))

    def with_settings(self, **overrides: Any) -> Self:
        """A checked copy in which some settings are replaced."""
        self.check_names(overrides)
        return replace(self, **overrides)

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON types, with the kept unknown keys and the name of the class."""
        values = copy.deepcopy(self.extra)
        values |= {name: copy.deepcopy(getattr(self, name)) for name in self.setting_names()}
        values = {name: value for name, value in values.items() if value is not None or name in self.extra}
        return values | {f"{self.section}_type": type(self).__name__}

    def to_json_string(self) -> str:
        """The text of ``preprocessor_config.json``."""
        return dump_json(self.to_dict())

    def save_pretrained(self, directory: str | os.PathLike[str]) -> None:
        """Write ``preprocessor_config.json`` into a directory, which is made where needed."""
        write_settings(directory, PREPROCESSOR_NAME, self.to_dict())

    def fail(self, name: str, rule: str) -> NoReturn:
        """Raise the error for one setting: ``rule`` completes the sentence that begins with its name."""
        raise ConfigError(f"`{name}` of {type(self).__name__} {rule}, but is {_short(getattr(self, name))}.")

    def check_booleans(self, *names: str) -> None:
        """Require ``True``, ``False`` or ``None``."""
        for name in names:
            if not isinstance(getattr(self, name), bool | None):
                self.fail(name, "must be true or false")


def is_number(value: object) -> bool:
    """Whether this is a finite number, and no boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_count(value: object) -> bool:
    """Whether this is a positive integer."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


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
        raise FormatError(f"must hold a JSON object of settings, but holds {_short(value)}.", path=path)
    return value


def write_settings(directory: str | os.PathLike[str], name: str, values: dict[str, Any]) -> None:
    """Write one JSON file into a directory, which is made where needed."""
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot be made ({error.strerror}).", path=directory) from error
    write_text(Path(directory) / name, dump_json(values))
