"""Embeddings: vectors of texts."""

from __future__ import annotations

import base64
from abc import abstractmethod
from typing import Annotated, Any, Literal

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import Field
from starlette.responses import Response

from transept.errors import InputError
from transept.pipelines.batching import Sample
from transept.pipelines.tasks.retrieval import EmbeddingOptions, normalized
from transept.pipelines.text import NO_LIMIT
from transept.serving.errors import FieldError
from transept.serving.protocol.base import Count, Name, Reading, Text, Token
from transept.serving.tasks import TaskModel, check_lengths

TASK = "text-embedding"
Ids = Annotated[list[Token], Field(min_length=1, max_length=2**22)]
Texts = Annotated[list[Text], Field(min_length=1, max_length=2**16)]
Input = Text | Texts | Ids | Annotated[list[Ids], Field(min_length=1, max_length=2**16)]


class WholeTexts(EmbeddingOptions):
    """Options under which no text is cut."""

    truncation: None = None
    max_length: int = NO_LIMIT


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
        pipeline = model.doing(TASK)
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
