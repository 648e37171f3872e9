"""Texts that are read: their vectors, their classes, and scores of pairs of them."""

from __future__ import annotations

import base64
import uuid
from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import Field
from starlette.responses import Response

from transept.errors import InputError
from transept.pipelines.base import Options
from transept.pipelines.batching import Sample
from transept.pipelines.tasks.retrieval import EmbeddingOptions, RankingOptions, normalized
from transept.pipelines.text import NO_LIMIT
from transept.serving.errors import FieldError
from transept.serving.protocol.base import Body, Count, Name, Reading, Text, Token
from transept.serving.tasks import TaskModel, check_lengths

EMBEDDING, RANKING = "text-embedding", "text-ranking"
Ids = Annotated[list[Token], Field(min_length=1, max_length=2**22)]
Texts = Annotated[list[Text], Field(min_length=1, max_length=2**16)]
Input = Text | Texts | Ids | Annotated[list[Ids], Field(min_length=1, max_length=2**16)]


class Whole(Options):
    """Options under which no text is cut."""

    truncation: None = None
    max_length: int = NO_LIMIT


class WholeTexts(Whole, EmbeddingOptions):
    """The same of vectors."""


class WholePairs(Whole, RankingOptions):
    """The same of pairs."""


def options_of(truncate: bool, **given: Any) -> EmbeddingOptions:
    """The options under which texts are cut or not."""
    return EmbeddingOptions(**given) if truncate else WholeTexts(**given)


def by_place(field: str, given: Any) -> dict[str, Any]:
    """Texts or lists of ids, of which one may stand alone, each by its path in the request."""
    if isinstance(given, list) and not isinstance(given[0], int):
        return {f"{field}.{number}": each for number, each in enumerate(given)}
    return {field: given}


def listed(model: str, data: list[dict[str, Any]], tokens: int) -> tuple[dict[str, Any], int]:
    """An answer that lists one thing for each input, and how many tokens were read."""
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}, tokens


def _written(answer: Any) -> Response:
    """An answer with arrays of float32 as JSON, each number in as few digits as tell it from all others."""
    return Response(orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY), media_type="application/json")


class Vectors(Reading):
    """What both routes take beside their texts."""

    dimensions: Count | None = None
    truncate: bool = False
    prompt_name: Annotated[str, Field(max_length=256)] | None = None

    @property
    @abstractmethod
    def items(self) -> dict[str, Any]: ...

    async def computed(self, model: TaskModel, normalize: bool) -> tuple[NDArray[np.float32], int]:
        """Vectors (N, E), and how many tokens were read.

        Raises:
            InputError, ContextLengthError: a text that cannot be read, or more dimensions than there are.
        """
        pipeline = model.doing(EMBEDDING)
        if self.dimensions is not None and self.dimensions > pipeline.size:
            what = f"`dimensions` is {self.dimensions}, but the model's vectors have {pipeline.size}."
            raise FieldError("dimensions", what)
        options = options_of(self.truncate, normalize=normalize, prompt_name=self.prompt_name)
        pipeline.check_options(options)
        results, tokens = await model.compute(pipeline, await self._rows(model, pipeline, options), options)
        vectors = np.stack([each[0] for each in results])
        return vectors if self.dimensions is None else normalized(vectors[:, : self.dimensions]), tokens

    async def _rows(self, model: TaskModel, pipeline: Any, options: EmbeddingOptions) -> list[list[Sample]]:
        places, items, most = [*self.items], [*self.items.values()], model.vocabulary - 1
        if isinstance(items[0], str):
            return await model.rows_of(pipeline, items, options, places)
        if pipeline.head.prompt(options.prompt_name):
            raise InputError("ids have no prompt in front of them, but this model's texts do.", hint="Pass texts.")
        if (wrong := next((token for ids in items for token in ids if token > most), None)) is not None:
            raise InputError(f"the id {wrong} is no token: there are those from 0 to {most}.")
        rows = [[Sample.of(ids[: pipeline.max_length] if self.truncate else ids)] for ids in items]
        check_lengths(pipeline, rows, places)
        return rows


class EmbeddingsRequest(Vectors):
    """Texts or ids, as clients of OpenAI's API send them."""

    model: Name
    input: Input
    encoding_format: Literal["float", "base64"] | None = None
    user: Annotated[str, Field(max_length=512)] | None = None  # taken, and of no effect

    @property
    def items(self) -> dict[str, Any]:
        return by_place("input", self.input)

    async def answer(self, model: TaskModel, task: str) -> tuple[Any, int]:
        vectors, tokens = await self.computed(model, normalize=False)
        data = [{"object": "embedding", "index": i, "embedding": self._told(each)} for i, each in enumerate(vectors)]
        answer, tokens = listed(self.model, data, tokens)
        return _written(answer), tokens

    def _told(self, vector: NDArray[np.float32]) -> Any:
        return base64.b64encode(vector.astype("<f4").tobytes()).decode() if self.encoding_format == "base64" else vector


class EmbedRequest(Vectors):
    """Texts or ids, as clients of Text Embeddings Inference send them; the model may be left out where one is for them."""

    inputs: Input
    normalize: bool = True

    @property
    def items(self) -> dict[str, Any]:
        return by_place("inputs", self.inputs)

    async def answer(self, model: TaskModel, task: str) -> tuple[Any, int]:
        vectors, tokens = await self.computed(model, normalize=self.normalize)
        return _written(vectors), tokens


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
    pipeline = model.doing(RANKING)
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
        if task == RANKING:
            scores, tokens = await scored(model, self.items, raw=self.raw_scores, truncate=self.truncate)
        else:
            scores, tokens = await self._cosines(model)
        data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)]
        return listed(model.name, data, tokens)

    async def _cosines(self, model: TaskModel) -> tuple[list[float], int]:
        """Of the texts' vectors, each of which is computed once."""
        pipeline = model.doing(EMBEDDING)
        if self.raw_scores:
            raise InputError(f"the model {model.name!r} compares vectors, whose cosines have no raw scores.")
        options = options_of(self.truncate, normalize=True)
        given = by_place("text_2", self.text_2) | by_place("text_1", self.text_1)
        places = {text: place for place, text in given.items()}
        rows = await model.rows_of(pipeline, [*places], options, [*places.values()])
        results, tokens = await model.compute(pipeline, rows, options)
        vectors = {text: each[0] for text, each in zip(places, results, strict=True)}
        return [float(np.dot(vectors[one], vectors[other])) for one, other in self.items.values()], tokens
