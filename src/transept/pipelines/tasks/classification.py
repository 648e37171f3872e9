"""Texts, pictures and sounds to classes with scores; zero-shot also to classes that are named when asking (Yin et al. 2019).

Shapes: N labels, C classes of the model, E size of vectors.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from string import Formatter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transept.config.model import Config
from transept.core.auto import (
    AutoModelForAudioClassification,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
)
from transept.errors import InputError, TranseptError, TranseptWarning
from transept.metrics.base import softmax
from transept.pipelines.base import Options, TaskPipeline, check_choice, choice, count
from transept.pipelines.batching import Sample
from transept.pipelines.components import EMBEDDING_MODEL, Components
from transept.pipelines.heads import SENTIMENT_MODEL
from transept.pipelines.media import AudioOptions, AudioPipeline, ImageOptions, ImagePipeline
from transept.pipelines.tasks.retrieval import TextEmbeddingPipeline
from transept.pipelines.text import Text, TextOptions, TextPipeline, check_text, unexpected

FUNCTIONS = ("softmax", "sigmoid", "none")


class LabelOptions(Options):
    """Options of tasks that name classes.

    Args:
        top_k: how many classes to name, the best first; ``None`` for all.
        function_to_apply: what makes scores of logits: ``softmax``, ``sigmoid`` or ``none``. When absent ``none`` for
            regression, ``sigmoid`` for several labels at once and for a single class, else ``softmax``.
    """

    top_k: int | None = count(5, optional=True)
    function_to_apply: str | None = choice(None, *FUNCTIONS)


class AudioClassificationOptions(LabelOptions, AudioOptions):
    """Options of ``audio-classification``."""


class ImageClassificationOptions(LabelOptions, ImageOptions):
    """Options of ``image-classification``."""


class TextClassificationOptions(LabelOptions, TextOptions):
    """Options of ``text-classification``; ``return_all_scores``, an older one of the reference, is ``top_k=None`` where true.

    ``tokenizer_kwargs`` is a mapping of those of texts.

    Args:
        top_k: how many classes to name, the best first; ``None`` for all. Answers are lists then; when absent, the best
            class alone.
    """

    top_k: int | str | None = count("best", optional=True)  # type: ignore[assignment]


class ClassifyingPipeline(TaskPipeline[Any]):
    """A task whose answers are lists of ``{"label": str, "score": float}``, the best first."""

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: Any) -> Any:
        config = self.model.config
        several = config.problem_type == "multi_label_classification" or config.num_labels == 1
        usual = "none" if config.problem_type == "regression" else "sigmoid" if several else "softmax"
        values = scores(results[0], options.function_to_apply or usual)
        best = np.argsort(-values, kind="stable")[: 1 if options.top_k == "best" else options.top_k]
        found = [{"label": label_of(config, i), "score": float(values[i])} for i in best.tolist()]
        return found[0] if options.top_k == "best" else found


class AudioClassificationPipeline(AudioPipeline, ClassifyingPipeline):
    """For a sound (see :func:`transept.preprocess.media.load_audio`), a list of ``{"label": str, "score": float}``."""

    task, auto, options_class = "audio-classification", AutoModelForAudioClassification, AudioClassificationOptions


class ImageClassificationPipeline(ImagePipeline, ClassifyingPipeline):
    """For a picture (see :func:`transept.preprocess.media.load_image`), a list of ``{"label": str, "score": float}``."""

    task, auto, options_class = "image-classification", AutoModelForImageClassification, ImageClassificationOptions
    drawable = True


class TextClassificationPipeline(TextPipeline, ClassifyingPipeline):
    """For a text or a pair ``{"text": str, "text_pair": str}``, ``{"label": str, "score": float}``, or a list of these.

    As the reference does, a lone text is answered by a list of one answer, unless ``top_k`` is passed.
    """

    task, auto, options_class = "text-classification", AutoModelForSequenceClassification, TextClassificationOptions
    default_model, nested = SENTIMENT_MODEL, "tokenizer_kwargs"

    def __call__(self, inputs: Any = None, **options: Any) -> Any:
        found = super().__call__(inputs, **options)
        lone = isinstance(inputs, str) and "top_k" not in options and not isinstance(found, TranseptError)
        return [found] if lone else found

    def with_options(self, given: Mapping[str, Any]) -> Any:
        rest = dict(given)
        if (every := rest.pop("return_all_scores", None)) is not None:
            check_choice("return_all_scores", every, (True, False))
            rest.setdefault("top_k", None if every else "best")
        return super().with_options(rest)

    def read(self, item: Any, options: Any) -> list[Text]:
        if isinstance(item, list | tuple):
            raise unexpected("a text or a pair was", item, 'Pass a pair as {"text": ..., "text_pair": ...}.')
        if not isinstance(item, Mapping):
            return [(check_text(item), None)]
        if "text" not in item or not item.keys() <= {"text", "text_pair"}:
            keys = ", ".join(map(repr, item)) or "none"
            raise InputError(f"a pair needs the keys 'text' and 'text_pair', but has {keys}.")
        second = item.get("text_pair")
        return [(check_text(item["text"]), None if second is None else check_text(second))]


def label_of(config: Config, index: int) -> str | int:
    """The name of a class."""
    return (config.id2label or {}).get(index, f"LABEL_{index}")


def scores(logits: NDArray[np.float32], function: str) -> Any:
    """Scores (..., C) of logits (..., C)."""
    if function == "none":
        return logits
    if function == "sigmoid":
        return np.exp(-np.logaddexp(0, -logits))  # does not overflow where the logits are large
    return softmax(logits)


# How a label may stand in a template: as {} or {0}, or not at all in a part of it.
_PLAIN = (("", None, ""), ("", None, "0"), (None, None, None))


class CandidateOptions(Options):
    """Classes that are named in a call, and a sentence for each.

    Args:
        candidate_labels: the classes, as a list or with commas between them.
        hypothesis_template: a sentence with ``{}`` where the label goes.
    """

    candidate_labels: str | Sequence[str] | None = None
    hypothesis_template: str = "This example is {}."

    def __post_init__(self) -> None:
        if self.candidate_labels is not None:
            _ = self.hypotheses

    @property
    def labels(self) -> list[str]:
        given = self.candidate_labels
        parted = [part.strip() for part in given.split(",") if part.strip()] if isinstance(given, str) else given
        labels = list(parted or ())
        if not labels or not all(isinstance(label, str) for label in labels):
            raise InputError(f"`candidate_labels` must be a list of labels, but is {str(given)[:80]!r}.")
        return labels

    @property
    def hypotheses(self) -> tuple[str, ...]:
        """The sentence for each class."""
        labels, template = self.labels, self.hypothesis_template
        try:
            if any((spec, conversion, name) not in _PLAIN for _, name, spec, conversion in Formatter().parse(template)):
                raise ValueError  # a width such as {:>999999999} would fill the memory
            made = tuple(template.format(label) for label in labels)
        except (AttributeError, IndexError, KeyError, ValueError) as error:
            raise InputError(f"`hypothesis_template` cannot be filled: {template!r}.") from error
        if made[0] == template:
            raise InputError(f"`hypothesis_template` has no {{}} for the label: {template!r}.")
        return made


class ZeroShotOptions(CandidateOptions):
    """Options of ``zero-shot-classification``, beside those of :class:`CandidateOptions`.

    Args:
        multi_label: several labels may be true, and each has a score of its own. Otherwise the scores add up to 1. With a
            model of vectors, such a score is the cosine, or 0 where that is negative.
        scale: with a model of vectors, what cosines are multiplied by before softmax: 20, as such models are trained.
    """

    multi_label: bool = False
    scale: float = 20.0


class ZeroShotClassificationPipeline(TextPipeline):
    """For a text, ``{"sequence": str, "labels": [str], "scores": [float]}``, the best label first. Long texts are cut.

    This class asks a classifier of pairs with a class ``entailment``; :class:`ZeroShotByEmbeddingPipeline` compares vectors.
    """

    task, auto, options_class = "zero-shot-classification", AutoModelForSequenceClassification, ZeroShotOptions
    default_model, first = EMBEDDING_MODEL, "sequences"

    @classmethod
    def build(cls, parts: Components, **given: Any) -> TaskPipeline[Any]:
        """A model is one of entailment by its class or by its labels, and else one of vectors."""
        entails = any(kind.endswith("ForSequenceClassification") for kind in parts.architectures)
        if entails or _entailment(parts.config) is not None:
            return super().build(parts, **given)
        return ZeroShotByEmbeddingPipeline(TextEmbeddingPipeline.build(parts), **given)

    def check_model(self) -> None:
        super().check_model()
        config = self.model.config
        found = _entailment(config)
        self.entailment = config.num_labels - 1 if found is None else found
        if found is None:
            named = ", ".join(map(str, (config.id2label or {}).values()))
            note = f"none of the model's classes ({named}) is named 'entailment'; the last one is taken."
            warnings.warn(note, TranseptWarning, stacklevel=4)

    def __call__(self, inputs: Any = None, candidate_labels: Any = None, **options: Any) -> Any:
        """As of every pipeline, with the classes behind the texts."""
        chosen = self.options.labels if candidate_labels is None else candidate_labels
        return super().__call__(inputs, candidate_labels=chosen, **options)

    def cutting(self, options: Any) -> tuple[str | None, int]:
        return "only_first", self.max_length

    def read(self, item: Any, options: Any) -> list[Text]:
        text = check_text(item)
        return [(text, hypothesis) for hypothesis in options.hypotheses]

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: Any) -> dict[str, Any]:
        labels, values = options.labels, self.scores(results, options)
        best = np.argsort(-values, kind="stable").tolist()
        return {"sequence": item, "labels": [labels[i] for i in best], "scores": [float(values[i]) for i in best]}

    def scores(self, results: Sequence[Any], options: Any) -> Any:
        """(N): softmax over the labels' entailment, or for each label over its entailment and contradiction."""
        logits = np.stack(results)
        if not options.multi_label and len(logits) > 1:
            return softmax(logits[:, self.entailment])
        contradiction = -1 if self.entailment == 0 else 0
        return softmax(logits[:, [contradiction, self.entailment]])[:, 1]


