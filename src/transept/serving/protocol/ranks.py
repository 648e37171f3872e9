"""Scores of pairs: documents by how well they answer a query, and texts by how near they are to others."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from transept.errors import InputError
from transept.pipelines.tasks.retrieval import RankingOptions
from transept.pipelines.text import NO_LIMIT
from transept.serving.protocol.base import Body, Count, Reading, Text
from transept.serving.protocol.embeddings import Texts, by_place, listed, options_of
from transept.serving.tasks import TaskModel

TASK = "text-ranking"


class WholePairs(RankingOptions):
    """Options under which no pair is cut."""

    truncation: None = None
    max_length: int = NO_LIMIT


class Document(Body):
    """A text in an object."""

    text: Text


async def scored(
    model: TaskModel, pairs: Mapping[str, tuple[str, str]], *, raw: bool, truncate: bool
) -> tuple[list[float], int]:
    """A score for each pair, by its place in the request, and how many tokens were read.

    Raises:
        InputError, ContextLengthError: a pair that cannot be read, or a model with several classes.
    """
    pipeline = model.doing(TASK)
    given: dict[str, Any] = {"function_to_apply": "none" if raw else "sigmoid"}
    options = RankingOptions(**given) if truncate else WholePairs(**given)
    pipeline.check_options(options)
    items = [{"query": one, "passages": [other]} for one, other in pairs.values()]
    results, tokens = await model.compute(pipeline, await model.rows_of(pipeline, items, options, [*pairs]), options)
    return [float(each[0]) for each in results], tokens


class RankRequest(Reading):
    """A query and documents; the model may be left out where one is for them."""

    query: Text
    documents: Annotated[list[Text | Document], Field(min_length=1, max_length=2**16)] | None = None
    texts: Texts | None = None
    top_n: Count | None = None
    return_documents: bool = False
    raw_scores: bool = False
    truncate: bool = False

    @property
    def items(self) -> dict[str, str]:
        """The documents by their places (``InputError`` where there are none, or two lists of them)."""
        if (self.documents is None) == (self.texts is None):
            raise InputError("a query needs either `documents` or `texts`.")
        if self.documents is None:
            return by_place("texts", self.texts)
        return by_place("documents", [each.text if isinstance(each, Document) else each for each in self.documents])

    async def answer(self, model: TaskModel, task: str) -> tuple[Any, int]:
        """The answer, the best document first, and how many tokens were read."""
        texts, pairs = [*self.items.values()], {place: (self.query, text) for place, text in self.items.items()}
        scores, tokens = await scored(model, pairs, raw=self.raw_scores, truncate=self.truncate)
        best = sorted(range(len(texts)), key=lambda index: -scores[index])[: self.top_n]
        results: list[dict[str, Any]] = [{"index": index, "relevance_score": scores[index]} for index in best]
        if self.return_documents:
            results = [each | {"document": {"text": texts[each["index"]]}} for each in results]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"id": f"rank-{uuid.uuid4().hex}", "model": model.name, "results": results, "usage": usage}, tokens


class ScoreRequest(Reading):
    """Two texts or lists of them, of which one text stands for as many as the other list has."""

    text_1: Text | Texts
    text_2: Text | Texts
    raw_scores: bool = False
    truncate: bool = False

    @property
    def items(self) -> dict[str, tuple[str, str]]:
        """The pairs, by the places of the list that has as many (``InputError`` where the lists differ in length)."""
        ones, others = by_place("text_1", self.text_1), by_place("text_2", self.text_2)
        if 1 not in (len(ones), len(others)) and len(ones) != len(others):
            raise InputError(f"`text_1` has {len(ones)} texts and `text_2` has {len(others)}.", hint="Pass as many, or one.")
        longer = ones if len(ones) > len(others) else others
        firsts, seconds = ([*each.values()] * (len(longer) // len(each)) for each in (ones, others))
        return dict(zip(longer, zip(firsts, seconds, strict=True), strict=True))

    async def answer(self, model: TaskModel, task: str) -> tuple[Any, int]:
        if task == TASK:
            scores, tokens = await scored(model, self.items, raw=self.raw_scores, truncate=self.truncate)
        else:
            scores, tokens = await self._cosines(model)
        data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)]
        return listed(model.name, data, tokens)

    async def _cosines(self, model: TaskModel) -> tuple[list[float], int]:
        """Of the texts' vectors, each of which is computed once."""
        pipeline = model.doing("text-embedding")
        if self.raw_scores:
            raise InputError(f"the model {model.name!r} compares vectors, whose cosines have no raw scores.")
        options = options_of(self.truncate, normalize=True)
        given = by_place("text_2", self.text_2) | by_place("text_1", self.text_1)
        places = {text: place for place, text in given.items()}
        rows = await model.rows_of(pipeline, [*places], options, [*places.values()])
        results, tokens = await model.compute(pipeline, rows, options)
        vectors = {text: each[0] for text, each in zip(places, results, strict=True)}
        return [float(np.dot(vectors[one], vectors[other])) for one, other in self.items.values()], tokens
