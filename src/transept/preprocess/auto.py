"""``AutoImageProcessor`` and ``AutoFeatureExtractor``: a name in a model's files, and the class that it stands for."""

from __future__ import annotations

import os
from typing import Any, ClassVar, Generic, TypeVar

from transept.errors import InputTypeError, UnsupportedError, nearest
from transept.preprocess.audio.base import SequenceFeatureExtractor
from transept.preprocess.audio.wav2vec2 import Wav2Vec2FeatureExtractor
from transept.preprocess.image.base import BaseImageProcessor
from transept.preprocess.image.vit import ViTImageProcessor
from transept.preprocess.settings import Preprocessor, stated
from transept.source import Source, model_argument, model_name, take_source_options

Kind = TypeVar("Kind", bound=Preprocessor)


class _AutoPreprocessor(Generic[Kind]):
    """Loads the one class among ``classes`` that a model's files name, or else that ``model_types`` has for its type."""

    kind: ClassVar[type[Preprocessor]]
    classes: ClassVar[dict[str, type[Preprocessor]]]
    model_types: ClassVar[dict[str, str]]
    ignored: ClassVar[frozenset[str]] = frozenset()

    def __init__(self) -> None:
        name = type(self).__name__
        raise InputTypeError(f"{name} is not made by calling it.", hint=f"Use {name}.from_pretrained().")

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike[str] | None = None, **options: Any) -> Kind:
        """Load the preprocessor of a directory, of a repository, or of a JSON file.

        ``options`` say where to look (see :class:`transept.source.Source`), or are settings that replace the file's.

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
        if name not in cls.classes:
            what = "names no class" if name is None else f"names the class {name!r}, which is not supported,"
            hint = nearest(name or "", cls.classes)
            raise UnsupportedError(f"{what} under '{cls.kind.section}_type'.", path=path, hint=hint)
        options = {name: value for name, value in options.items() if name not in cls.ignored}
        return cls.classes[name].from_dict(values, path=path, **options)  # type: ignore[return-value]

    @classmethod
    def class_name(cls, values: dict[str, Any]) -> str | None:
        """The name of the class that a file's settings give, or ``None``."""
        name = values.get(f"{cls.kind.section}_type")
        return name if isinstance(name, str) else None


class AutoImageProcessor(_AutoPreprocessor[BaseImageProcessor]):
    """Finds the class by ``image_processor_type``, by the older ``feature_extractor_type``, or by the model's type.

    ``use_fast`` and ``backend`` choose nothing: there is one implementation, and it is fast.
    """

    kind = BaseImageProcessor
    classes = {"ViTImageProcessor": ViTImageProcessor}
    model_types = {"vit": "ViTImageProcessor"}
    ignored = frozenset({"use_fast", "backend"})

    @classmethod
    def class_name(cls, values: dict[str, Any]) -> str | None:
        """The class's name without the endings that tell implementations apart (``Fast``, ``Pil``)."""
        name = super().class_name(values)
        if name is None and isinstance(older := values.get("feature_extractor_type"), str):
            name = older.replace("FeatureExtractor", "ImageProcessor")
        return None if name is None else name.removesuffix("Fast").removesuffix("Pil")


class AutoFeatureExtractor(_AutoPreprocessor[SequenceFeatureExtractor]):
    """Finds the class by ``feature_extractor_type``, or by the model's type."""

    kind = SequenceFeatureExtractor
    classes = {"Wav2Vec2FeatureExtractor": Wav2Vec2FeatureExtractor}
    model_types = {"wav2vec2": "Wav2Vec2FeatureExtractor"}
