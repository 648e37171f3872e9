"""One model in several processes, which torchrun has started: the first one serves, and all compute each pass together."""

from __future__ import annotations

import logging
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from transept.parallel.processes import join, world_size
from transept.serving.engine.engine import Engine
from transept.serving.engine.runner import Part, Runner
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
        engine.runner = LeadingRunner(engine.model)
        return True
    for number in (signal.SIGINT, signal.SIGTERM):  # which the first one gets too, and lets answers end
        signal.signal(number, signal.SIG_IGN)
    follow(engine.runner)
    return False


class LeadingRunner(Runner):
    """A runner of the first process, whose calls the runners of the others repeat."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self._calls: list[tuple[str, tuple[Any, ...]]] = []  # since the last pass

    def begin(self, number: int, room: int, prefix: tuple[int, int] | None = None) -> None:
        self._calls.append(("begin", (number, room, prefix)))
        super().begin(number, room, prefix)

    def reserve(self, number: int, room: int) -> None:
        self._calls.append(("reserve", (number, room)))
        super().reserve(number, room)

    def forget(self, number: int) -> None:
        self._calls.append(("forget", (number,)))
        super().forget(number)

    def go_back(self, number: int, positions: int) -> int:
        self._calls.append(("go_back", (number, positions)))
        return super().go_back(number, positions)

    def run(self, parts: Sequence[Part]) -> Tensor:
        self._tell("run", list(parts))
        return super().run(parts)

    def close(self) -> None:
        with suppress(EngineDeadError):
            self._tell("close")
        super().close()

    def _tell(self, name: str, *arguments: Any) -> None:
        calls, self._calls = self._calls, []
        try:
            dist.broadcast_object_list([[*calls, (name, arguments)]], src=0, device=CPU)
        except RuntimeError as error:
            raise EngineDeadError("another process of the model has ended.", hint="Start all of them again.") from error


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
