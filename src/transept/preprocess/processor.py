"""Processors for several kinds of input, and the ``Auto`` classes, which find what a model's files name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from transept.directory import replace_directory
from transept.errors import InputError, InputTypeError, UnsupportedError, nearest
from transept.files import dump_json, write_text
from transept.preprocess.audio.base import SequenceFeatureExtractor
from transept.preprocess.audio.wav2vec2 import Wav2Vec2FeatureExtractor
from transept.preprocess.features import BatchFeature
from transept.preprocess.image.base import BaseImageProcessor
from transept.preprocess.image.beit import BeitImageProcessor
from transept.preprocess.image.bit import BitImageProcessor
from transept.preprocess.image.convnext import ConvNextImageProcessor
from transept.preprocess.image.deit import DeiTImageProcessor
from transept.preprocess.image.detr import DetrImageProcessor
from transept.preprocess.image.dpt import DPTImageProcessor
from transept.preprocess.image.segformer import SegformerImageProcessor
from transept.preprocess.image.vit import ViTImageProcessor
from transept.preprocess.settings import PREPROCESSOR_NAME, PROCESSOR_NAME, Preprocessor, find_section, stated
from transept.publish import Pushable
from transept.source import Source, model_argument, model_name, take_source_options

if TYPE_CHECKING:
    from transept.preprocess.audio.ctc_tokenizer import Wav2Vec2CTCTokenizer

CTC, TOKENIZER_NAME, VOCAB_NAME = "Wav2Vec2CTCTokenizer", "tokenizer_config.json", "vocab.json"
_BOTH = ("padding", "max_length", "truncation", "pad_to_multiple_of", "return_attention_mask", "return_tensors")
_AUDIO, _TEXT = (*_BOTH, "sampling_rate"), (*_BOTH, "add_special_tokens")
Kind = TypeVar("Kind", bound=Preprocessor)


class _Auto:
    def __init__(self) -> None:
        name = type(self).__name__
        raise InputTypeError(f"{name} is not made by calling it.", hint=f"Use {name}.from_pretrained().")


class _AutoPreprocessor(_Auto, Generic[Kind]):
    """Loads the one class among ``classes`` that a model's files name, or else that ``model_types`` has for its type."""

    kind: ClassVar[type[Preprocessor]]
    classes: ClassVar[dict[str, type[Preprocessor]]]
    model_types: ClassVar[dict[str, str]]
    ignored: ClassVar[frozenset[str]] = frozenset()

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
    classes = {
        "BeitImageProcessor": BeitImageProcessor,
        "BitImageProcessor": BitImageProcessor,
        "ConvNextImageProcessor": ConvNextImageProcessor,
        "DPTImageProcessor": DPTImageProcessor,
        "DeiTImageProcessor": DeiTImageProcessor,
        "DetrImageProcessor": DetrImageProcessor,
        "SegformerImageProcessor": SegformerImageProcessor,
        "ViTImageProcessor": ViTImageProcessor,
    }
    model_types = {
        "beit": "BeitImageProcessor",
        "convnext": "ConvNextImageProcessor",
        "deit": "DeiTImageProcessor",
        "depth_anything": "DPTImageProcessor",
        "detr": "DetrImageProcessor",
        "dinov2": "BitImageProcessor",
        "dinov2_with_registers": "BitImageProcessor",
        "dpt": "DPTImageProcessor",
        "resnet": "ConvNextImageProcessor",
        "segformer": "SegformerImageProcessor",
        "swin": "ViTImageProcessor",
        "vit": "ViTImageProcessor",
    }
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


