"""Texts to vectors: what search, clustering and retrieval start from (Reimers and Gurevych 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from transept.core.auto import AutoModel
from transept.core.model import Model
from transept.pipelines.base import to_numpy
from transept.pipelines.batching import Sample
from transept.pipelines.components import Components
from transept.pipelines.defaults import EMBEDDING_MODEL
from transept.pipelines.sentence import SentenceHead, read_sentence_head
from transept.pipelines.text import NO_LIMIT, TextPipeline


@dataclass(frozen=True)
class EmbeddingOptions:
    """Options of ``text-embedding``.

    Args:
        normalize: scale vectors to length one also where the checkpoint does not.
        prompt_name: one of the checkpoint's prompts to put before each text, such as ``query``; its default one, where it
            has one, when absent.
    """

    normalize: bool = False
    prompt_name: str | None = None


class TextEmbeddingPipeline(TextPipeline[EmbeddingOptions]):
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
        _ = self.size

    @property
    def max_length(self) -> int:
        return min(super().max_length, self.head.max_length or NO_LIMIT)

    @property
    def size(self) -> int:
        return self.head.size(self.model.backbone.dim)

    def check_options(self, options: EmbeddingOptions) -> None:
        self.prompt(options)

    def prompt(self, options: EmbeddingOptions) -> str:
        return self.head.prompt(options.prompt_name)

    def encode(self, texts: Sequence[Any], options: EmbeddingOptions) -> Sequence[Any]:
        prompt = self.prompt(options)
        if prompt or self.head.lower:
            whole = [prompt + text for text, _ in texts]
            texts = [(text.lower() if self.head.lower else text, None) for text in whole]
        return super().encode(texts, options)

    def forward(self, samples: Sequence[Sample], options: EmbeddingOptions) -> Sequence[NDArray[np.float32]]:
        batch = self.collate(samples)
        hidden = self.run(batch, self.model.backbone).last_hidden_state
        skip = 0 if self.head.pools_prompt else self.tokens_before(self.prompt(options))
        vectors = to_numpy(self.head(hidden, batch.get("attention_mask"), skip, batch.get("lengths")))
        return list(normalized(vectors) if options.normalize else vectors)

    def tokens_before(self, prompt: str) -> int:
        """How many tokens a prompt puts before a text."""
        if not prompt:
            return 0
        ids = self.tokenizer.encode_ids([prompt])[0]
        return len(ids) - (ids[-1] in self.tokenizer.all_special_ids)

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: EmbeddingOptions) -> Any:
        return results[0]

    def gather(self, answers: list[Any]) -> Any:
        """(N, E)."""
        return np.stack(answers) if answers else np.empty((0, self.size), np.float32)


def normalized(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Vectors (N, E) of length one."""
    found: NDArray[np.float32] = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
    return found
