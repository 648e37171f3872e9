"""Classes of texts."""

from __future__ import annotations

from typing import Any

from transept.pipelines.text import NO_LIMIT
from transept.serving.protocol.base import Count, Name, Text, Using
from transept.serving.protocol.embeddings import Texts, listed, places
from transept.serving.tasks import TaskModel, compute, rows_of

TASK = "text-classification"


class ClassifyRequest(Using):
    """Texts, and how many classes to name of each."""

    model: Name | None = None
    input: Text | Texts
    top_k: Count | None = None
    truncate: bool = False

    @property
    def items(self) -> list[str]:
        """What is read."""
        return listed(self.input)

    def answer(self, model: TaskModel, task: str) -> tuple[Any, int]:
        """The answer, and how many tokens were read."""
        pipeline, texts = model.doing(TASK), self.items
        limit = None if self.truncate else NO_LIMIT
        options = pipeline.with_options({"top_k": None, "truncation": self.truncate, "max_length": limit})
        rows = rows_of(pipeline, texts, options, places("input", self.input))
        data = []
        for index, results in enumerate(compute(pipeline, rows, options)):
            scores = pipeline.answer(texts[index], rows[index], results, options)
            data.append({"index": index, "label": scores[0]["label"], "scores": scores[: self.top_k]})
        tokens = sum(row.length for each in rows for row in each)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "data": data, "model": model.name, "usage": usage}, tokens
