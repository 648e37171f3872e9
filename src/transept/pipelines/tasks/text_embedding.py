"""Texts to vectors (Reimers and Gurevych 2019), which search, clustering and retrieval start from, and their cosines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from transept.core.auto import AutoModel
from transept.core.model import Model
from transept.errors import InputError
from transept.pipelines.base import Options, to_numpy
from transept.pipelines.batching import Sample
from transept.pipelines.components import Components
from transept.pipelines.defaults import EMBEDDING_MODEL
from transept.pipelines.sentence import SentenceHead, read_sentence_head
from transept.pipelines.text import NO_LIMIT, Text, TextPipeline, check_text

_KEYS = (("text", "text_pair"), ("source_sentence", "sentences"))


@dataclass(frozen=True)
class EmbeddingOptions(Options):
    """Options of ``text-embedding``.

    Args:
        normalize: scale vectors to length one also where the checkpoint does not.
        prompt_name: one of the checkpoint's prompts to put before each text, such as ``query``; its default one, where it
            has one, when absent.
    """

    normalize: bool = False
    prompt_name: str | None = None


class TextEmbeddingPipeline(TextPipeline):
    """One float32 vector (E) for a text, an array (N, E) for N of them. Texts that are too long are cut.

    Args:
        model: a backbone in evaluation mode.
        tokenizer: of the same checkpoint.
        head: how states become vectors; the mean of all tokens when absent.
        given: see :class:`transept.pipelines.base.Pipeline`.
    """

    task, auto, options_class = "text-embedding", AutoModel, EmbeddingOptions
    default_model = EMBEDDING_MODEL

    def __init__(self, model: Model, tokenizer: Any = None, *, head: SentenceHead | None = None, **given: Any) -> None:
        self.head = head or SentenceHead()
        super().__init__(model, tokenizer, **given)

    @classmethod
    def build(cls, parts: Components, **given: Any) -> Self:
        head = SentenceHead() if parts.source is None else read_sentence_head(parts.source, parts.target)
        return super().build(parts.below(head.folder) if head.folder else parts, head=head, **given)

    def check_model(self) -> None:
        super().check_model()
        self.size = self.head.size(self.model.backbone.dim)

    @property
    def max_length(self) -> int:
        return min(super().max_length, self.head.max_length or NO_LIMIT)

    def check_options(self, options: Any) -> None:
        self.head.prompt(options.prompt_name)

    def encode(self, texts: Sequence[Any], options: Any) -> Sequence[Any]:
        prompt = self.head.prompt(options.prompt_name)
        whole = [prompt + text for text, _ in texts]
        return super().encode([(text.lower() if self.head.lower else text, None) for text in whole], options)

    def forward(self, samples: Sequence[Sample], options: Any) -> Sequence[NDArray[np.float32]]:
        batch, prompt = self.collate(samples), self.head.prompt(options.prompt_name)
        hidden = self.run(batch, self.model.backbone).last_hidden_state
        skip = 0
        if prompt and not self.head.pools_prompt:
            ids = self.tokenizer.encode_ids([prompt])[0]
            skip = len(ids) - (ids[-1] in self.tokenizer.all_special_ids)
        vectors = to_numpy(self.head(hidden, batch.get("attention_mask"), skip, batch.get("lengths")))
        return list(normalized(vectors) if options.normalize else vectors)

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: Any) -> Any:
        return results[0]

    def gather(self, answers: list[Any]) -> Any:
        """(N, E)."""
        return np.stack(answers) if answers else np.empty((0, self.size), np.float32)


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
            options: see :class:`EmbeddingOptions` and ``Pipeline.__call__``.
        """
        return super().__call__(inputs if others is None else (inputs, others), **options)

    def is_one(self, inputs: Any) -> bool:
        return (isinstance(inputs, tuple) and len(inputs) == 2 and isinstance(inputs[0], str)) or super().is_one(inputs)

    def read(self, item: Any, options: Any) -> list[Text]:
        one, others = _sides(item)
        return [(check_text(text), None) for text in (one, *([others] if isinstance(others, str) else others))]

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: Any) -> Any:
        vectors = normalized(np.stack(results))
        cosines: NDArray[np.float32] = vectors[1:] @ vectors[0]
        return float(cosines[0]) if isinstance(_sides(item)[1], str) else cosines

    def gather(self, answers: list[Any]) -> Any:
        """(N) for N pairs; a list of arrays where texts are compared to several."""
        return np.array(answers, np.float32) if all(isinstance(answer, float) for answer in answers) else answers


def normalized(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Vectors (N, E) of length one."""
    found: NDArray[np.float32] = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
    return found


def _sides(item: Any) -> tuple[Any, Any]:
    """A text, and one text or several to compare it to; an ``InputError`` for anything else."""
    if isinstance(item, Mapping):
        keys = next((keys for keys in _KEYS if item.keys() == set(keys)), None)
        item = item if keys is None else (item[keys[0]], item[keys[1]])
    if isinstance(item, list | tuple) and len(item) == 2 and isinstance(item[1], str | list | tuple):
        return item[0], item[1]
    raise InputError(
        f"a text and what it is compared to were expected, but the input is {str(item)[:60]!r}.",
        hint='Pass ("text", "other"), ("text", ["other", ...]) or {"text": ..., "text_pair": ...}.',
    )
