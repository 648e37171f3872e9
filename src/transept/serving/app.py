"""The ASGI application: its routes, and what stands before them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from transept.errors import InputError, TranseptError
from transept.serving.answering import Answers, Chunk
from transept.serving.doors import Door, Options, Traffic
from transept.serving.engine.constraint import Constraint
from transept.serving.errors import ContextLengthError, FieldError
from transept.serving.metrics import Metrics
from transept.serving.models import WritingModel
from transept.serving.page.routes import add_page
from transept.serving.protocol.audio import read_form
from transept.serving.protocol.base import Reading, Writing, to_json
from transept.serving.protocol.chat import ChatRequest
from transept.serving.protocol.completions import CompletionRequest
from transept.serving.protocol.models import LoadRequest, UnloadRequest
from transept.serving.protocol.responses import ResponsesRequest, ResponseTeller
from transept.serving.protocol.tasks import TaskRequest
from transept.serving.protocol.texts import ClassifyRequest, EmbeddingsRequest, EmbedRequest, RankRequest, ScoreRequest
from transept.serving.protocol.tokens import DetokenizeRequest, TokenizeRequest
from transept.serving.replies import reply, reply_to, reply_to_body
from transept.serving.store import Models, can
from transept.serving.tasks import WRITING
from transept.storage.files import parse_json

Teller = Writing | ResponseTeller  # what makes chunks of pieces
_QUIET = 15.0  # seconds after which a stream says that it lives
_COMPILES = 2.0  # seconds that a schema may take
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def make_app(models: Models, options: Options | None = None) -> FastAPI:
    """The application that serves models."""
    options, metrics = options or Options(), Metrics(models)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        models.start(asyncio.get_running_loop())
        yield
        await asyncio.to_thread(models.close, options.grace)

    shown = "/openapi.json" if options.docs else None
    docs = "/docs" if options.docs else None
    tells: Any = {"tracing": False, "metrics": False, "logs": False}  # else looked up for each request; /metrics tells more
    app = FastAPI(title="transept", lifespan=lifespan, openapi_url=shown, docs_url=docs, redoc_url=None, telemetry=tells)
    app.state.options, app.state.traffic, app.state.models = options, Traffic(), models
    app.add_middleware(Door, options=options, traffic=app.state.traffic, count=metrics.count)
    app.add_exception_handler(RequestValidationError, _refuse_body)
    app.add_exception_handler(HTTPException, _refuse_route)
    _add_reading_routes(app, models, metrics, options.max_texts)  # first, since the first is found soonest
    _add_routes(app, models, metrics, options)
    _add_model_routes(app, models)
    if options.page:
        add_page(app)
    return app


async def _refuse_body(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return reply_to_body(error.errors(), error.body)


async def _refuse_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = error.status_code
    found = reply(status, "there is no such route." if status == 404 else "this route does not take that method.")
    found.headers.update(error.headers or {})
    return found


def _add_routes(app: FastAPI, models: Models, metrics: Metrics, options: Options) -> None:
    @app.get("/health")
    async def health() -> Response:
        """200 where the engines answer."""
        if models.are_healthy(options.watchdog):
            return JSONResponse({"status": "ok"})
        return reply(503, "the engine does not answer.", "engine_dead")

    @app.get("/ready")
    async def ready() -> Response:
        """200 where the models are loaded and answer, and requests are taken."""
        if app.state.traffic.draining:
            return reply(503, "the server ends.", "draining")
        return await health()

    @app.get("/metrics")
    async def numbers() -> Response:
        """Counters and gauges in the format of Prometheus."""
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    @app.post("/v1/completions")
    async def complete(body: CompletionRequest, request: Request) -> Response:
        """Texts that go on from prompts."""
        return await _answer(models, metrics, body, request)

    @app.post("/v1/chat/completions")
    async def chat(body: ChatRequest, request: Request) -> Response:
        """The next turn of a conversation."""
        return await _answer(models, metrics, body, request)

    @app.post("/v1/responses")
    async def respond(body: ResponsesRequest, request: Request) -> Response:
        """The items that follow some."""
        return await _answer(models, metrics, body.chat, request, ResponseTeller(body))


def _add_model_routes(app: FastAPI, models: Models) -> None:
    @app.get("/v1/models")
    async def listed() -> Any:
        """The models that can be asked for."""
        found = await models.look()
        for served in found:
            await models.examine(served)
        return {"object": "list", "data": [served.told() for served in found]}

    @app.get("/v1/models/{name:path}")
    async def one(name: str) -> Any:
        """One of them."""
        return (await models.find(name)).told()

    @app.post("/v1/models/load")
    async def load(body: LoadRequest) -> Any:
        """Load one before it is asked."""
        served = await models.find(body.model)
        with ExitStack() as held:
            await models.hold(served, held, body.keep_alive)
        return served.told()

    @app.post("/v1/models/unload")
    async def unload(body: UnloadRequest) -> Any:
        """Take one away, once its answers are out."""
        served = await models.find(body.model)
        await models.unload(served)
        return served.told()


def _add_reading_routes(app: FastAPI, models: Models, metrics: Metrics, max_texts: int) -> None:
    answer = partial(_read, models, metrics, max_texts)

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
        return await answer(body, request, "text-ranking", "text-embedding")

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


async def _read(models: Models, metrics: Metrics, max_texts: int, body: Reading, request: Request, *tasks: str) -> Response:
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
            found, tokens = await model.ask(task, lambda: body.answer(model, task), count)
            metrics.prompt_tokens.labels(model.name).inc(tokens)
            return found if isinstance(found, Response) else JSONResponse(found)

    return await _watched(request, computed())


async def _answer(
    models: Models, metrics: Metrics, body: CompletionRequest | ChatRequest, request: Request, told: Teller | None = None
) -> Response:
    teller = told or body
    served = await models.find(body.model, *WRITING)
    with ExitStack() as held:
        model = await models.hold(served, held, body.keep_alive)
        if (body.n or 1) > (rows := model.engine.scheduler.max_rows):
            what = f"`n` is {body.n}, but this model writes {rows} answers at once at most."
            return reply(400, what, "invalid_value", "n")
        answers = await _ask(model, body, request, teller.reads)
        held.callback(_count, metrics, model.name, answers)
        if not body.stream:
            return await _watched(request, _whole(teller, answers))
        return _Stream(_stream(teller, answers), held.pop_all())


async def _ask(model: WritingModel, body: CompletionRequest | ChatRequest, request: Request, field: str) -> Answers:
    """The answers to a request, which are being written; the prompts are made of that field."""
    prompts = await asyncio.to_thread(body.prompts, model)
    if (form := body.form) is not None:
        constraint = await _compiled(model, form)
        for prompt in prompts:
            prompt.constraint = constraint
    salt = "\0".join((body.cache_salt or "", request.headers.get("authorization", ""))).encode()
    answers = Answers(model, prompts, streams=bool(body.stream), n=body.n or 1, seed=body.seed, salt=salt)
    try:
        answers.submit()
    except ContextLengthError as error:
        error.param = field
        raise
    return answers


class _Stream(StreamingResponse):
    """Chunks as events of a server; what is held meanwhile is let go at the end, also of a stream that never began."""

    def __init__(self, chunks: AsyncIterator[bytes], held: ExitStack) -> None:
        super().__init__(chunks, media_type="text/event-stream", headers=_HEADERS)
        self.held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self.held:
            await super().__call__(scope, receive, send)


async def _compiled(model: WritingModel, form: Callable[[WritingModel], Constraint]) -> Constraint:
    """A schema that is compiled, unless that takes too long (``InputError``)."""
    await asyncio.to_thread(lambda: model.grammars)
    try:
        return await asyncio.wait_for(asyncio.to_thread(form, model), _COMPILES)
    except TimeoutError:
        raise FieldError("response_format", "the schema takes too long to compile.", hint="Use a simpler one.") from None


def _count(metrics: Metrics, name: str, answers: Answers) -> None:
    """Count the tokens of a request that is over, and cancel what is left of it."""
    if answers.close():
        metrics.cancelled.labels(name).inc()
    usage = answers.usage
    metrics.prompt_tokens.labels(name).inc(usage.prompt)
    metrics.cached_tokens.labels(name).inc(usage.cached)
    metrics.new_tokens.labels(name).inc(usage.written)


async def _watched(request: Request, answer: Awaitable[Response]) -> Response:
    """An answer that is not streamed, unless its client leaves before it is there."""
    work, left = asyncio.ensure_future(answer), asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait((work, left), return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        return Response(status_code=499)  # nobody reads it
    finally:
        for task in (work, left):
            task.cancel()
        await asyncio.gather(work, left, return_exceptions=True)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _whole(teller: Teller, answers: Answers) -> Response:
    pieces: list[list[Any]] = [[] for _ in range(len(answers))]
    async for arrived in answers.pieces(_QUIET):
        for piece in arrived:
            pieces[piece.choice].append(piece)
    return JSONResponse(teller.whole(pieces, answers.usage))


async def _stream(teller: Teller, answers: Answers) -> AsyncIterator[bytes]:
    """Chunks as events of a server; an error in the middle is the last of them."""
    try:
        if begins := _events(teller.begins(len(answers))):
            yield begins
        async for pieces in answers.pieces(_QUIET):
            events = _events(chunk for piece in pieces for chunk in teller.tells(piece))
            if events or not pieces:
                yield events or b": \n\n"
        yield _events(teller.ends(answers.usage))
    except TranseptError as error:
        yield _events(teller.fails(parse_json(bytes(reply_to(error).body).decode())))


def _events(chunks: Iterable[Chunk]) -> bytes:
    return "".join(map(_event, chunks)).encode()


def _event(chunk: Chunk) -> str:
    if isinstance(chunk, str):
        return f"data: {chunk}\n\n"
    name = f"event: {chunk['type']}\n" if "type" in chunk else ""
    return f"{name}data: {to_json(chunk)}\n\n"
