"""What a server serves, by name: models that are loaded when they are asked for, and go when nobody uses them for a while."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from transept.environment.memory import give_back, memory_left
from transept.environment.units import seconds, size
from transept.errors import InputError, TranseptError
from transept.pipelines.components import device_of
from transept.serving.errors import DrainingError, FailedError, LoadingError, ModelNotFoundError
from transept.serving.models import Loader, WritingModel
from transept.serving.tasks import TaskModel, is_for
from transept.serving.worker import Turns

Finder = Callable[[], Iterable[tuple[str, str]]]  # names of models, and where they are
T = TypeVar("T")
FOR_EVER = math.inf
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]*(/[A-Za-z0-9][A-Za-z0-9._:@-]*)?")
_LOOK = 1.0  # seconds between looks at what there is
_MORE = 1.1  # of a model's memory, against the size of its weights
_PATIENCE = 5.0  # seconds for threads of a model to end in
_EARLY = 0.05  # seconds that a timer may ring before its time, as those of some event loops do
_SHOWN = 10
_log = logging.getLogger("transept.serving")


@dataclass(eq=False)
class Served:
    """A name that clients may ask for, and its model while that is loaded.

    Args:
        name: as clients know it.
        source: a folder, a ``.gguf`` file or a repository; ``None`` where the model was given, and cannot be loaded again.
        task: what it is for; told by its checkpoint when absent.
        usual: seconds for which it stays when nobody uses it, unless a request says otherwise.
        named: whether it was named at the start, and not found in a directory.
    """

    name: str
    source: str | None
    task: str | None = None
    usual: float = FOR_EVER
    named: bool = True
    created: int = field(default_factory=lambda: int(time.time()))
    model: WritingModel | TaskModel | None = None
    context: int | None = None  # known once it has been loaded
    bytes: int | None = None  # of its weights: of the files' until it has been loaded
    users: int = 0  # requests that use it or wait for it
    last_used: float = 0.0
    keeps: float = field(init=False)  # seconds for which it stays, as the last request wants that has said so
    ends: float | None = None  # when it goes, on the clock of ``time.monotonic``
    loading: asyncio.Future[None] | None = None
    timer: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        self.keeps = self.usual

    @property
    def can_go(self) -> bool:
        """Whether it is loaded, nobody uses it, and it was not asked to stay."""
        return self.model is not None and self.source is not None and not self.users and self.keeps < FOR_EVER

    def told(self) -> dict[str, Any]:
        """The model as clients are told of it."""
        ends = None if self.ends is None else int(time.time() + self.ends - time.monotonic())
        about = {"id": self.name, "object": "model", "created": self.created, "owned_by": "transept", "task": self.task}
        loaded = self.model is not None
        return about | {"loaded": loaded, "context": self.context, "expires_at": ends, "bytes": self.bytes}


class Models:
    """What is served, by name.

    All but the constructor, :meth:`add` and :meth:`offer` is for the thread of the event loop.

    Args:
        loader: how models are loaded.
        keep_alive: seconds for which a model stays when nobody uses it, or such as ``5m``; below 0 for ever.
        max_models: how many are loaded at once.
        memory: bytes of their weights at most; what is free where absent.
        finders: they tell what there is besides the models that are named.
    """

    def __init__(
        self,
        loader: Loader | None = None,
        *,
        keep_alive: str | float = "5m",
        max_models: int = 4,
        memory: int | None = None,
        finders: Sequence[Finder] = (),
    ) -> None:
        self.loader, self.keep_alive = loader or Loader(), seconds(keep_alive)
        self.max_models, self.memory, self.finders = max_models, memory, finders
        self._by_name: dict[str, Served] = {}
        self._device = device_of(self.loader.loading.get("device") or ("cuda" if torch.cuda.is_available() else "cpu"))
        self._turns = Turns()
        self._one = asyncio.Lock()  # one model at a time is loaded, or taken away
        self._looking = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Future[None]] = set()
        self._looked, self._ended = -math.inf, False

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
        """Serve a model that is there already, and stays."""
        self.check(model.name)
        self._by_name[model.name] = served = Served(model.name, None, model.task)
        self._adopt(served, model)

    def offer(self, name: str, source: str, task: str | None = None, *, keep_alive: str | float = -1) -> None:
        """Load a checkpoint now, fetch it where needed, and serve it; it stays, unless ``keep_alive`` says otherwise.

        Raises:
            InputError: there is no room for it, or the name cannot be.
            TranseptError: it cannot be loaded.
        """
        self.check(name)
        task = task or self.loader.task(source, fetch=True)
        self._by_name[name] = served = Served(name, source, task, seconds(keep_alive))
        served.bytes = _told(self.loader.size, source)
        if (lack := self._lack(served)) is not None:
            raise InputError(f"there is no room for the model {name!r}: {lack}.", hint="Name fewer models, or smaller ones.")
        self._adopt(served, self.loader.load(name, source, task, fetch=True))

    def _adopt(self, served: Served, model: WritingModel | TaskModel) -> None:
        """Take a model that is loaded; its passes take turns with those of the others."""
        model.worker.turn = self._turns
        served.model, served.context, served.bytes = model, model.context, model.model.get_memory_footprint()
        served.last_used = time.monotonic()

    def __iter__(self) -> Iterator[WritingModel | TaskModel]:
        """The models that are loaded."""
        return iter([served.model for served in self._by_name.values() if served.model is not None])

    def get(self, name: str) -> Any:
        """The model of that name, which must be loaded (``ModelNotFoundError``)."""
        if (served := self._by_name.get(name)) is None or served.model is None:
            raise ModelNotFoundError(f"no model {name!r:.80} is loaded.")
        return served.model

    async def look(self) -> list[Served]:
        """All that can be asked for; what was found is looked for again, though not all the time."""
        async with self._looking:
            if self.finders and time.monotonic() - self._looked > _LOOK:
                self._take(await asyncio.to_thread(lambda: [each for finder in self.finders for each in finder()]))
                self._looked = time.monotonic()
        return list(self._by_name.values())

    def _take(self, found: Iterable[tuple[str, str]]) -> None:
        sources = {name: source for name, source in found if _NAME.fullmatch(name)}
        for each in [*self._by_name.values()]:
            if not (each.named or each.model or each.users or each.name in sources):
                del self._by_name[each.name]
        for name, source in sources.items():
            if name not in self._by_name:
                self._by_name[name] = Served(name, source, usual=self.keep_alive, named=False)

    async def find(self, name: str | None, *tasks: str) -> Served:
        """What is served by that name, or where none is given the only one of those named at the start that is able.

        Args:
            tasks: of which it must be for one, and for the first if any is; for any, where there are none.

        Raises:
            ModelNotFoundError: nothing is served by that name.
            InputError: it is for no such task; or none is named, and there is not one that is able, but several or none.
        """
        able = {task: [each for each in self._by_name.values() if each.named and can(each, task)] for task in tasks}
        if name is None:
            first = next((found for found in able.values() if found), [])
            if len(first) != 1:
                raise InputError(f"{len(first)} models do {' or '.join(tasks)}, so that `model` must name one.")
            return first[0]
        served = self._by_name.get(name) or next((each for each in await self.look() if each.name == name), None)
        if served is None:
            known = ", ".join([*self._by_name][:_SHOWN])
            raise ModelNotFoundError(f"no model {name!r:.80} is served here.", hint=f"There is {known}." if known else None)
        await self.examine(served)
        if tasks and not any(can(served, task) for task in tasks):
            others = sorted({each.name for found in able.values() for each in found})
            hint = f"Ask {' or '.join(others)}." if others else f"Ask /v1/tasks/{served.task}." if served.task else None
            raise InputError(f"the model {name!r} does {served.task or 'no task'}, and not {' or '.join(tasks)}.", hint=hint)
        return served

    async def examine(self, served: Served) -> None:
        """Learn what a model is for and how large its weights are, from its files; what cannot be told stays unknown."""
        if served.bytes is None and (source := served.source) is not None:
            served.task = served.task or await asyncio.to_thread(_told, self.loader.task, source)
            served.bytes = await asyncio.to_thread(_told, self.loader.size, source) or 0

    async def hold(self, served: Served, until: ExitStack, keep_alive: str | float | None = None) -> Any:
        """The model, which is loaded first where it is not, and stays until the stack is closed.

        Args:
            keep_alive: how long it stays then, until another request says otherwise or it is gone.

        Raises:
            LoadingError: there is no room for it now.
            InputError: there never is.
            FailedError: it cannot be loaded.
        """
        if self._ended:
            raise DrainingError("the server ends.")
        served.users += 1
        until.callback(self._release, served)
        self._rest(served)
        if keep_alive is not None:
            served.keeps = seconds(keep_alive)
        if served.model is None:
            if served.loading is None:
                served.loading = self._begin(self._load(served))
            await asyncio.shield(served.loading)
        return served.model

    async def unload(self, served: Served) -> None:
        """Take a model away, once nobody uses it any more (``InputError`` where it cannot be loaded again)."""
        if served.source is None:
            raise InputError(f"the model {served.name!r} stays: it was handed to the server, and cannot be loaded again.")
        served.keeps = 0.0
        await self._take_away(served)

    def _begin(self, work: Any) -> asyncio.Future[None]:
        """Work that goes on whoever waits for it."""
        task: asyncio.Future[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # those who wait are told
        return task

    def _release(self, served: Served) -> None:
        served.users -= 1
        served.last_used = time.monotonic()
        self._rest(served)

    def _rest(self, served: Served) -> None:
        """Let a model that nobody uses go after its time."""
        if served.timer is not None:
            served.timer.cancel()
        served.timer = served.ends = None
        if served.can_go and self._loop is not None:
            served.ends = time.monotonic() + served.keeps
            served.timer = self._loop.call_later(served.keeps, lambda: self._begin(self._take_away(served)))

    async def _load(self, served: Served) -> None:
        try:
            async with self._one:
                await self._make_room(served)
                model = await asyncio.to_thread(self._loaded, served)
                if self._ended:
                    raise DrainingError("the server ends.")
                self._adopt(served, model)
                model.start(asyncio.get_running_loop())
        finally:
            served.loading = None
            self._rest(served)

    def _loaded(self, served: Served) -> WritingModel | TaskModel:
        try:
            return self.loader.load(served.name, served.source or "", served.task)
        except Exception as error:  # of the file system, of the checkpoint or of memory; its text may name paths
            _log.warning("The model %s cannot be loaded: %s", served.name, error)
            what = f"the model {served.name!r} cannot be loaded: {type(error).__name__}."
            raise FailedError(what, hint="The server's log says why.") from error

    async def _make_room(self, served: Served) -> None:
        """Take models away until there is room, the one first that was used longest ago; none where that is of no use."""
        await self.examine(served)
        while (lack := self._lack(served)) is not None:
            loaded = [each for each in self._by_name.values() if each.model is not None]
            idle = [each for each in loaded if each.can_go]
            if self._lack(served, idle) is not None:
                what = f"there is no room for the model {served.name!r}: {lack}"
                if self._lack(served, loaded) is not None:
                    raise InputError(f"{what}.", hint="It needs a larger machine, or a smaller type.")
                raise LoadingError(f"{what}, and others are in use or stay.", hint="Try again later.")
            await self._unload(min(idle, key=lambda each: each.last_used))

    def _lack(self, served: Served, gone: Sequence[Served] = ()) -> str | None:
        """What there is too little of for a model, in words, were some others gone."""
        loaded = [each for each in self._by_name.values() if each.model is not None and each not in gone]
        if len(loaded) >= self.max_models:
            return f"{len(loaded)} models are loaded, as many as may be"
        need = int((served.bytes or 0) * _MORE)
        if self.memory is not None:
            left: int | None = self.memory - sum(each.bytes or 0 for each in loaded)
        elif (left := memory_left(self._device)) is not None:
            left += sum(each.bytes or 0 for each in gone)
        return None if left is None or need <= left else f"it needs {size(need)} of memory, but {size(max(left, 0))} are left"

    async def _take_away(self, served: Served) -> None:
        async with self._one:
            if served.can_go and time.monotonic() >= served.last_used + served.keeps - _EARLY:
                await self._unload(served)

    async def _unload(self, served: Served) -> None:
        model, served.model = served.model, None
        served.keeps = served.usual
        self._rest(served)
        assert model is not None
        await asyncio.to_thread(model.close, _PATIENCE)
        del model
        await asyncio.to_thread(give_back)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let all that are loaded answer."""
        self._loop = loop
        for served in self._by_name.values():
            if served.model is not None:
                served.model.start(loop)
                self._rest(served)

    def close(self, grace: float) -> None:
        """Let all end their answers within so many seconds."""
        self._ended, ends = True, time.monotonic() + grace
        for model in self:
            model.close(max(ends - time.monotonic(), 0.0))

    def are_healthy(self, patience: float) -> bool:
        """Whether all engines answer, and none has spent more seconds than so many on a pass."""
        return all(model.worker.is_healthy(patience) for model in self)

    def fail_unhealthy(self, patience: float) -> list[str]:
        """End what is asked of models that answer no more, so that nobody waits for them; gives their names."""
        found = [model for model in self if not model.worker.is_healthy(patience)]
        for model in found:
            model.worker.fail(TimeoutError())
        return [model.name for model in found]


def _told(tell: Callable[[str], T], source: str) -> T | None:
    """What the files of a model tell, or nothing."""
    try:
        return tell(source)
    except TranseptError as error:
        _log.info("%s", error)
        return None


def can(served: Served, task: str) -> bool:
    """Whether a model is for a task."""
    return served.task is not None and is_for(served.task, task)
