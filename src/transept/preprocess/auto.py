"""The ``Auto`` classes of image processors, video processors, feature extractors and processors.

They know the classes that state their ``model_types``, and import the module of one when it is asked for. No other name that
a file holds is ever imported.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from transept.config.settings import Settings
from transept.errors import InputError, InputTypeError, UnsupportedError, nearest
from transept.preprocess.audio.base import SequenceFeatureExtractor
from transept.preprocess.classes import (
    FEATURE_EXTRACTORS,
    FEATURE_EXTRACTORS_OF_TYPES,
    IMAGE_PROCESSORS,
    IMAGE_PROCESSORS_OF_TYPES,
    PROCESSORS,
    PROCESSORS_OF_TYPES,
    VIDEO_PROCESSORS,
    VIDEO_PROCESSORS_OF_TYPES,
)
from transept.preprocess.image.base import BaseImageProcessor
from transept.preprocess.image.qwen2_vl import Qwen2VLVideoProcessor
from transept.preprocess.settings import PREPROCESSOR_NAME, PROCESSOR_NAME, Preprocessor, find_section, stated
from transept.storage.source import Source, model_argument, model_name, take_source_options

Kind = TypeVar("Kind", bound=Preprocessor)


def class_named(name: str, table: Mapping[str, Any]) -> Any:
    """A class of a table of classes by name: the one at its module, or one that a user registered there."""
    if isinstance(table[name], type):
        return table[name]
    return getattr(importlib.import_module(f"transept.preprocess.{table[name]}"), name)


class Auto:
    """A class that only loads."""

    kind: ClassVar[type[Any]]
    classes: ClassVar[dict[str, Any]]
    model_types: ClassVar[dict[str, str]]

    def __init__(self) -> None:
        name = type(self).__name__
        raise InputTypeError(f"{name} is not made by calling it.", hint=f"Use {name}.from_pretrained().")

    @classmethod
    def register(cls, config_class: Any, *classes: Any, exist_ok: bool = False, **named: Any) -> None:
        """Let models with configs of a class have preprocessors of a class of one's own.

        Args:
            config_class: its ``model_type`` is what ``config.json`` says.
            classes: the class; of several the last that is not ``None``.
            exist_ok: whether the class may take the place of another.
            named: the class by the reference's names, such as ``image_processor_class``.

        Raises:
            InputTypeError, InputError: what is no class of this kind, or a model type that has one.
        """
        if wrong := [name for name in named if not name.endswith("_class")]:
            raise InputError(f"{cls.__name__}.register has no argument {wrong[0]!r}.", hint="Pass the class alone.")
        kind = next((one for one in reversed([*classes, *named.values()]) if one is not None), None)
        model_type = getattr(config_class, "model_type", None)
        if not (isinstance(kind, type) and issubclass(kind, cls.kind) and isinstance(model_type, str)):
            what = f"{kind!r:.60} is no class of {cls.kind.__name__}, or {config_class!r:.60} no class of configs."
            raise InputTypeError(what)
        if model_type in cls.model_types and not exist_ok:
            raise InputError(f"{model_type!r} has {cls.model_types[model_type]}.", hint="Pass exist_ok=True.")
        cls.classes[kind.__name__], cls.model_types[model_type] = kind, kind.__name__


class AutoPreprocessor(Auto, Generic[Kind]):
    """Loads the one class among ``classes`` that a model's files name, or else that ``model_types`` has for its type."""

    kind: ClassVar[type[Preprocessor]]
    ignored: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike[str] | None = None, **options: Any) -> Kind:
        """Load the preprocessor of a directory, of a repository, or of a JSON file.

        ``options`` say where to look (see :class:`transept.storage.source.Source`), or are settings that replace the file's.

        Raises:
            FileError: the model has no such file.
            UnsupportedError: its class is none of ours; names the nearest.
        """
        name_or_path = model_argument(pretrained_model_name_or_path, options)
        hub = take_source_options(options)
        values, path = cls.kind.read(name_or_path, hub)
        name = cls.class_name(values)
        if name is None and not os.path.isfile(name_or_path):
            model_type = stated(Source(model_name(name_or_path), **hub), "model_type", "config.json")
            name = cls.model_types.get(str(model_type))
        if name is None or name not in cls.classes:
            what = "names no class" if name is None else f"names the class {name!r}, which is not supported,"
            hint = nearest(name or "", cls.classes)
            raise UnsupportedError(f"{what} under '{cls.kind.section}_type'.", path=path, hint=hint)
        options = {name: value for name, value in options.items() if name not in cls.ignored}
        return class_named(name, cls.classes).from_dict(values, path=path, **options)  # type: ignore[no-any-return]

    @classmethod
    def class_name(cls, values: dict[str, Any]) -> str | None:
        """The name of the class that a file's settings give, or ``None``."""
        name = values.get(f"{cls.kind.section}_type")
        return name if isinstance(name, str) else None


