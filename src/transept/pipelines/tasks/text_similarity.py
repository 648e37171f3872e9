"""How alike texts are in meaning: the cosine of their vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transept.errors import InputError
from transept.pipelines.batching import Sample
from transept.pipelines.tasks.text_embedding import EmbeddingOptions, TextEmbeddingPipeline, normalized
from transept.pipelines.text import Text, check_text

_KEYS = (("text", "text_pair"), ("source_sentence", "sentences"))


class TextSimilarityPipeline(TextEmbeddingPipeline):
    """The cosine of two texts, or (N) cosines of one text and N others, between -1 and 1.

    An input is ``(text, text)`` or ``(text, [text, ...])``, or the same as a mapping, ``{"text", "text_pair"}`` or
    ``{"source_sentence", "sentences"}``. Options are those of ``text-embedding``; all texts get the same prompt.
    """

    task = "text-similarity"

    def __call__(self, inputs: Any, others: Any = None, **options: Any) -> Any:
        """Compare texts.

        Args:
            inputs: a pair or several; or a text, with what it is compared to behind it.
            others: a text or several, to compare the text ``inputs`` to.
            options: see :class:`transept.pipelines.tasks.text_embedding.EmbeddingOptions` and ``Pipeline.__call__``.
        """
        return super().__call__(inputs if others is None else (inputs, others), **options)

    def is_one(self, inputs: Any) -> bool:
        return (isinstance(inputs, tuple) and len(inputs) == 2 and isinstance(inputs[0], str)) or super().is_one(inputs)

    def read(self, item: Any, options: EmbeddingOptions) -> list[Text]:
        one, others = _sides(item)
        return [(check_text(text), None) for text in (one, *([others] if isinstance(others, str) else others))]

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: EmbeddingOptions) -> Any:
        vectors = normalized(np.stack(results))
        cosines: NDArray[np.float32] = vectors[1:] @ vectors[0]
        return float(cosines[0]) if isinstance(_sides(item)[1], str) else cosines

    def gather(self, answers: list[Any]) -> Any:
        """(N) for N pairs; a list of arrays where texts are compared to several."""
        return np.array(answers, np.float32) if all(isinstance(answer, float) for answer in answers) else answers


def _sides(item: Any) -> tuple[Any, Any]:
    """A text, and one text or several to compare it to.

    Raises:
        InputError: anything else.
    """
    if isinstance(item, Mapping):
        keys = next((keys for keys in _KEYS if item.keys() == set(keys)), None)
        item = item if keys is None else (item[keys[0]], item[keys[1]])
    if isinstance(item, list | tuple) and len(item) == 2 and isinstance(item[1], str | list | tuple):
        return item[0], item[1]
    raise InputError(
        f"a text and what it is compared to were expected, but the input is {str(item)[:60]!r}.",
        hint='Pass ("text", "other"), ("text", ["other", ...]) or {"text": ..., "text_pair": ...}.',
    )
