"""The files of preprocessors: ``preprocessor_config.json`` (v4) and ``processor_config.json`` (v5), read and written.

The settings of a preprocessor have the names that the files use. None of a file's keys can name code to run.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from transept.config.fields import Range, specs
from transept.config.settings import Settings
from transept.errors import FileError, FormatError, InputError, InputTypeError, nearest
from transept.storage.files import load_object
from transept.storage.source import Source, model_name

PREPROCESSOR_NAME = "preprocessor_config.json"
PROCESSOR_NAME = "processor_config.json"
# What levels and samples are computed with: beyond these limits results are infinite in float32, or all the same.
OFFSETS, FACTORS = Range(-1e8, 1e8), Range(1e-8, 1e8)
Offset = Annotated[float, OFFSETS]
Factor = Annotated[float, FACTORS]
MAX_VALUES = 2**26  # that settings make of one input
# Names of classes, which the loader reads itself.
_CLASS_KEYS = frozenset({"image_processor_type", "feature_extractor_type", "processor_class"})


class Preprocessor(Settings):
    """Base of image processors and feature extractors; ``extra`` are keys of a file that the class does not know.

    Raises:
        ConfigError: a setting of the wrong type or out of range.
        InputError: an unknown argument.
    """

    section: ClassVar[str]  # its key in ``processor_config.json``; ``<section>_type`` names the class
    model_types: ClassVar[tuple[str, ...]] = ()
    """The model types whose inputs a class prepares; each class that files can name states its own."""
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
        if (found := find_section(name_or_path, cls.section, **hub)) is not None:
            return found
        wrong = f"holds neither {PREPROCESSOR_NAME!r} nor a {PROCESSOR_NAME!r} with {cls.section!r}."
        raise FileError(wrong, path=name_or_path, hint="Save the preprocessor beside the model with its save_pretrained().")

    @classmethod
    def read_values(cls, values: Mapping[str, Any]) -> Self:
        """As for all settings; ``None`` stands for a setting's default."""
        own = specs(cls)
        kept = {name: value for name, value in values.items() if value is not None or name not in own}
        return super().read_values({name: value for name, value in kept.items() if name not in _CLASS_KEYS})

    def need_known(self, name: str) -> None:
        if name not in (known := {*specs(type(self)), *self.aliases}):
            raise InputError(f"{type(self).__name__} has no setting {name!r}.", hint=nearest(name, known))

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON types, with the kept unknown keys and the name of the class."""
        values = {name: value for name, value in super().to_dict().items() if value is not None or name in self.extra}
        return values | {f"{self.section}_type": type(self).__name__}


def need(name: str, value: Any, kinds: Any, wanted: str | None = None, hint: str | None = None) -> None:
    """Raise ``InputTypeError`` unless an argument is of these kinds; ``wanted`` says in words what they are."""
    if not isinstance(value, kinds):
        wanted = wanted or getattr(kinds, "__name__", str(kinds)).replace("None", "nothing").replace(" | ", " or ")
        raise InputTypeError(f"{name} is {value!r:.80} ({type(value).__name__}), but must be {wanted}.", hint=hint)


def is_number(value: object) -> bool:
    """Whether this is a finite number, and no boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def find_section(name_or_path: str | os.PathLike[str], section: str, **hub: Any) -> tuple[dict[str, Any], Path] | None:
    """The settings under ``section`` and the file they stand in, or ``None`` where the model has none.

    ``processor_config.json`` is asked first: its nested settings are the newer layout. ``FormatError`` where they are none.
    """
    source, is_file = Source(model_name(name_or_path), **hub), os.path.isfile(name_or_path)
    for name in (PROCESSOR_NAME, PREPROCESSOR_NAME):
        if (path := Path(name_or_path) if is_file else source.find(name)) is None:
            continue
        document = load_object(path)
        if is_file or name == PREPROCESSOR_NAME or section in document:
            values = document.get(section, document)
            if not isinstance(values, dict):
                raise FormatError(f"must hold a JSON object of settings, but holds {str(values)[:80]!r}.", path=path)
            return values, path
    return None


def stated(source: Source, key: str, *files: str) -> str | None:
    """The text under a key in the first of a model's files that has one there."""
    for name in files:
        if (path := source.find(name)) is not None and isinstance(value := load_object(path).get(key), str):
            return value
    return None
