"""Routes of models that read: what is asked of them is computed in batches."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from functools import partial

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response

from transept.errors import InputError
from transept.serving.leaving import watched
from transept.serving.metrics import Metrics
from transept.serving.protocol.audio import read_form
from transept.serving.protocol.base import Reading
from transept.serving.protocol.embeddings import EmbeddingsRequest, EmbedRequest
from transept.serving.protocol.labels import ClassifyRequest
from transept.serving.protocol.ranks import RankRequest, ScoreRequest
from transept.serving.protocol.tasks import TaskRequest
from transept.serving.protocol.tokens import DetokenizeRequest, TokenizeRequest
from transept.serving.store import Models, can
from transept.serving.tasks import WRITING


def add_reading_routes(app: FastAPI, models: Models, metrics: Metrics, max_texts: int) -> None:
    """Give the application the routes of tasks; a request may have so many texts."""
    answer = partial(_answer, models, metrics, max_texts)

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
        return await answer(body, request, "text-ranking", "text-similarity")

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


async def _answer(models: Models, metrics: Metrics, max_texts: int, body: Reading, request: Request, *tasks: str) -> Response:
    """The answer of the first of some tasks that the model is for, unless its client leaves before."""

    async def computed() -> Response:
        served = await models.find(body.model, *tasks)
        if served.task in WRITING:
            raise InputError(f"the model {served.name!r} writes.", hint="Ask /v1/chat/completions or /v1/completions.")
        task = next(each for each in tasks if can(served, each))
        if (count := len(body.items)) > max_texts:
            raise InputError(f"the request has {count} inputs, but this server takes {max_texts}.", hint="Send fewer.")
        with ExitStack() as held:
            model = await models.hold(served, held, body.keep_alive)
            found, tokens = await model.ask(lambda: body.answer(model, task), count)
            metrics.prompt_tokens.labels(model.name).inc(tokens)
            return found if isinstance(found, Response) else JSONResponse(found)

    return await watched(request, computed())


def _add_token_routes(app: FastAPI, models: Models) -> None:
    async def answer(body: TokenizeRequest | DetokenizeRequest) -> Response:
        with ExitStack() as held:
            model = await models.hold(await models.find(body.model), held, body.keep_alive)
            return JSONResponse(await asyncio.to_thread(body.answer, model))

    @app.post("/tokenize")
    async def tokenize(body: TokenizeRequest) -> Response:
        """Tokens of a text or of messages."""
        return await answer(body)

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> Response:
        """The text of tokens."""
        return await answer(body)
