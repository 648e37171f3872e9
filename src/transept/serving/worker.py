"""The thread of a model, which computes for all requests in turn with the threads of other models."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from transept.errors import TranseptError
from transept.serving.errors import DrainingError, EngineDeadError

PATIENCE = 0.5  # seconds that a thread sleeps at most, where nothing waits
_LAST = 1.0  # seconds that a pass may still take at the end


class Turns:
    """A lock around passes of all models of a process: who has waited longest is next.

    Two products at once on the same processor only slow each other, and with a plain lock a thread that takes it again at once
    would hold up all others.
    """

    def __init__(self) -> None:
        self.began = math.inf  # when the pass that runs began, on the clock of ``time.monotonic``
        self._lock = threading.Lock()
        self._waiting = deque[threading.Lock]()
        self._taken = False

    def __enter__(self) -> None:
        with self._lock:
            if not self._taken:
                self._taken = True
                return
            gate = threading.Lock()
            gate.acquire()
            self._waiting.append(gate)
        gate.acquire()

    def __exit__(self, *error: object) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False

    def pass_on(self) -> None:
        """Between two passes of one turn, let those go first who wait."""
        if self._waiting:
            self.__exit__()
            self.__enter__()
        self.began = time.monotonic()


class Worker:
    """A thread that computes for many requests until it is closed or fails.

    A class that derives from it says what it does (:meth:`_run`) and how it ends what is asked of it (:meth:`_fail_all`).

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self.turn = Turns()  # one for all models of a process
        self.failed: BaseException | None = None  # what it died of
        self.ended = deque[float](maxlen=128)  # when the last rows had their answers, on the clock of ``time.monotonic``
        self._changed = threading.Condition()
        self._open = True  # whether requests are taken
        self._over = False  # whether requests that there are end now
        self._thread = threading.Thread(target=self._run_guarded, name=name, daemon=True)

    def start(self) -> None:
        """Run in a thread of its own until :meth:`close`."""
        self._thread.start()

    def close(self, grace: float = 0.0) -> None:
        """Take no more requests, let those that there are end within so many seconds, and fail the others."""
        with self._changed:
            self._open = False
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(grace)
            self._over = True
            self._thread.join(_LAST)
        self._fail_all(DrainingError("the server ends."))

    def is_healthy(self, patience: float) -> bool:
        """Whether the thread lives, and no pass of a model of this process takes longer than so many seconds."""
        lives = self._thread.ident is None or self._thread.is_alive() or not self._open
        return self.failed is None and lives and time.monotonic() - self.turn.began < patience

    def seconds_for(self, rows: int) -> int:
        """About how long so many rows take, where they take as long as the last ones; from 1 to 60."""
        last = tuple(self.ended) or (time.monotonic(),)
        return min(max(math.ceil(rows * (time.monotonic() - last[0]) / len(last)), 1), 60)

    def fail(self, error: BaseException) -> None:
        """Take no more requests and fail those that there are, from any thread, since this one has failed or hangs."""
        with self._changed:
            self.failed, self._over = self.failed or error, True
        self._fail_all(EngineDeadError("the engine has failed.", hint="Start the server again."))

    def check_open(self) -> None:
        """Refuse a request (``BusyError``) where none is taken any more; the caller holds the lock."""
        if self.failed is not None:
            raise EngineDeadError("the engine has failed.", hint="Start the server again.")
        if not self._open:
            raise DrainingError("the server takes no more requests, since it ends.")

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """A pass, of which there is one at a time."""
        with self.turn:
            self.turn.began = time.monotonic()
            try:
                yield
            finally:
                self.turn.began = math.inf

    def _run_guarded(self) -> None:
        try:
            self._run()
        except BaseException as error:  # a pass that fails without a row to blame, or a mistake of ours
            self.fail(error)

    def _run(self) -> None:
        """Compute until :attr:`_over`, or until none is taken any more and all have ended."""
        raise NotImplementedError

    def _fail_all(self, error: TranseptError) -> None:
        """End all requests with an error."""
        raise NotImplementedError
