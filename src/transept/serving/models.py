"""Models that are served, by name."""

from __future__ import annotations

import asyncio
import functools
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

from transept.errors import InputError
from transept.generation.prompt import end_tokens
from transept.pipelines import pipeline, task_names
from transept.serving.batcher import Turns
from transept.serving.engine.constraint import Grammars
from transept.serving.engine.engine import Engine
from transept.serving.engine.logprobs import TokenBytes
from transept.serving.errors import ModelNotFoundError
from transept.serving.tasks import TaskModel, components

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]*(/[A-Za-z0-9][A-Za-z0-9._:@-]*)?")


class Mailbox:
    """Gathers what a pass makes, and hands it to the queues of an event loop at once.

    Args:
        loop: where the queues are read.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._items: list[tuple[asyncio.Queue[Any], Any]] = []

    def put(self, queue: asyncio.Queue[Any], item: Any) -> None:
        """Gather, in the engine's thread."""
        self._items.append((queue, item))

    def flush(self) -> None:
        """Hand over, in the engine's thread; after the loop has ended there is nobody to tell."""
        items, self._items = self._items, []
        if items and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(_deliver, items)


def _deliver(items: list[tuple[asyncio.Queue[Any], Any]]) -> None:
    for queue, item in items:
        queue.put_nowait(item)


class WritingModel:
    """A causal language model with its engine and its tokenizer.

    Args:
        name: by which clients ask for it.
        source: a folder, a ``.gguf`` file, or a repository.
        loading: how it is loaded: those of :func:`transept.pipeline`.
        engine: settings of :class:`Engine`.
    """

    def __init__(self, name: str, source: str, loading: Mapping[str, Any], engine: Mapping[str, Any]) -> None:
        made = pipeline("text-generation", source, **loading)
        self.name, self.tokenizer, self.model = name, made.tokenizer, made.model
        self.created = int(time.time())
        self.token_bytes = TokenBytes(self.tokenizer)
        self.engine = Engine(self.model, **engine)

    @functools.cached_property
    def grammars(self) -> Grammars:
        """What compiles constraints, made when the first is needed."""
        return Grammars(self.tokenizer, end_tokens(self.model.generation_config) or [self.tokenizer.eos_token_id])

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to answer; pieces go to that loop."""
        self.mailbox = Mailbox(loop)
        self.engine.after_pass = self.mailbox.flush
        self.engine.start()

    def close(self, grace: float) -> None:
        """Let answers end within so many seconds."""
        self.engine.close(grace)

    def is_healthy(self, patience: float) -> bool:
        """Whether the engine answers, and no pass takes longer than so many seconds."""
        return self.engine.is_healthy(patience)

    @property
    def context(self) -> int:
        """How many tokens a prompt and what follows it may have."""
        most = self.engine.memory.positions
        return most if self.engine.context is None else min(self.engine.context, most)

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        return int(self.model.body.vocab_size)

    def told(self) -> dict[str, Any]:
        """The model as clients are told of it."""
        about = {"id": self.name, "object": "model", "created": self.created, "owned_by": "transept"}
        return about | {"task": "text-generation", "loaded": True, "context": self.context}


class Models:
    """What is served, by name."""

    def __init__(self) -> None:
        self._by_name: dict[str, WritingModel | TaskModel] = {}
        self._turns = Turns()

    def check(self, name: str) -> None:
        """Refuse a name that cannot be, or is there (``InputError``)."""
        if _NAME.fullmatch(name) is None:
            what = f"a model cannot be served as {name!r:.80}."
            raise InputError(
                what, hint="Give it a name: NAME=MODEL, of letters, digits and . _ : @ -, with at most one / inside."
            )
        if name in self._by_name:
            raise InputError(f"two models are to be served as {name!r}.", hint="Give one a name: NAME=MODEL.")

    def add(self, model: WritingModel | TaskModel) -> None:
        """Serve a model, whose passes take turns with those of the others."""
        self.check(model.name)
        (model.engine if isinstance(model, WritingModel) else model.batcher).turn = self._turns
        self._by_name[model.name] = model

    def get(self, name: str) -> WritingModel | TaskModel:
        """The model of that name (``ModelNotFoundError``)."""
        if name not in self._by_name:
            raise ModelNotFoundError(f"no model {name!r:.80} is served here.", hint=f"There is {', '.join(self._by_name)}.")
        return self._by_name[name]

    def writing(self, name: str) -> WritingModel:
        """The model of that name, which must write texts (``InputError``)."""
        model = self.get(name)
        if not isinstance(model, WritingModel):
            what = f"the model {name!r} does {model.task} and writes no texts."
            raise InputError(what, hint=f"Ask /v1/tasks/{model.task}.")
        return model

    def reading(self, name: str | None, task: str) -> TaskModel:
        """The model of that name, which must be for a task (``InputError``), or the only one that is."""
        able = [model for model in self if isinstance(model, TaskModel) and model.can(task)]
        if name is None:
            if len(able) != 1:
                raise InputError(f"{len(able)} models do {task}, so that `model` must name one.")
            return able[0]
        model = self.get(name)
        if model not in able:
            does = model.task if isinstance(model, TaskModel) else "text-generation"
            hint = f"Ask {' or '.join(each.name for each in able)}." if able else "Serve a model for it."
            raise InputError(f"the model {name!r} does {does}, and not {task}.", hint=hint)
        assert isinstance(model, TaskModel)
        return model

    def first_of(self, name: str | None, *tasks: str) -> str:
        """The first of some tasks that the model of that name can do, or any model where none is named; else the last."""
        models = [model for model in self if isinstance(model, TaskModel) and name in (None, model.name)]
        return next((task for task in tasks if any(model.can(task) for model in models)), tasks[-1])

    def __iter__(self) -> Iterator[WritingModel | TaskModel]:
        return iter(self._by_name.values())

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let all answer."""
        for model in self:
            model.start(loop)

    def close(self, grace: float) -> None:
        """Let all end their answers within so many seconds."""
        ends = time.monotonic() + grace
        for model in self:
            model.close(max(ends - time.monotonic(), 0.0))

    def are_healthy(self, patience: float) -> bool:
        """Whether all engines answer, and none has spent more seconds than so many on a pass."""
        return all(model.is_healthy(patience) for model in self)


def load(
    name: str,
    source: str,
    task: str | None,
    loading: Mapping[str, Any],
    engine: Mapping[str, Any],
    reading: Mapping[str, Any],
) -> WritingModel | TaskModel:
    """Load what a checkpoint is for: a causal language model writes, and any other one does its task.

    Args:
        name, source, loading, engine: those of :class:`WritingModel`.
        task: the pipeline's name; told by the checkpoint when absent.
        reading: ``budget`` and ``max_waiting`` of :class:`TaskModel`.
    """
    if not source.endswith(".gguf") and task is None:
        task = components(source, loading).task(task_names())
    if task in (None, "text-generation"):
        return WritingModel(name, source, loading, engine)
    return TaskModel(name, source, task, loading, **reading)
