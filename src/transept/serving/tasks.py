"""Models that are served for a task: what any pipeline answers, in batches of many requests."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from transept.core.model import Model
from transept.errors import InputError, TranseptError
from transept.pipelines import ALIASES, task_class, task_names
from transept.pipelines.base import TaskPipeline
from transept.pipelines.batching import Sample, batches, flat
from transept.pipelines.components import Components
from transept.serving.batcher import Batcher
from transept.serving.errors import ContextLengthError, FieldError, QueueFullError

R = TypeVar("R")
WRITES, SEES = WRITING = ("text-generation", "image-text-to-text")  # what an engine answers, the latter of pictures too
_THREADS = 32  # that make rows of long inputs, and wait for batches of pipelines
_SHORT, _EACH = 4096, 64  # characters of texts that become rows at once, since a thread costs more, and what each counts beside
_GONE: contextvars.ContextVar[threading.Event] = contextvars.ContextVar("gone")


@dataclass
class _Loaded(Components):
    """What a model that is there already was loaded from."""

    loaded: Model | None = None

    def model(self, auto: Any, *, pooler: bool = True) -> Model:
        assert self.loaded is not None
        return self.loaded


class TaskModel:
    """A model with the pipeline of its task, and of others that need no other head.

    Args:
        name: by which clients ask for it.
        source: a folder or a repository.
        task: the pipeline's name; told by the checkpoint when absent.
        loading: how it is loaded: ``device``, ``dtype`` and ``revision``.
        budget: positions of a batch at most.
        max_waiting: while so many inputs wait, no request is taken.
    """

    def __init__(
        self,
        name: str,
        source: str,
        task: str | None = None,
        loading: Mapping[str, Any] | None = None,
        *,
        budget: int = 4096,
        max_waiting: int = 256,
    ) -> None:
        parts = components(source, loading or {})
        task = parts.task(task_names()) if task is None else ALIASES.get(task, task)
        self.name, self.task, self.budget, self.max_waiting = name, task, budget, max_waiting
        made = task_class(task).build(parts, budget=budget)
        self.pipeline, self.model = made, made.model
        self.parts = _Loaded(**{name: getattr(parts, name) for name in Components.__dataclass_fields__}, loaded=self.model)
        self.batcher = self.worker = Batcher(budget, padded=made.padded, gives_way=self.model.device.type == "cpu")
        if self.model.can_generate():  # by many passes
            self.model.register_forward_pre_hook(self.batcher.pause)
        self.asked = 0  # inputs of requests that are not answered
        self._pipelines: dict[str, Any] = {task: self._batched(made)}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix=f"transept-{name}")

    def _batched(self, made: Any) -> Any:
        """The pipeline, whose batches are those of all requests from now on."""
        made.alone = forward = made.forward
        made.forward = lambda samples, options: self.batcher.run(forward, _GONE.get(), samples, options)
        return made

    def doing(self, task: str) -> Any:
        """The pipeline of a task that the model can do (``InputError`` where it lacks what that needs)."""
        task = ALIASES.get(task, task)
        with self._lock:
            if task not in self._pipelines:
                self._pipelines[task] = self._batched(task_class(task).build(self.parts, budget=self.budget))
            return self._pipelines[task]

    async def ask(self, task: str, answer: Callable[[], Awaitable[R]], inputs: int) -> R:
        """The answer to a request with so many inputs of a task.

        Raises:
            QueueFullError: too many inputs wait.
        """
        if self.asked >= self.max_waiting:
            raise QueueFullError(f"{self.asked} inputs wait already.", self.batcher.seconds_for(self.asked))
        self.asked += inputs
        try:
            if ALIASES.get(task, task) not in self._pipelines:
                await asyncio.to_thread(self.doing, task)
            return await answer()
        finally:
            self.asked -= inputs

    async def in_thread(self, work: Callable[[], R]) -> R:
        """What some work gives, such as a call of a pipeline; what it computes is dropped where the caller is cancelled."""
        gone, context = threading.Event(), contextvars.copy_context()
        context.run(_GONE.set, gone)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, partial(context.run, work))
        finally:
            gone.set()

    async def rows_of(
        self, pipeline: TaskPipeline[Any], items: Sequence[Any], options: Any, places: Sequence[str]
    ) -> list[list[Sample]]:
        """Rows of texts, each of which the model can read; ``places`` says where in the request each of them stands.

        Raises:
            ContextLengthError: a text is too long.
            FieldError: a text cannot be read.
        """
        work, length = partial(_rows_of, pipeline, items, options, places), sum(len(str(item)) + _EACH for item in items)
        return work() if length <= _SHORT else await self.in_thread(work)

    async def compute(self, pipeline: Any, made: Sequence[list[Sample]], options: Any) -> tuple[list[list[Any]], int]:
        """What the model makes of the rows of each input, in batches with those of others, and how many tokens it reads.

        Raises:
            TranseptError: the first error among the rows.
        """
        samples = flat(made)
        for batch in batches(samples, pipeline.budget, padded=pipeline.padded):
            results = await self.batcher.ask(pipeline.alone, [samples[i] for i in batch], options)
            for index, result in zip(batch, results, strict=True):
                samples[index].result = result
        for sample in samples:
            if isinstance(sample.result, TranseptError):
                raise sample.result
        return [[row.result for row in rows] for rows in made], sum(row.length for row in samples)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to answer."""
        self.batcher.start()

    def close(self, grace: float) -> None:
        """Let what was asked be answered within so many seconds."""
        self.batcher.close(grace)
        self._pool.shutdown(wait=False, cancel_futures=True)

    @property
    def context(self) -> int | None:
        """How many tokens an input may have, where the task reads texts."""
        found = getattr(self.pipeline, "max_length", None)
        return found if isinstance(found, int) and found < 2**31 else None

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        return int(self.model.body.vocab_size)

    @property
    def tokenizer(self) -> Any:
        """What makes tokens of texts (``InputError`` where the model reads none)."""
        if (found := getattr(self.pipeline, "tokenizer", None)) is None:
            raise InputError(f"the model {self.name!r} reads no texts.")
        return found


