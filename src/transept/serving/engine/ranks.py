"""One model in several processes, which torchrun has started: the first one serves, and all compute each pass together."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist

from transept.parallel.processes import join, world_size
from transept.serving.engine.engine import Engine
from transept.serving.engine.runner import Runner
from transept.serving.errors import EngineDeadError

CPU = torch.device("cpu")
FOR_EVER = 10.0**8  # seconds that processes wait for the next pass
_log = logging.getLogger("transept.serving")


def meet() -> dict[str, Any]:
    """Meet the other processes; gives how each of them loads its part of the model."""
    join(timeout=FOR_EVER)
    return {"packed": False, "model_kwargs": {"tp_plan": "auto"}}


def is_first(engine: Engine) -> bool:
    """Whether this process serves; the others compute with the one that does until that ends, and get ``False`` then."""
    if world_size() == 1:
        return True
    if dist.get_rank() == 0:
        engine.runner = cast(Runner, LeadingRunner(engine.runner))
        return True
    for number in (signal.SIGINT, signal.SIGTERM):  # which the first one gets too, and lets answers end
        signal.signal(number, signal.SIG_IGN)
    follow(engine.runner)
    return False


class LeadingRunner:
    """The runner of the first process: what is called is told to those of the others, with the next pass or the end."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._calls: list[tuple[str, tuple[Any, ...]]] = []  # since the last pass

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._runner, name)
        return partial(self._call, found) if callable(found) else found

    def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        self._calls.append((method.__name__, arguments))
        if method.__name__ in ("run", "close"):
            calls, self._calls = self._calls, []
            try:
                dist.broadcast_object_list([calls], src=0, device=CPU)
            except RuntimeError as error:
                if method.__name__ == "run":
                    raise EngineDeadError("another process of the model has ended.", hint="Start all of them again.") from error
        return method(*arguments)


def follow(runner: Runner) -> None:
    """Do what the first process tells, until it says that it ends (``RuntimeError``: it has ended without a word)."""
    name = ""
    while name != "close":
        told: list[Any] = [None]
        dist.broadcast_object_list(told, src=0, device=CPU)
        for name, arguments in told[0]:
            try:
                getattr(runner, name)(*arguments)
            except Exception as error:  # the first one has it too, and answers for it
                _log.warning("a pass failed: %s", type(error).__name__)