class AutoImageProcessor(AutoPreprocessor[BaseImageProcessor]):
    """Finds the class by ``image_processor_type``, by the older ``feature_extractor_type``, or by the model's type.

    ``use_fast`` and ``backend`` choose nothing: there is one implementation, and it is fast.
    """

    kind = BaseImageProcessor
    classes = IMAGE_PROCESSORS
    model_types = IMAGE_PROCESSORS_OF_TYPES
    ignored = frozenset({"use_fast", "backend"})

    @classmethod
    def class_name(cls, values: dict[str, Any]) -> str | None:
        """The class's name without the endings that tell implementations apart (``Fast``, ``Pil``)."""
        name = super().class_name(values)
        if name is None and isinstance(older := values.get("feature_extractor_type"), str):
            name = older.replace("FeatureExtractor", "ImageProcessor")
        return None if name is None else name.removesuffix("Fast").removesuffix("Pil")


class AutoFeatureExtractor(AutoPreprocessor[SequenceFeatureExtractor]):
    """Finds the class by ``feature_extractor_type``, or by the model's type."""

    kind = SequenceFeatureExtractor
    classes = FEATURE_EXTRACTORS
    model_types = FEATURE_EXTRACTORS_OF_TYPES


class AutoVideoProcessor(AutoPreprocessor[Qwen2VLVideoProcessor]):
    """Finds the class by ``video_processor_type``, by the image processor's name, or by the model's type."""

    kind = Qwen2VLVideoProcessor
    classes = VIDEO_PROCESSORS
    model_types = VIDEO_PROCESSORS_OF_TYPES

    @classmethod
    def class_name(cls, values: dict[str, Any]) -> str | None:
        name = super().class_name(values) or AutoImageProcessor.class_name(values)
        return None if name is None else name.replace("ImageProcessor", "VideoProcessor")


# Processors and their parts

PARTS: dict[str, Any] = {
    "image_processor": AutoImageProcessor,
    "video_processor": AutoVideoProcessor,
    "feature_extractor": AutoFeatureExtractor,
}
"""A part of a processor -> what loads it. Tokenizers, whose library is compiled, are imported when one is needed."""
CTC, TOKENIZER_CONFIG, VOCAB_NAME = "Wav2Vec2CTCTokenizer", "tokenizer_config.json", "vocab.json"
_VOCABULARIES = (TOKENIZER_CONFIG, "tokenizer.json", VOCAB_NAME, "vocab.txt", "tokenizer.model", "spiece.model")


def classes_of(part: str, names: Sequence[str]) -> tuple[type, ...]:
    """The classes that a processor's part may be of: those of the names, or every one for it."""
    if part == "tokenizer":
        from transept.preprocess.text.auto import CLASSES
        from transept.preprocess.text.tokenizer import Tokenizer

        return tuple(CLASSES[name] for name in names) or (Tokenizer,)
    return tuple(class_named(name, PARTS[part].classes) for name in names) or (PARTS[part].kind,)


def loader(part: str, names: Sequence[str]) -> Any:
    """What loads a processor's part: its class, where it can be of one alone, else the ``Auto`` class."""
    if len(names) == 1:
        return classes_of(part, names)[0]
    if part == "tokenizer":
        from transept.preprocess.text.auto import AutoTokenizer

        return AutoTokenizer
    return PARTS[part]


class AutoProcessor(Auto):
    """Loads whatever a model has for its inputs: a processor, an image processor, a feature extractor, a tokenizer."""

    kind = Settings
    classes = PROCESSORS
    model_types = PROCESSORS_OF_TYPES

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike[str] | None = None, **options: Any) -> Any:
        """Load by the processor's class where a file names it, or the model's type has one, else by the files that are there.

        ``options`` say where to look (see :class:`transept.storage.source.Source`), or are settings.

        Raises:
            UnsupportedError: a file names a processor that is none of ours.
            FileError: there is nothing to load.
        """
        name_or_path = model_argument(pretrained_model_name_or_path, options)
        hub = take_source_options(dict(options))
        return _kind(name_or_path, Source(model_name(name_or_path), **hub), hub).from_pretrained(name_or_path, **options)


def _kind(name_or_path: Any, source: Source, hub: dict[str, Any]) -> Any:
    """The class that the files of a model are for."""
    from transept.preprocess.text.auto import AutoTokenizer

    if source.gguf_file is not None:
        return AutoTokenizer
    name = stated(source, "processor_class", PROCESSOR_NAME, PREPROCESSOR_NAME, TOKENIZER_CONFIG)
    if name is not None and name not in PROCESSORS:
        what = f"names the processor {name!r}, which is not supported."
        raise UnsupportedError(what, path=source.name, hint=nearest(name, PROCESSORS))
    model_type = str(stated(source, "model_type", "config.json"))
    image, audio = (find_section(name_or_path, part, **hub) for part in ("image_processor", "feature_extractor"))
    if name is None and (image or audio) and any(source.find(file) is not None for file in _VOCABULARIES):
        name = PROCESSORS_OF_TYPES.get(model_type)
    if name is not None:
        return class_named(name, PROCESSORS)
    if image is not None:
        name = AutoImageProcessor.class_name(image[0])
        is_known = name in AutoImageProcessor.classes or "image_processor_type" in image[0]
        if is_known or (name is None and model_type in AutoImageProcessor.model_types):
            return AutoImageProcessor
    if audio is not None:
        is_ctc = source.find(VOCAB_NAME) is not None and stated(source, "tokenizer_class", TOKENIZER_CONFIG) in (None, CTC)
        return class_named("Wav2Vec2Processor", PROCESSORS) if is_ctc else AutoFeatureExtractor
    return AutoTokenizer
