"""Embeddings: vectors of texts."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from transept.errors import InputError
from transept.pipelines.batching import Sample
from transept.pipelines.tasks.retrieval import EmbeddingOptions, normalized
from transept.pipelines.text import NO_LIMIT
from transept.serving.errors import FieldError
from transept.serving.protocol.base import Count, Name, Text, Token, Using
from transept.serving.tasks import TaskModel, check_lengths, compute, rows_of

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


def listed(given: Any) -> list[Any]:
    """Texts, or lists of ids, of which one may stand alone."""
    return given if isinstance(given, list) and not isinstance(given[0], int) else [given]


def places(field: str, given: Any) -> list[str]:
    """The path of each of them in the request."""
    return [f"{field}.{number}" for number in range(len(given))] if listed(given) is given else [field]


class Vectors(Using):
    """What both routes take beside their texts."""

    dimensions: Count | None = None
    truncate: bool = False
    prompt_name: Annotated[str, Field(max_length=256)] | None = None

    @property
    def places(self) -> list[str]:
        """Where each input stands in the request."""
        raise NotImplementedError

    def computed(self, model: TaskModel, items: Sequence[Any], normalize: bool) -> tuple[NDArray[np.float32], int]:
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
        rows = self._rows(model, items, options)
        vectors = np.stack([results[0] for results in compute(pipeline, rows, options)])
        if self.dimensions is not None:
            vectors = normalized(vectors[:, : self.dimensions])
        return vectors, sum(row.length for each in rows for row in each)

    def _rows(self, model: TaskModel, items: Sequence[Any], options: EmbeddingOptions) -> list[list[Sample]]:
        pipeline, most = model.doing(TASK), model.vocabulary - 1
        if isinstance(items[0], str):
            return rows_of(pipeline, items, options, self.places)
        if pipeline.head.prompt(options.prompt_name):
            raise InputError("ids have no prompt in front of them, but this model's texts do.", hint="Pass texts.")
        if (wrong := next((token for ids in items for token in ids if token > most), None)) is not None:
            raise InputError(f"the id {wrong} is no token: there are those from 0 to {most}.")
        rows = [[Sample.of(ids[: pipeline.max_length] if self.truncate else ids)] for ids in items]
        check_lengths(pipeline, rows, self.places)
        return rows


class EmbeddingsRequest(Vectors):
    """Texts or ids, as clients of OpenAI's API send them."""

    model: Name
    input: Input
    encoding_format: Literal["float", "base64"] | None = None
    user: Annotated[str, Field(max_length=512)] | None = None  # taken, and of no effect

    @property
    def items(self) -> list[Any]:
        """What is read."""
        return listed(self.input)

    @property
    def places(self) -> list[str]:
        """Where it stands in the request."""
        return places("input", self.input)

    def answer(self, model: TaskModel, task: str) -> tuple[Any, int]:
        """The answer, and how many tokens were read."""
        vectors, tokens = self.computed(model, self.items, normalize=False)
        data = [{"object": "embedding", "index": i, "embedding": self._told(each)} for i, each in enumerate(vectors)]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "data": data, "model": self.model, "usage": usage}, tokens

    def _told(self, vector: NDArray[np.float32]) -> Any:
        return (
            base64.b64encode(vector.astype("<f4").tobytes()).decode() if self.encoding_format == "base64" else vector.tolist()
        )


class EmbedRequest(Vectors):
    """Texts or ids, as clients of Text Embeddings Inference send them; the model may be left out where one is for them."""

    model: Name | None = None
    inputs: Input
    normalize: bool = True

    @property
    def items(self) -> list[Any]:
        """What is read."""
        return listed(self.inputs)

    @property
    def places(self) -> list[str]:
        """Where it stands in the request."""
        return places("inputs", self.inputs)

    def answer(self, model: TaskModel, task: str) -> tuple[Any, int]:
        """The vectors alone, and how many tokens were read."""
        vectors, tokens = self.computed(model, self.items, normalize=self.normalize)
        return vectors.tolist(), tokens
