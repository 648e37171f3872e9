"""Models that are served, by name."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

from transept.errors import InputError
from transept.pipelines import pipeline
from transept.serving.engine import Engine
from transept.serving.mailbox import Mailbox

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]*(/[A-Za-z0-9][A-Za-z0-9._:@-]*)?")


class ModelNotFoundError(InputError):
    """No model of that name is served."""

    code = "model_not_found"


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
        self.engine = Engine(self.model, **engine)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to answer; pieces go to that loop."""
        self.mailbox = Mailbox(loop)
        self.engine.after_pass = self.mailbox.flush
        self.engine.start()

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
        self._by_name: dict[str, WritingModel] = {}

    def check(self, name: str) -> None:
        """Refuse a name that cannot be, or is there (``InputError``)."""
        if _NAME.fullmatch(name) is None:
            what = f"a model cannot be served as {name!r:.80}."
            raise InputError(
                what, hint="Give it a name: NAME=MODEL, of letters, digits and . _ : @ -, with at most one / inside."
            )
        if name in self._by_name:
            raise InputError(f"two models are to be served as {name!r}.", hint="Give one a name: NAME=MODEL.")

    def add(self, model: WritingModel) -> None:
        """Serve a model."""
        self.check(model.name)
        self._by_name[model.name] = model

    def get(self, name: str) -> WritingModel:
        """The model of that name (``ModelNotFoundError``)."""
        if name not in self._by_name:
            raise ModelNotFoundError(f"no model {name!r:.80} is served here.", hint=f"There is {', '.join(self._by_name)}.")
        return self._by_name[name]

    def __iter__(self) -> Iterator[WritingModel]:
        return iter(self._by_name.values())

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let all answer."""
        for model in self:
            model.start(loop)

    def close(self, grace: float) -> None:
        """Let all end their answers within so many seconds."""
        ends = time.monotonic() + grace
        for model in self:
            model.engine.close(max(ends - time.monotonic(), 0.0))

    def are_healthy(self, patience: float) -> bool:
        """Whether all engines answer, and none has spent more seconds than so many on a pass."""
        return all(model.engine.is_healthy(patience) for model in self)