def _entailment(config: Config) -> int | None:
    """The class that is named so."""
    labels = (config.id2label or {}).items()
    return next((index for index, label in labels if str(label).lower().startswith("entail")), None)


class ZeroShotByEmbeddingPipeline(ZeroShotClassificationPipeline):
    """The same by a model of vectors: compares that of a text to those of the labels' sentences."""

    def __init__(self, embed: Any, **given: Any) -> None:
        self.embed = embed
        # (N, E) of length one, for the labels' sentences.
        self.vectors = lru_cache(maxsize=1)(lambda hypotheses: embed(hypotheses, normalize=True))
        super().__init__(embed.model, embed.tokenizer, **given)

    def check_model(self) -> None:
        """The embedding pipeline has done it."""

    def prepare(self, items: Sequence[Any], options: Any) -> Any:
        return self.embed.prepare(items, self.embed.options)

    def forward(self, samples: Sequence[Sample], options: Any) -> Any:
        vectors = self.vectors(options.hypotheses)
        return [vectors @ each for each in self.embed.forward(samples, replace(self.embed.options, normalize=True))]

    def scores(self, results: Sequence[Any], options: Any) -> Any:
        """(N): softmax over scaled cosines, or each cosine."""
        cosines = results[0]
        alone = options.multi_label or len(cosines) == 1
        return np.maximum(cosines, 0) if alone else softmax(cosines * options.scale)
