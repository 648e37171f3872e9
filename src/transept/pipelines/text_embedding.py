"""Texts to vectors: what search, clustering and retrieval start from (Reimers and Gurevych 2019)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from transept.auto import AutoModel
from transept.backbone import Model
from transept.errors import TranseptError
from transept.pipelines.base import chosen_options, to_numpy
from transept.pipelines.batching import Sample
from transept.pipelines.defaults import EMBEDDING_MODEL
from transept.pipelines.parts import Parts
from transept.pipelines.sentence import SentenceHead, prompted, read_sentence_head
from transept.pipelines.text import TextPipeline
from transept.preprocess.text.auto import AutoTokenizer


@dataclass(frozen=True)
class EmbeddingOptions:
    """Options of ``text-embedding``.

    Args:
        normalize: scale vectors to length one; as the checkpoint says when absent.
        prompt_name: one of the checkpoint's prompts to put before each text, such as ``query``.
    """

    normalize: bool | None = None
    prompt_name: str | None = None


class TextEmbeddingPipeline(TextPipeline[EmbeddingOptions]):
    """One float32 vector (E) for a text, an array (N, E) for N of them.

    Args:
        model: a backbone in evaluation mode.
        tokenizer: of the same checkpoint.
        head: how states become vectors; the mean of all tokens when absent.
        options, batching: see :class:`transept.pipelines.base.Pipeline`.
    """

    task = "text-embedding"
    default_model = EMBEDDING_MODEL

    def __init__(
        self,
        model: Model,
        tokenizer: Any,
        options: EmbeddingOptions | None = None,
        *,
        head: SentenceHead | None = None,
        **batching: Any,
    ) -> None:
        super().__init__(model, tokenizer, options or EmbeddingOptions(), **batching)
        self.head = head or SentenceHead()

    @classmethod
    def build(cls, parts: Parts, options: Mapping[str, Any], **batching: Any) -> Self:
        """Load the backbone, its tokenizer and what makes vectors of its states."""
        model, tokenizer = parts.model(AutoModel), parts.part("tokenizer", AutoTokenizer.from_pretrained)
        head = SentenceHead() if parts.source is None else read_sentence_head(parts.source, model.device)
        return cls(model, tokenizer, chosen_options(EmbeddingOptions(), options, cls.task), head=head, **batching)

    @property
    def max_length(self) -> int:
        """What the checkpoint was trained with, if it says so."""
        return min(super().max_length, self.head.max_length or 2**31)

    @property
    def size(self) -> int:
        """E, the size of the vectors."""
        if self.head.dense:
            return self.head.dense[-1].linear.out_features
        return self.model.backbone.dim * len(self.head.poolings)

    def prepare(self, items: Sequence[Any], options: EmbeddingOptions) -> list[list[Sample] | TranseptError]:
        """One row a text, after the prompt."""
        if options.prompt_name is None and self.head.default_prompt is None:
            return super().prepare(items, options)
        texts = [prompted([item], self.head, options.prompt_name)[0] if isinstance(item, str) else item for item in items]
        return super().prepare(texts, options)

    def forward(self, samples: Sequence[Sample], options: EmbeddingOptions) -> Sequence[NDArray[np.float32]]:
        """Vectors of a batch."""
        batch = self.collate(samples)
        hidden = self.model.backbone(**batch).last_hidden_state
        vectors: NDArray[np.float32] = to_numpy(self.head(hidden, batch.get("attention_mask")))
        if options.normalize and not self.head.normalize:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
        return list(vectors)

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: EmbeddingOptions) -> Any:
        """The vector."""
        return results[0]

    def gather(self, answers: list[Any]) -> NDArray[np.float32]:
        """(N, E)."""
        return np.stack(answers) if answers else np.empty((0, self.size), np.float32)
