"""Classes that choose a family from ``config.json``.

Code that a repository may carry (``auto_map``) is never run: a model is one of ours, or an error names what there is.
"""

from __future__ import annotations

import os
from typing import Any, ClassVar

from transept.backbone import Model
from transept.config import Config
from transept.errors import InputTypeError
from transept.resolve import config_class, read_config, resolve
from transept.source import take_source_options


class AutoConfig:
    """Chooses the configuration class by ``model_type``."""

    @staticmethod
    def for_model(model_type: str, **settings: Any) -> Config:
        """The configuration of a family, with its defaults and the given settings."""
        return config_class(model_type)(**settings)

    @staticmethod
    def from_pretrained(name_or_path: str | os.PathLike[str], **options: Any) -> Config:
        """Read the ``config.json`` of a directory, a repository, or the file itself.

        Args:
            name_or_path: directory, file or repository id.
            options: where to look (see :class:`transept.source.Source`), and settings that replace the file's.

        Raises:
            FileError: it cannot be found.
            UnsupportedError: a model type that is not one of ours.
        """
        values, path = Config.read(name_or_path, take_source_options(options))
        return read_config(values, path).from_dict(values, path=path, **options)


class _AutoModel:
    """Base of the classes that choose a model class: ``tasks`` are endings of class names, the first that fits wins."""

    tasks: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        name = type(self).__name__
        raise InputTypeError(f"{name} chooses a class and has no instances.", hint=f"Use {name}.from_pretrained(...).")

    @classmethod
    def model_class(cls, config: Config) -> type[Model]:
        """The class for a configuration."""
        return resolve(config.model_type, *cls.tasks)

    @classmethod
    def from_config(cls, config: Config, **overrides: Any) -> Model:
        """A model with new weights."""
        return cls.model_class(config).from_config(config, **overrides)

    @classmethod
    def from_pretrained(cls, name_or_path: str | os.PathLike[str], **options: Any) -> Any:
        """Choose the class by the config, build it and fill it; see ``Pretrained.from_pretrained`` for the arguments."""
        config = options.get("config") or AutoConfig.from_pretrained(name_or_path, **take_source_options(dict(options)))
        return cls.model_class(config).from_pretrained(name_or_path, **options)


class AutoModel(_AutoModel):
    """The backbone of any family."""

    tasks = ("Model",)


class AutoModelForPreTraining(_AutoModel):
    """The model that a family is pretrained as."""

    tasks = (
        *("ModelWithLMHead", "ForPreTraining", "ForMaskedLM", "ForConditionalGeneration"),
        *("MTModel", "ForCausalLM", "LMHeadModel"),
    )


class AutoModelForCausalLM(_AutoModel):
    """A model that predicts the next token."""

    tasks = ("ForCausalLM", "LMHeadModel", "ModelWithLMHead")


class AutoModelForMaskedLM(_AutoModel):
    """A model that fills masks."""

    tasks = ("ForMaskedLM",)


class AutoModelForNextSentencePrediction(_AutoModel):
    """A model that tells whether one sentence follows another."""

    tasks = ("ForNextSentencePrediction",)


class AutoModelForSeq2SeqLM(_AutoModel):
    """A model that reads one text and writes another."""

    tasks = ("ForConditionalGeneration", "MTModel", "EncoderDecoderModel")


class AutoModelForSequenceClassification(_AutoModel):
    """A model that classifies sequences."""

    tasks = ("ForSequenceClassification",)


class AutoModelForTokenClassification(_AutoModel):
    """A model that classifies tokens."""

    tasks = ("ForTokenClassification",)


class AutoModelForQuestionAnswering(_AutoModel):
    """A model that finds answers."""

    tasks = ("ForQuestionAnsweringSimple", "ForQuestionAnswering")


class AutoModelForMultipleChoice(_AutoModel):
    """A model that chooses."""

    tasks = ("ForMultipleChoice",)


class AutoModelForImageClassification(_AutoModel):
    """A model that classifies images."""

    tasks = ("ForImageClassification",)


class AutoModelForMaskedImageModeling(_AutoModel):
    """A model that restores masked patches."""

    tasks = ("ForMaskedImageModeling",)


class AutoModelForCTC(_AutoModel):
    """A model that transcribes speech by connectionist temporal classification."""

    tasks = ("ForCTC",)


class AutoModelForAudioClassification(_AutoModel):
    """A model that classifies sound."""

    tasks = ("ForSequenceClassification",)


class AutoModelForAudioFrameClassification(_AutoModel):
    """A model that classifies the frames of sound."""

    tasks = ("ForAudioFrameClassification",)


class AutoModelForAudioXVector(_AutoModel):
    """A model that gives speaker embeddings."""

    tasks = ("ForXVector",)