def is_for(model: str, task: str) -> bool:
    """Whether a model for one task has the head of another; what an engine answers, no pipeline does here."""
    task = ALIASES.get(task, task)
    if task == model or task not in task_names() or model in WRITING or task in WRITING:
        return task == model
    return task_class(task).auto is task_class(model).auto


def components(source: str, loading: Mapping[str, Any]) -> Components:
    """What a checkpoint is made of, to be loaded so."""
    hub = {name: value for name in ("revision", "local_files_only") if (value := loading.get(name)) is not None}
    return Components(source, {}, hub, loading.get("device"), loading.get("dtype"))


def _rows_of(pipeline: TaskPipeline[Any], items: Sequence[Any], options: Any, places: Sequence[str]) -> list[list[Sample]]:
    made: list[list[Sample]] = []
    for position, rows in enumerate(pipeline.prepare(items, options)):
        if isinstance(rows, TranseptError):
            raise FieldError(places[position], f"input {position}: {rows.message}", hint=rows.hint)
        made.append(rows)
    check_lengths(pipeline, made, places)
    return made


def check_lengths(pipeline: Any, made: Sequence[Sequence[Sample]], places: Sequence[str]) -> None:
    """Refuse rows that are longer than the model reads (``ContextLengthError``)."""
    for position, rows in enumerate(made):
        if (longest := max((row.length for row in rows), default=0)) > pipeline.max_length:
            what = f"input {position} has {longest} tokens, but the model reads {pipeline.max_length}."
            error = ContextLengthError(what, hint="Shorten it, or pass truncate: true.")
            error.param = places[position]
            raise error
