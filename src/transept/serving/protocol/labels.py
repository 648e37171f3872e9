"""Classes of texts."""

from __future__ import annotations

from typing import Any

from transept.pipelines.text import NO_LIMIT
from transept.serving.protocol.base import Count, Reading, Text
from transept.serving.protocol.embeddings import Texts, by_place, listed
from transept.serving.tasks import TaskModel


class ClassifyRequest(Reading):
    """Texts, and how many classes to name of each."""

    input: Text | Texts
    top_k: Count | None = None
    truncate: bool = False

    @property
    def items(self) -> dict[str, str]:
        return by_place("input", self.input)

    async def answer(self, model: TaskModel, task: str) -> tuple[Any, int]:
        pipeline, texts = model.doing(task), [*self.items.values()]
        limit = None if self.truncate else NO_LIMIT
        options = pipeline.with_options({"top_k": None, "truncation": self.truncate, "max_length": limit})
        rows = await model.rows_of(pipeline, texts, options, [*self.items])
        results, tokens = await model.compute(pipeline, rows, options)
        data = []
        for index, given in enumerate(zip(texts, rows, results, strict=True)):
            scores = pipeline.answer(*given, options)
            data.append({"index": index, "label": scores[0]["label"], "scores": scores[: self.top_k]})
        return listed(model.name, data, tokens)
