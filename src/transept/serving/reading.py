"""Routes of models that read: what is asked of them is computed in batches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response

from transept.errors import InputError
from transept.serving.leaving import watched
from transept.serving.metrics import Metrics
from transept.serving.models import Models
from transept.serving.protocol.audio import read_form
from transept.serving.protocol.embeddings import EmbeddingsRequest, EmbedRequest
from transept.serving.protocol.labels import ClassifyRequest
from transept.serving.protocol.ranks import RankRequest, ScoreRequest
from transept.serving.protocol.tasks import TaskRequest
from transept.serving.protocol.tokens import DetokenizeRequest, TokenizeRequest
from transept.serving.tasks import TaskModel


class Asked(Protocol):
    """A request with its inputs, and the work of answering them."""

    @property
    def model(self) -> str | None:
        """The name that it asks for."""

    @property
    def items(self) -> Sequence[object]:
        """What is read."""

    def answer(self, model: TaskModel, task: str) -> tuple[object, int]:
        """The answer of that task, and how many tokens were read."""


def add_reading_routes(app: FastAPI, models: Models, metrics: Metrics, max_texts: int) -> None:
    """Give the application the routes of tasks; a request may have so many texts."""

    async def answer(body: Asked, request: Request, task: str) -> Response:
        model = models.reading(body.model, task)

        async def computed() -> Response:
            if (count := len(body.items)) > max_texts:
                raise InputError(f"the request has {count} inputs, but this server takes {max_texts}.", hint="Send fewer.")
            found, tokens = await model.ask(lambda: body.answer(model, task), count)
            metrics.prompt_tokens.labels(model.name).inc(tokens)
            return found if isinstance(found, Response) else JSONResponse(found)

        return await watched(request, computed())

    @app.post("/v1/embeddings")
    async def embeddings(body: EmbeddingsRequest, request: Request) -> Response:
        """Vectors of texts."""
        return await answer(body, request, "text-embedding")

    @app.post("/embed")
    async def embed(body: EmbedRequest, request: Request) -> Response:
        """Vectors of texts, and nothing around them."""
        return await answer(body, request, "text-embedding")

    @app.post("/v1/rerank")
    @app.post("/v2/rerank")
    @app.post("/rerank")
    async def rank(body: RankRequest, request: Request) -> Response:
        """Documents by how well they answer a query."""
        return await answer(body, request, "text-ranking")

    @app.post("/v1/score")
    async def score(body: ScoreRequest, request: Request) -> Response:
        """How near pairs of texts are."""
        return await answer(body, request, models.first_of(body.model, "text-ranking", "text-similarity"))

    @app.post("/v1/classify")
    async def classify(body: ClassifyRequest, request: Request) -> Response:
        """Classes of texts."""
        return await answer(body, request, "text-classification")

    @app.post("/v1/audio/transcriptions")
    async def transcribe(request: Request) -> Response:
        """What is said in a recording, which a form holds."""
        return await answer(await read_form(request), request, "automatic-speech-recognition")

    @app.post("/v1/tasks/{task}")
    async def do(task: str, body: TaskRequest, request: Request) -> Response:
        """What the pipeline of that name answers."""
        return await answer(body, request, task)

    _add_token_routes(app, models)


def _add_token_routes(app: FastAPI, models: Models) -> None:
    @app.post("/tokenize")
    async def tokenize(body: TokenizeRequest) -> Response:
        """Tokens of a text or of messages."""
        return JSONResponse(await asyncio.to_thread(body.answer, models.get(body.model)))

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> Response:
        """The text of tokens."""
        return JSONResponse(await asyncio.to_thread(body.answer, models.get(body.model)))