class Wav2Vec2Processor(Pushable):
    """A feature extractor, which makes ``input_values`` of sounds, and a CTC tokenizer: labels of texts, texts of paths."""

    noun = "processor"

    def __init__(self, feature_extractor: SequenceFeatureExtractor, tokenizer: Wav2Vec2CTCTokenizer) -> None:
        for value, kind in ((feature_extractor, SequenceFeatureExtractor), (tokenizer, _ctc_tokenizer())):
            if not isinstance(value, kind):
                raise InputTypeError(f"{kind.__name__} is needed, but {type(value).__name__} was passed.")
        self.feature_extractor, self.tokenizer = feature_extractor, tokenizer

    @property
    def model_input_names(self) -> list[str]:
        """Names of what a call can return."""
        return [*self.feature_extractor.model_input_names, "labels"]

    def __call__(self, audio: Any = None, text: Any = None, **options: Any) -> BatchFeature:
        """Prepare sounds, texts or both.

        ``options`` are arguments of the feature extractor and of the tokenizer; those that both have go to both.
        ``audio_kwargs`` and ``text_kwargs`` are mappings for one alone, and go before the others. The ids of texts stand
        beside the inputs of sounds as ``labels``, or alone as the tokenizer gives them.

        Raises:
            InputError: neither sounds nor texts, or an unknown option.
        """
        if audio is None and text is None:
            raise InputError("neither audio nor text was passed.")
        only_audio, only_text = options.pop("audio_kwargs", None) or {}, options.pop("text_kwargs", None) or {}
        for name in options:
            if name not in (*_AUDIO, *_TEXT):
                raise InputError(f"{type(self).__name__} has no option {name!r}.", hint=nearest(name, {*_AUDIO, *_TEXT}))
        of_audio, of_text = ({name: options[name] for name in names if name in options} for names in (_AUDIO, _TEXT))
        labels = None if text is None else self.tokenizer(text, **of_text | only_text)
        return _joined(None if audio is None else self.feature_extractor(audio, **of_audio | only_audio), labels)

    def pad(self, input_features: Any = None, *, labels: Any = None, **options: Any) -> BatchFeature:
        """Pad extracted sounds, encoded texts or both, as a collator does; see the two parts' ``pad``."""
        if input_features is None and labels is None:
            raise InputError("neither input_features nor labels were passed.")
        of_text = {name: value for name, value in options.items() if name != "truncation"}
        ids = None if labels is None else self.tokenizer.pad(labels, **of_text)
        return _joined(None if input_features is None else self.feature_extractor.pad(input_features, **options), ids)

    def decode(self, token_ids: Any, **options: Any) -> Any:
        """See :meth:`Wav2Vec2CTCTokenizer.decode`."""
        return self.tokenizer.decode(token_ids, **options)

    def batch_decode(self, sequences: Any, **options: Any) -> Any:
        """See :meth:`Wav2Vec2CTCTokenizer.batch_decode`."""
        return self.tokenizer.batch_decode(sequences, **options)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike[str] | None = None, **options: Any) -> Self:
        """Load both parts of a directory or of a repository, in the older or the newer layout.

        ``options`` say where to look (see :class:`transept.source.Source`), or are settings of one of the parts.
        """
        name = model_argument(pretrained_model_name_or_path, options)
        tokenizer, hub = _ctc_tokenizer(), take_source_options(options)
        of_text = {name: options.pop(name) for name in tokenizer.setting_names() if name in options}
        extractor = AutoFeatureExtractor.from_pretrained(name, **hub, **options)
        return cls(extractor, tokenizer.from_pretrained(name, **hub, **of_text))

    def save_pretrained(
        self,
        save_directory: str | os.PathLike[str],
        push_to_hub: bool = False,
        *,
        legacy_format: bool = False,
        **options: Any,
    ) -> tuple[str, ...]:
        """Write both parts into a directory, in one step; returns the paths of the files.

        Args:
            save_directory: made where needed.
            push_to_hub: publish the processor too, as ``repo_id`` or under the directory's name, with ``options``.
            legacy_format: write the extractor's settings as ``preprocessor_config.json``, which the ecosystem's
                version 4 reads, and not into ``processor_config.json``.
        """
        values, written, stale = self.feature_extractor.to_dict(), PREPROCESSOR_NAME, PROCESSOR_NAME
        if not legacy_format:
            values, written, stale = {self.feature_extractor.section: values}, stale, written
        with replace_directory(save_directory, drop=lambda name: name == stale) as stage:
            write_text(stage / written, dump_json(values | {"processor_class": type(self).__name__}))
            self.tokenizer.write(stage)
            names = sorted(path.name for path in stage.iterdir())
        self.publish(save_directory, push_to_hub, options)
        return tuple(str(Path(save_directory, name)) for name in names)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.feature_extractor!r}, {self.tokenizer!r})"


def _joined(inputs: BatchFeature | None, ids: Mapping[str, Any] | None) -> BatchFeature:
    """The inputs with the ids as ``labels``; or what there is of both."""
    if inputs is None or ids is None:
        return BatchFeature(ids) if inputs is None else inputs
    inputs["labels"] = ids["input_ids"]
    return inputs


def _ctc_tokenizer() -> type[Wav2Vec2CTCTokenizer]:
    """The class, whose compiled library is imported when it is needed."""
    from transept.preprocess.audio.ctc_tokenizer import Wav2Vec2CTCTokenizer

    return Wav2Vec2CTCTokenizer


class AutoProcessor(_Auto):
    """Loads whatever a model has for its inputs: a processor, an image processor, a feature extractor, a tokenizer."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike[str] | None = None, **options: Any) -> Any:
        """Load by the processor's class where a file names it, else by the files that are there.

        ``options`` say where to look (see :class:`transept.source.Source`), or are settings.

        Raises:
            UnsupportedError: a file names a processor that is none of ours.
            FileError: there is nothing to load.
        """
        name_or_path = model_argument(pretrained_model_name_or_path, options)
        hub = take_source_options(dict(options))
        return _kind(name_or_path, Source(model_name(name_or_path), **hub), hub).from_pretrained(name_or_path, **options)


def _kind(name_or_path: Any, source: Source, hub: dict[str, Any]) -> Any:
    """The class that the files of a model are for."""
    known = Wav2Vec2Processor.__name__
    name = stated(source, "processor_class", PROCESSOR_NAME, PREPROCESSOR_NAME, TOKENIZER_NAME)
    if name == known:
        return Wav2Vec2Processor
    if name is not None:
        what = f"names the processor {name!r}, which is not supported."
        raise UnsupportedError(what, path=source.name, hint=nearest(name, [known]))
    image = find_section(name_or_path, AutoImageProcessor.kind.section, **hub)
    if image is not None:
        name = AutoImageProcessor.class_name(image[0])
        is_known = name in AutoImageProcessor.classes or "image_processor_type" in image[0]
        if is_known or (name is None and stated(source, "model_type", "config.json") in AutoImageProcessor.model_types):
            return AutoImageProcessor
    if find_section(name_or_path, AutoFeatureExtractor.kind.section, **hub) is not None:
        is_ctc = source.find(VOCAB_NAME) is not None and stated(source, "tokenizer_class", TOKENIZER_NAME) in (None, CTC)
        return Wav2Vec2Processor if is_ctc else AutoFeatureExtractor
    from transept.preprocess.text.auto import AutoTokenizer

    return AutoTokenizer
