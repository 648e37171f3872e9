"""Models as a server has them: with an engine or a pipeline, loaded from checkpoints."""

from __future__ import annotations

import asyncio
import functools
import warnings
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any

from transept.checkpoint.store import open_store
from transept.errors import TranseptWarning
from transept.generation.prompt import end_tokens
from transept.pipelines import pipeline, task_names
from transept.pipelines.components import Components
from transept.preprocess.text.vocabulary import TokenBytes
from transept.serving.engine.constraint import Grammars
from transept.serving.engine.engine import Engine
from transept.serving.tasks import WRITES, WRITING, TaskModel, components
from transept.storage.source import GGUF_ENDING


class Mailbox:
    """Gathers for whom a pass has made something, and wakes all of them in an event loop at once.

    Args:
        loop: where they wait.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._events: dict[asyncio.Event, None] = {}

    def put(self, event: asyncio.Event) -> None:
        """Gather, in the engine's thread."""
        self._events[event] = None

    def flush(self) -> None:
        """Wake them, in the engine's thread; after the loop has ended there is nobody to tell."""
        events, self._events = self._events, {}
        if events and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(_set, events)


def _set(events: Iterable[asyncio.Event]) -> None:
    for event in events:
        event.set()


class WritingModel:
    """A causal language model, which may see pictures, with its engine and what prepares its prompts.

    Args:
        name: by which clients ask for it.
        source: a folder, a ``.gguf`` file, or a repository.
        loading: how it is loaded: those of :func:`transept.pipeline`.
        engine: settings of :class:`Engine`.
        task: one of the two.
        chat_template: in the place of the checkpoint's own.
        max_new_tokens: of an answer in a chat that does not say how long it may be.
    """

    def __init__(
        self,
        name: str,
        source: str,
        loading: Mapping[str, Any],
        engine: Mapping[str, Any],
        task: str = WRITES,
        *,
        chat_template: str | None = None,
        max_new_tokens: int | None = None,
    ) -> None:
        made = pipeline(task, source, **loading)
        self.name, self.tokenizer, self.model, self.max_new_tokens = name, made.tokenizer, made.model, max_new_tokens
        self.task, self.processor = task, made.processor  # of texts with pictures
        if (template := chat_template or getattr(self.processor, "chat_template", None)) is not None:
            self.tokenizer.chat_template = template
        self.token_bytes = TokenBytes(self.tokenizer)
        self.engine = self.worker = Engine(self.model, **engine)

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

    @property
    def context(self) -> int:
        """How many tokens a prompt and what follows it may have."""
        most = self.engine.memory.positions
        return most if self.engine.context is None else min(self.engine.context, most)

    def room(self, prompt: int) -> int:
        """How many tokens are written behind a prompt of so many, where a request does not say."""
        left = max(self.context - prompt, 1)
        return left if self.max_new_tokens is None else min(left, self.max_new_tokens)

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        return int(self.model.body.vocab_size)


@dataclass(frozen=True)
class Loader:
    """Loads checkpoints, each for what it is for: a causal language model writes, and any other one does its task.

    Args:
        loading: how: ``device``, ``dtype`` and ``revision``.
        engine: settings of :class:`Engine`.
        reading: ``budget`` and ``max_waiting`` of :class:`TaskModel`.
        writing: ``chat_template`` and ``max_new_tokens`` of :class:`WritingModel`.
    """

    loading: Mapping[str, Any] = field(default_factory=dict)
    engine: Mapping[str, Any] = field(default_factory=dict)
    reading: Mapping[str, Any] = field(default_factory=dict)
    writing: Mapping[str, Any] = field(default_factory=dict)

    def task(self, source: str, *, fetch: bool = False) -> str:
        """What a checkpoint is for, told by its config (``TranseptError`` where that cannot be)."""
        return WRITES if source.endswith(GGUF_ENDING) else self._parts(source, fetch).task(task_names())

    def size(self, source: str) -> int:
        """Bytes of the files of a checkpoint's weights (``TranseptError`` where there are none)."""
        found = self._parts(source, fetch=False).source
        assert found is not None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TranseptWarning)  # of pickles; loading says it again
            return sum(path.stat().st_size for path in open_store(found).files)

    def load(self, name: str, source: str, task: str | None = None, *, fetch: bool = False) -> WritingModel | TaskModel:
        """Load a folder, a ``.gguf`` file or a repository; what the cache lacks of it is fetched where that is asked for."""
        # OpenMP keeps threads for each thread that has computed in parallel, until that one ends. Where there are more of them
        # than processors, they sleep whenever they wait for each other, and a prompt takes twice as long.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(copy_context().run, self._load, name, source, task, fetch).result()

    def _load(self, name: str, source: str, task: str | None, fetch: bool) -> WritingModel | TaskModel:
        task = task or self.task(source, fetch=fetch)
        loading = {**self.loading, "local_files_only": not fetch}
        if task in WRITING:
            return WritingModel(name, source, loading, self.engine, task, **self.writing)
        return TaskModel(name, source, task, loading, **self.reading)

    def _parts(self, source: str, fetch: bool) -> Components:
        return components(source, {**self.loading, "local_files_only": not fetch})
