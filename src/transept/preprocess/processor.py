"""Processors: what a model with several kinds of input needs, as one object. And ``AutoProcessor``, which finds it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from transept.directory import replace_directory
from transept.errors import InputError, InputTypeError, UnsupportedError, nearest
from transept.files import load_object
from transept.preprocess.audio.auto import AutoFeatureExtractor
from transept.preprocess.audio.base import SequenceFeatureExtractor
from transept.preprocess.auto import source_setting
from transept.preprocess.features import BatchFeature
from transept.preprocess.image.auto import AutoImageProcessor
from transept.preprocess.settings import (
    PREPROCESSOR_NAME,
    PROCESSOR_NAME,
    find_section,
    split_options,
    write_settings,
)
from transept.publish import Pushable
from transept.source import Source, model_argument, model_name

if TYPE_CHECKING:
    from transept.preprocess.audio.ctc_tokenizer import Wav2Vec2CTCTokenizer

CTC, TOKENIZER_NAME, VOCAB_NAME = "Wav2Vec2CTCTokenizer", "tokenizer_config.json", "vocab.json"
_BOTH = ("padding", "max_length", "truncation", "pad_to_multiple_of", "return_attention_mask", "return_tensors")
_AUDIO = (*_BOTH, "sampling_rate")
_TEXT = (*_BOTH, "add_special_tokens")


class Wav2Vec2Processor(Pushable):
    """A feature extractor and a CTC tokenizer.

    Args:
        feature_extractor: makes ``input_values`` of sounds.
        tokenizer: makes labels of texts, and texts of paths.
    """

    noun = "processor"

    def __init__(self, feature_extractor: SequenceFeatureExtractor, tokenizer: Wav2Vec2CTCTokenizer) -> None:
        for value, kind in ((feature_extractor, SequenceFeatureExtractor), (tokenizer, _ctc_tokenizer())):
            if not isinstance(value, kind):
                raise InputTypeError(f"{kind.__name__} is needed, but {type(value).__name__} was passed.")
        self.feature_extractor = feature_extractor
        self.tokenizer = tokenizer

    @property
    def model_input_names(self) -> list[str]:
        """Names of what a call can return."""
        return [*self.feature_extractor.model_input_names, "labels"]

    def __call__(self, audio: Any = None, text: Any = None, **options: Any) -> BatchFeature:
        """Prepare sounds, texts or both.

        Args:
            audio: one sound or many, as for :class:`Wav2Vec2FeatureExtractor`.
            text: one text or many, as for :class:`Wav2Vec2CTCTokenizer`.
            options: arguments of the two; those that both have go to both. ``audio_kwargs`` and ``text_kwargs`` are
                mappings for one alone, and go before the others.

        Returns:
            The sounds' inputs; the texts' ids beside them as ``labels``, or alone as the tokenizer gives them.

        Raises:
            InputError: neither sounds nor texts, or an unknown option.
        """
        if audio is None and text is None:
            raise InputError("neither audio nor text was passed.")
        only_audio, only_text = options.pop("audio_kwargs", None) or {}, options.pop("text_kwargs", None) or {}
        for name in options:
            if name not in (*_AUDIO, *_TEXT):
                raise InputError(f"{type(self).__name__} has no option {name!r}.", hint=nearest(name, {*_AUDIO, *_TEXT}))
        labels: Mapping[str, Any] = {}
        if text is not None:
            labels = self.tokenizer(text, **{k: v for k, v in options.items() if k in _TEXT} | only_text)
        if audio is None:
            return BatchFeature(labels)
        inputs = self.feature_extractor(audio, **{k: v for k, v in options.items() if k in _AUDIO} | only_audio)
        if text is not None:
            inputs["labels"] = labels["input_ids"]
        return inputs

    def pad(self, input_features: Any = None, *, labels: Any = None, **options: Any) -> BatchFeature:
        """Pad extracted sounds, encoded texts or both, as a collator does; see the two parts' ``pad``."""
        if input_features is None and labels is None:
            raise InputError("neither input_features nor labels were passed.")
        ids: Mapping[str, Any] = {}
        if labels is not None:
            ids = self.tokenizer.pad(labels, **{k: v for k, v in options.items() if k != "truncation"})
        if input_features is None:
            return BatchFeature(ids)
        inputs = self.feature_extractor.pad(input_features, **options)
        if labels is not None:
            inputs["labels"] = ids["input_ids"]
        return inputs

    def decode(self, token_ids: Any, **options: Any) -> Any:
        """The text of one path; see :meth:`Wav2Vec2CTCTokenizer.decode`."""
        return self.tokenizer.decode(token_ids, **options)

    def batch_decode(self, sequences: Any, **options: Any) -> Any:
        """The texts of many paths; see :meth:`Wav2Vec2CTCTokenizer.batch_decode`."""
        return self.tokenizer.batch_decode(sequences, **options)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike[str] | None = None, **options: Any) -> Self:
        """Load both parts of a directory or of a repository, in the older or the newer layout.

        Args:
            pretrained_model_name_or_path: directory or repository id.
            options: where to look (see :class:`transept.source.Source`) and settings of the feature extractor, or of
                the tokenizer where only that has them.
        """
        name = model_argument(pretrained_model_name_or_path, options)
        tokenizer = _ctc_tokenizer()
        hub, overrides = split_options(options)
        known = tokenizer.setting_names()
        of_text = {k: v for k, v in overrides.items() if k in known}
        of_audio = {k: v for k, v in overrides.items() if k not in known}
        return cls(
            AutoFeatureExtractor.from_pretrained(name, **hub, **of_audio),
            tokenizer.from_pretrained(name, **hub, **of_text),
        )

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
            push_to_hub: whether to publish the processor too, as ``repo_id`` or under the directory's name.
            legacy_format: write the extractor's settings as ``preprocessor_config.json``, which the ecosystem's
                version 4 reads, and not into ``processor_config.json``.
            options: arguments of :meth:`push_to_hub`.
        """
        from transept.preprocess.text.loading import publish

        values, name = self.feature_extractor.to_dict(), {"processor_class": type(self).__name__}
        stale = PROCESSOR_NAME if legacy_format else PREPROCESSOR_NAME
        with replace_directory(save_directory, drop=lambda name: name == stale) as stage:
            if legacy_format:
                write_settings(stage, PREPROCESSOR_NAME, values | name)
            else:
                write_settings(stage, PROCESSOR_NAME, {self.feature_extractor.section: values} | name)
            self.tokenizer.write(stage)
            names = sorted(path.name for path in stage.iterdir())
        publish(self, save_directory, push_to_hub, options)
        return tuple(str(Path(save_directory, name)) for name in names)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.feature_extractor!r}, {self.tokenizer!r})"


def _ctc_tokenizer() -> type[Wav2Vec2CTCTokenizer]:
    """The class, whose compiled library is imported when it is needed."""
    from transept.preprocess.audio.ctc_tokenizer import Wav2Vec2CTCTokenizer

    return Wav2Vec2CTCTokenizer


_PROCESSORS = {"Wav2Vec2Processor": Wav2Vec2Processor}


class AutoProcessor:
    """Loads whatever a model has for its inputs: a processor, an image processor, a feature extractor, a tokenizer."""

    def __init__(self) -> None:
        raise InputTypeError("AutoProcessor is not made by calling it.", hint="Use AutoProcessor.from_pretrained().")

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike[str] | None = None, **options: Any) -> Any:
        """Load by the processor's class where a file names it, else by the files that are there.

        Args:
            pretrained_model_name_or_path: directory or repository id.
            options: where to look (see :class:`transept.source.Source`) and settings.

        Raises:
            UnsupportedError: a file names a processor that is none of ours.
            FileError: there is nothing to load.
        """
        name_or_path = model_argument(pretrained_model_name_or_path, options)
        hub, _ = split_options(options)
        source = Source(model_name(name_or_path), **hub)
        name = _processor_class(source)
        if name is not None:
            if name not in _PROCESSORS:
                hint = nearest(name, _PROCESSORS)
                raise UnsupportedError(f"names the processor {name!r}, which is not supported.", path=source.name, hint=hint)
            return _PROCESSORS[name].from_pretrained(name_or_path, **options)
        image = find_section(name_or_path, AutoImageProcessor.section, **hub)
        if image is not None and _is_image(image[0], source):
            return AutoImageProcessor.from_pretrained(name_or_path, **options)
        if find_section(name_or_path, AutoFeatureExtractor.section, **hub) is not None:
            kind = Wav2Vec2Processor if _has_ctc_vocabulary(source) else AutoFeatureExtractor
            return kind.from_pretrained(name_or_path, **options)
        from transept.preprocess.text.auto import AutoTokenizer

        return AutoTokenizer.from_pretrained(name_or_path, **options)


def _processor_class(source: Source) -> str | None:
    """The processor's class, where one of a model's files names it."""
    for filename in (PROCESSOR_NAME, PREPROCESSOR_NAME, TOKENIZER_NAME):
        if (path := source.find(filename)) is not None:
            name = load_object(path).get("processor_class")
            if isinstance(name, str):
                return name
    return None


def _is_image(values: dict[str, Any], source: Source) -> bool:
    name = AutoImageProcessor.class_name(values)
    if name is None:
        return source_setting(source, "model_type") in AutoImageProcessor.model_types
    return name in AutoImageProcessor.classes or "image_processor_type" in values


def _has_ctc_vocabulary(source: Source) -> bool:
    if source.find(VOCAB_NAME) is None:
        return False
    path = source.find(TOKENIZER_NAME)
    name = None if path is None else load_object(path).get("tokenizer_class")
    return name in (None, CTC)
