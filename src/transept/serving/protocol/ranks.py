"""Scores of pairs: documents by how well they answer a query, and texts by how near they are to others."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from transept.errors import InputError
from transept.pipelines.tasks.retrieval import RankingOptions
from transept.pipelines.text import NO_LIMIT
from transept.serving.protocol.base import Body, Count, Name, Text, Using
from transept.serving.protocol.embeddings import Texts, listed, options_of, places
from transept.serving.tasks import TaskModel, compute, rows_of

TASK = "text-ranking"


class WholePairs(RankingOptions):
    """Options under which no pair is cut."""

    truncation: None = None
    max_length: int = NO_LIMIT


class Document(Body):
    """A text in an object."""

    text: Text


def scored(
    model: TaskModel, pairs: Sequence[tuple[str, str]], where: Sequence[str], *, raw: bool, truncate: bool
) -> tuple[list[float], int]:
    """A score for each pair, which stands there in the request, and how many tokens were read.

    Raises:
        InputError, ContextLengthError: a pair that cannot be read, or a model with several classes.
    """
    pipeline = model.doing(TASK)
    given: dict[str, Any] = {"function_to_apply": "none" if raw else "sigmoid"}
    options = RankingOptions(**given) if truncate else WholePairs(**given)
    pipeline.check_options(options)
    rows = rows_of(pipeline, [{"query": one, "passages": [other]} for one, other in pairs], options, where)
    found = [float(results[0]) for results in compute(pipeline, rows, options)]
    return found, sum(row.length for each in rows for row in each)


class RankRequest(Using):
    """A query and documents; the model may be left out where one is for them."""

    model: Name | None = None
    query: Text
    documents: Annotated[list[Text | Document], Field(min_length=1, max_length=2**16)] | None = None
    texts: Texts | None = None
    top_n: Count | None = None
    return_documents: bool = False
    raw_scores: bool = False
    truncate: bool = False

    @property
    def items(self) -> list[str]:
        """The documents (``InputError`` where there are none, or two lists of them)."""
        if (self.documents is None) == (self.texts is None):
            raise InputError("a query needs either `documents` or `texts`.")
        return [each.text if isinstance(each, Document) else each for each in self.documents or self.texts or ()]

    def answer(self, model: TaskModel, task: str) -> tuple[Any, int]:
        """The answer, the best document first, and how many tokens were read."""
        texts = self.items
        pairs = [(self.query, text) for text in texts]
        where = places("texts" if self.documents is None else "documents", texts)
        scores, tokens = scored(model, pairs, where, raw=self.raw_scores, truncate=self.truncate)
        best = sorted(range(len(texts)), key=lambda index: -scores[index])[: self.top_n]
        results: list[dict[str, Any]] = [{"index": index, "relevance_score": scores[index]} for index in best]
        if self.return_documents:
            results = [each | {"document": {"text": texts[each["index"]]}} for each in results]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"id": f"rank-{uuid.uuid4().hex}", "model": model.name, "results": results, "usage": usage}, tokens


class ScoreRequest(Using):
    """Two texts or lists of them, of which one text stands for as many as the other list has."""

    model: Name | None = None
    text_1: Text | Texts
    text_2: Text | Texts
    raw_scores: bool = False
    truncate: bool = False

    @property
    def items(self) -> list[tuple[str, str]]:
        """The pairs (``InputError`` where the lists differ in length)."""
        ones, others = listed(self.text_1), listed(self.text_2)
        if 1 not in (len(ones), len(others)) and len(ones) != len(others):
            raise InputError(f"`text_1` has {len(ones)} texts and `text_2` has {len(others)}.", hint="Pass as many, or one.")
        count = max(len(ones), len(others))
        return list(zip(ones * (count // len(ones)), others * (count // len(others)), strict=True))

    def answer(self, model: TaskModel, task: str) -> tuple[Any, int]:
        """The answer, and how many tokens were read."""
        if task == TASK:
            pairs, ones, others = self.items, places("text_1", self.text_1), places("text_2", self.text_2)
            where = others if len(others) == len(pairs) else ones
            scores, tokens = scored(model, pairs, where, raw=self.raw_scores, truncate=self.truncate)
        else:
            scores, tokens = self._cosines(model)
        data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "data": data, "model": model.name, "usage": usage}, tokens

    def _cosines(self, model: TaskModel) -> tuple[list[float], int]:
        """Of the texts' vectors, each of which is computed once."""
        pipeline = model.doing("text-embedding")
        if self.raw_scores:
            raise InputError(f"the model {model.name!r} compares vectors, whose cosines have no raw scores.")
        pairs = self.items
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        options = options_of(self.truncate, normalize=True)
        where = dict(zip(listed(self.text_2), places("text_2", self.text_2), strict=True))
        where |= dict(zip(listed(self.text_1), places("text_1", self.text_1), strict=True))
        rows = rows_of(pipeline, texts, options, [where[text] for text in texts])
        vectors = {text: results[0] for text, results in zip(texts, compute(pipeline, rows, options), strict=True)}
        cosines = [float(np.dot(vectors[one], vectors[other])) for one, other in pairs]
        return cosines, sum(row.length for each in rows for row in each)
