"""Texts, or pairs of them, to classes: sentiments, topics, languages, or whether one text follows from another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from transept.core.auto import AutoModelForSequenceClassification
from transept.errors import TranseptError
from transept.pipelines.base import chosen_options, to_numpy
from transept.pipelines.batching import Sample
from transept.pipelines.labels import LabelOptions, labelled
from transept.pipelines.parts import Parts
from transept.pipelines.text import Text, TextOptions, TextPipeline, read_pair
from transept.preprocess.text.auto import AutoTokenizer


@dataclass(frozen=True)
class TextClassificationOptions(TextOptions):
    """Options of ``text-classification``, beside those of :class:`transept.pipelines.text.TextOptions`.

    Args:
        top_k: how many classes to name, the best first; ``None`` for all. Answers are lists then; when absent, the best
            class alone.
        function_to_apply: see :class:`transept.pipelines.labels.LabelOptions`.
    """

    top_k: int | str | None = "best"
    function_to_apply: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.labels

    @property
    def labels(self) -> LabelOptions:
        """How classes are named."""
        most: Any = 1 if self.top_k == "best" else self.top_k
        return LabelOptions(top_k=most, function_to_apply=self.function_to_apply)


class TextClassificationPipeline(TextPipeline[TextClassificationOptions]):
    """For a text or a pair ``{"text": str, "text_pair": str}``, ``{"label": str, "score": float}``, or a list of these.

    As the reference does, a lone text is answered by a list of one answer, unless ``top_k`` is passed in the call.
    """

    task = "text-classification"

    @classmethod
    def build(cls, parts: Parts, options: Mapping[str, Any], **batching: Any) -> Self:
        """Load the classifier and its tokenizer."""
        model = parts.model(AutoModelForSequenceClassification)
        tokenizer = parts.part("tokenizer", AutoTokenizer.from_pretrained)
        return cls(model, tokenizer, chosen_options(TextClassificationOptions(), options, cls.task), **batching)

    def __call__(self, inputs: Any, **options: Any) -> Any:
        """As of every pipeline."""
        found = super().__call__(inputs, **options)
        lone = isinstance(inputs, str) and "top_k" not in options
        return [found] if lone and not isinstance(found, TranseptError) else found

    def read(self, item: Any, options: TextClassificationOptions) -> list[Text]:
        """A text or a pair."""
        return [read_pair(item)]

    def forward(self, samples: Sequence[Sample], options: TextClassificationOptions) -> Sequence[NDArray[np.float32]]:
        """Logits (C) of each row."""
        return list(to_numpy(self.run(self.collate(samples)).logits))

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: TextClassificationOptions) -> Any:
        """The best class or classes."""
        found = labelled(results[0], self.model.config, options.labels)
        return found[0] if options.top_k == "best" else found
