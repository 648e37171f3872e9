"""Texts, pictures and sounds to classes: from a classifier's logits to named classes with scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transept.config import Config
from transept.core.auto import (
    AutoModelForAudioClassification,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
)
from transept.errors import InputError, TranseptError
from transept.pipelines.base import Options, Pipeline, check_choice, check_count, choice, count
from transept.pipelines.batching import Sample
from transept.pipelines.media import AudioPipeline, ImagePipeline
from transept.pipelines.text import Text, TextOptions, TextPipeline, check_text, unexpected

FUNCTIONS = ("softmax", "sigmoid", "none")


@dataclass(frozen=True)
class LabelOptions(Options):
    """Options of tasks that name classes.

    Args:
        top_k: how many classes to name, the best first; ``None`` for all.
        function_to_apply: what makes scores of logits: ``softmax``, ``sigmoid`` or ``none``. When absent ``none`` for
            regression, ``sigmoid`` for several labels at once and for a single class, else ``softmax``.
    """

    top_k: int | None = count(5, optional=True)
    function_to_apply: str | None = choice(None, *FUNCTIONS)


@dataclass(frozen=True)
class AudioClassificationOptions(LabelOptions):
    """Options of ``audio-classification``; see also :class:`LabelOptions`.

    Args:
        sampling_rate: the rate of arrays that come without one, in Hz; without it, such arrays are an error.
    """

    sampling_rate: int | None = None


@dataclass(frozen=True)
class TextClassificationOptions(TextOptions):
    """Options of ``text-classification``; see also :class:`transept.pipelines.text.TextOptions`.

    ``return_all_scores``, an older option of the reference, is ``top_k=None`` where true.

    Args:
        top_k: how many classes to name, the best first; ``None`` for all. Answers are lists then; when absent, the best
            class alone.
        function_to_apply: see :class:`LabelOptions`.
    """

    top_k: int | str | None = "best"
    function_to_apply: str | None = choice(None, *FUNCTIONS)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top_k != "best":
            check_count("top_k", self.top_k, optional=True)


class ClassifyingPipeline(Pipeline[Any]):
    """A task whose answers are lists of ``{"label": str, "score": float}``, the best first."""

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: Any) -> Any:
        """The classes with the highest scores; the best one alone where its option says so."""
        config = self.model.config
        values = scores(results[0], options.function_to_apply or default_function(config))
        best = np.argsort(-values, kind="stable")[: 1 if options.top_k == "best" else options.top_k]
        found = [{"label": label_of(config, i), "score": float(values[i])} for i in best.tolist()]
        return found[0] if options.top_k == "best" else found


class AudioClassificationPipeline(AudioPipeline, ClassifyingPipeline):
    """For a sound, a list of ``{"label": str, "score": float}``, the best first.

    A sound is a path, bytes, a file object, ``(array, rate)`` or ``{"array": ..., "sampling_rate": ...}``; see
    :func:`transept.preprocess.media.load_audio`.
    """

    task, auto, options_class = "audio-classification", AutoModelForAudioClassification, AudioClassificationOptions


class ImageClassificationPipeline(ImagePipeline, ClassifyingPipeline):
    """For a picture, a list of ``{"label": str, "score": float}``, the best first.

    A picture is a path, bytes, a file object, a PIL image or an array; see :func:`transept.preprocess.media.load_image`.
    """

    task, auto, options_class = "image-classification", AutoModelForImageClassification, LabelOptions


class TextClassificationPipeline(TextPipeline, ClassifyingPipeline):
    """For a text or a pair ``{"text": str, "text_pair": str}``, ``{"label": str, "score": float}``, or a list of these.

    As the reference does, a lone text is answered by a list of one answer, unless ``top_k`` is passed in the call.
    """

    task, auto, options_class = "text-classification", AutoModelForSequenceClassification, TextClassificationOptions

    def __call__(self, inputs: Any, **options: Any) -> Any:
        found = super().__call__(inputs, **options)
        lone = isinstance(inputs, str) and "top_k" not in options
        return [found] if lone and not isinstance(found, TranseptError) else found

    def with_options(self, given: Mapping[str, Any]) -> Any:
        rest = dict(given)
        if (every := rest.pop("return_all_scores", None)) is not None:
            check_choice("return_all_scores", every, (True, False))
            rest.setdefault("top_k", None if every else "best")
        return super().with_options(rest)

    def read(self, item: Any, options: Any) -> list[Text]:
        if not isinstance(item, Mapping):
            if isinstance(item, list | tuple):
                raise unexpected("a text or a pair was", item, 'Pass a pair as {"text": ..., "text_pair": ...}.')
            return [(check_text(item), None)]
        if "text" not in item or not item.keys() <= {"text", "text_pair"}:
            keys = ", ".join(map(repr, item)) or "none"
            raise InputError(f"a pair needs the keys 'text' and 'text_pair', but has {keys}.")
        second = item.get("text_pair")
        return [(check_text(item["text"]), None if second is None else check_text(second))]


def label_of(config: Config, index: int) -> str:
    """The name of a class."""
    return (config.id2label or {}).get(index, f"LABEL_{index}")


def default_function(config: Config) -> str:
    """What makes scores of logits where the caller does not say."""
    if config.problem_type == "regression":
        return "none"
    return "sigmoid" if config.problem_type == "multi_label_classification" or config.num_labels == 1 else "softmax"


def scores(logits: NDArray[np.float32], function: str) -> NDArray[np.float32]:
    """Scores (..., C) of logits (..., C)."""
    if function == "none":
        return logits
    if function == "sigmoid":
        found: NDArray[np.float32] = np.exp(-np.logaddexp(0, -logits))  # does not overflow where the logits are large
        return found
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    softmax: NDArray[np.float32] = powers / powers.sum(axis=-1, keepdims=True)
    return softmax
