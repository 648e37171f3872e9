"""Signals while a model is trained: SIGTERM and Ctrl-C save and end, SIGUSR1 saves and goes on."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self

_NAMES = ("SIGTERM", "SIGINT", "SIGUSR1")  # the last one is not on Windows


class SignalWatch:
    """Notes signals while the block runs; the loop asks after each micro-batch what came.

    Handlers are set in the main thread only, elsewhere nothing is noted, and are put back at the end. The second of
    the signals that end does what it would have done without this.
    """

    def __init__(self, active: bool = True) -> None:
        self.ended_by: signal.Signals | None = None  # the signal that asks to save and to end
        self.save = False  # whether a checkpoint was asked for
        self._active = active
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if self._active and threading.current_thread() is threading.main_thread():
            for number in (signal.Signals[name] for name in _NAMES if name in signal.Signals.__members__):
                before = signal.getsignal(number)
                # `None` is a handler that could not be put back. Ignored signals stay so, as under nohup.
                if before not in (None, signal.SIG_IGN):
                    self._before[number] = before
                    signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        received = signal.Signals(number)
        if received.name == "SIGUSR1":
            self.save = True
        elif self.ended_by is None:
            self.ended_by = received
        else:
            signal.signal(received, self._before[received])
            signal.raise_signal(received)

    @property
    def numbers(self) -> tuple[int, int]:
        """For other processes: the signal that ends, or 0, and whether a checkpoint was asked for."""
        return int(self.ended_by or 0), int(self.save)

    def receive(self, ending: int, save: int) -> None:
        self.ended_by = self.ended_by or (signal.Signals(ending) if ending else None)
        self.save = self.save or bool(save)

    def end(self, message: str) -> None:
        """End the program if a signal asked to, with its code: 130 after Ctrl-C, 143 after SIGTERM."""
        if self.ended_by is not None:
            raise Ended(128 + self.ended_by, message)


class Ended(SystemExit):
    """A signal ended training; all is saved. A program that does not catch this exits with ``code``."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(code, message)
        self.code, self.message = code, message

    def __str__(self) -> str:
        return self.message
