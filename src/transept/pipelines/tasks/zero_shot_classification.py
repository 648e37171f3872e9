"""Texts to classes that are named when asking, by one of two kinds of models.

A model of entailment is asked whether the text entails "This example is <label>." (Yin et al. 2019). A model of vectors is
asked how near to the label the text is.

Shapes: N labels, C classes of the model, E size of vectors.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from transept.config import Config
from transept.core.auto import AutoModelForSequenceClassification
from transept.errors import InputError, TranseptError, TranseptWarning
from transept.pipelines.base import Options, Pipeline
from transept.pipelines.batching import Sample
from transept.pipelines.components import Components
from transept.pipelines.defaults import EMBEDDING_MODEL
from transept.pipelines.tasks.classification import scores as scores_of
from transept.pipelines.tasks.text_embedding import TextEmbeddingPipeline
from transept.pipelines.text import Text, TextPipeline, check_text


@dataclass(frozen=True)
class ZeroShotOptions(Options):
    """Options of ``zero-shot-classification``.

    Args:
        candidate_labels: the classes, as a list or with commas between them.
        hypothesis_template: a sentence with ``{}`` where the label goes.
        multi_label: several labels may be true, and each has a score of its own. Otherwise the scores add up to 1. With a
            model of vectors, such a score is the cosine, or 0 where that is negative.
        scale: with a model of vectors, what cosines are multiplied by before softmax: 20, as such models are trained.
    """

    candidate_labels: str | Sequence[str] | None = None
    hypothesis_template: str = "This example is {}."
    multi_label: bool = False
    scale: float = 20.0

    def __post_init__(self) -> None:
        if self.candidate_labels is not None:
            _ = self.hypotheses

    @property
    def labels(self) -> list[str]:
        given = self.candidate_labels
        parts = given.split(",") if isinstance(given, str) else ()
        labels = [part.strip() for part in parts if part.strip()] if isinstance(given, str) else list(given or ())
        if not labels or not all(isinstance(label, str) for label in labels):
            raise InputError(f"`candidate_labels` must be a list of labels, but is {str(given)[:80]!r}.")
        return labels

    @property
    def hypotheses(self) -> list[str]:
        """The sentence for each class."""
        labels, template = self.labels, self.hypothesis_template
        try:
            made = [template.format(label) for label in labels]
        except (AttributeError, IndexError, KeyError, ValueError) as error:
            raise InputError(f"`hypothesis_template` cannot be filled: {template!r}.") from error
        if made[0] == template:
            raise InputError(f"`hypothesis_template` has no {{}} for the label: {template!r}.")
        return made


class ZeroShotClassificationPipeline(TextPipeline):
    """For a text, ``{"sequence": str, "labels": [str], "scores": [float]}``, the best label first. Long texts are cut.

    This class asks a classifier of pairs, one of whose classes is named ``entailment``, whether the text entails each label's
    sentence; see also :class:`ZeroShotByEmbeddingPipeline`.
    """

    task, auto, options_class = "zero-shot-classification", AutoModelForSequenceClassification, ZeroShotOptions
    default_model = EMBEDDING_MODEL

    @classmethod
    def suited(cls, parts: Components) -> type[Pipeline[Any]]:
        """A model is one of entailment by its class or by its labels, and else one of vectors."""
        entails = any(kind.endswith("ForSequenceClassification") for kind in parts.architectures)
        return cls if entails or _entailment(parts.config) is not None else ZeroShotByEmbeddingPipeline

    def check_model(self) -> None:
        super().check_model()
        config = self.model.config
        found = _entailment(config)
        if found is None:
            named = ", ".join((config.id2label or {}).values())
            told = f"none of the model's classes ({named}) is named 'entailment'; the last one is taken."
            warnings.warn(told, TranseptWarning, stacklevel=4)
        self.entailment = config.num_labels - 1 if found is None else found

    def __call__(self, inputs: Any, candidate_labels: Any = None, **options: Any) -> Any:
        """Classify texts.

        Args:
            inputs: a text or several.
            candidate_labels: the classes, as a list or with commas between them.
            options: see :class:`ZeroShotOptions` and ``Pipeline.__call__``.
        """
        if candidate_labels is None:
            _ = self.options.labels
        else:
            options["candidate_labels"] = candidate_labels
        return super().__call__(inputs, **options)

    def cutting(self, options: Any) -> tuple[str | None, int]:
        """Only the text is cut, never the label's sentence."""
        return "only_first", self.max_length

    def read(self, item: Any, options: Any) -> list[Text]:
        text = check_text(item)
        return [(text, hypothesis) for hypothesis in options.hypotheses]

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: Any) -> dict[str, Any]:
        labels, values = options.labels, self.scores(results, options)
        best = np.argsort(-values, kind="stable").tolist()
        return {"sequence": item, "labels": [labels[i] for i in best], "scores": [float(values[i]) for i in best]}

    def scores(self, results: Sequence[Any], options: Any) -> NDArray[np.float32]:
        """(N): softmax over the labels' entailment, or for each label over its entailment and contradiction."""
        logits = np.stack(results)
        if not options.multi_label and len(logits) > 1:
            return scores_of(logits[:, self.entailment], "softmax")
        contradiction = -1 if self.entailment == 0 else 0
        return scores_of(logits[:, [contradiction, self.entailment]], "softmax")[:, 1]


def _entailment(config: Config) -> int | None:
    """The class that is named so."""
    labels = (config.id2label or {}).items()
    return next((index for index, label in labels if label.lower().startswith("entail")), None)


class ZeroShotByEmbeddingPipeline(ZeroShotClassificationPipeline):
    """The same by a model of vectors: compares that of a text to those of the labels' sentences.

    Args:
        embed: makes the vectors.
        given: see :class:`transept.pipelines.base.Pipeline`.
    """

    def __init__(self, embed: TextEmbeddingPipeline, **given: Any) -> None:
        self.embed = embed
        self._known: tuple[list[str], NDArray[np.float32]] = ([], np.empty(0, np.float32))
        super().__init__(embed.model, embed.tokenizer, **given)

    @classmethod
    def build(cls, parts: Components, **given: Any) -> Self:
        return cls(TextEmbeddingPipeline.build(parts), **given)

    def check_model(self) -> None:
        """The embedding pipeline has done it."""

    def vectors(self, hypotheses: list[str]) -> NDArray[np.float32]:
        """(N, E) of length one, for the labels' sentences; those of the last call are kept."""
        known, vectors = self._known  # read once: another thread may ask for others
        if known != hypotheses:
            vectors = self.embed(hypotheses, normalize=True)
            self._known = (hypotheses, vectors)
        return vectors

    def prepare(self, items: Sequence[Any], options: Any) -> Sequence[list[Sample] | TranseptError]:
        self.vectors(options.hypotheses)
        return self.embed.prepare(items, self.embed.options)

    def forward(self, samples: Sequence[Sample], options: Any) -> Sequence[NDArray[np.float32]]:
        """The vector (E) of each row."""
        return self.embed.forward(samples, replace(self.embed.options, normalize=True))

    def scores(self, results: Sequence[Any], options: Any) -> NDArray[np.float32]:
        """(N): softmax over scaled cosines, or each cosine."""
        cosines: NDArray[np.float32] = self.vectors(options.hypotheses) @ results[0]
        if options.multi_label or len(cosines) == 1:
            return np.maximum(cosines, 0)
        return scores_of(cosines * options.scale, "softmax")
