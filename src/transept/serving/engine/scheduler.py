"""Which rows read and write in the next pass and which wait: plain numbers, no tensors.

A row is a prompt and what is written after it. It waits, then reads its prompt in one or more passes, then writes one token a
pass.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from transept.serving.engine.memory import Memory, digests_of

AT_ONCE = 4  # prompts that are read in one pass
HALVED = 1.0  # seconds of waiting that count as half of the length
_FIRST = -math.inf  # before all that may arrive


@dataclass(eq=False)
class Row:
    """A prompt with what is written after it.

    Args:
        number: tells rows apart.
        ids: of the prompt, and then of what was written.
        limit: how many ids there may be in all.
        salt: rows of another one share no prefix.
        arrived: seconds on any clock; of a row that was preempted, before all others.
    """

    number: int
    ids: list[int]
    limit: int
    salt: bytes = b""
    arrived: float = 0.0
    read: int = 0  # ids whose keys and values are cached
    digests: list[bytes] = field(init=False)  # of the prompt, but for its last id, which is read to know what follows

    def __post_init__(self) -> None:
        self.digests = digests_of(self.ids[:-1], self.salt)

    @property
    def rest(self) -> int:
        """How many ids have not been read."""
        return len(self.ids) - self.read

    @property
    def order(self) -> float:
        """Where the row stands among others, the lowest first: by the logarithm of rest / 2 ** waited, but for the time now."""
        return math.log2(self.rest) + self.arrived / HALVED


class Share(NamedTuple):
    """How many ids of a row the next pass reads."""

    row: Row
    new: int


class Scheduler:
    """Waiting and running rows.

    The shortest prompt is admitted first, and waiting a second counts as half the length, so that long prompts get their
    turn. Where there is no memory for the whole prompt of the row that is next, the others wait behind it. In a pass, each row
    that has read its prompt writes one token, and up to four prompts share ``budget`` positions in the same order. Where memory
    ends, the youngest row gives up its own and waits at the front of the queue.

    Args:
        memory: of keys and values.
        max_rows: how many rows run at once.
        budget: positions of prompts that are read in a pass.
        cut: prompts are cut at multiples of so many positions alone.
    """

    def __init__(self, memory: Memory, *, max_rows: int = 32, budget: int = 512, cut: int = 1) -> None:
        self.memory, self.max_rows, self.budget, self.cut = memory, max_rows, max(budget, cut), cut
        self.waiting: deque[Row] = deque()
        self.running: dict[int, Row] = {}  # in the order of admission
        self.preempted = 0  # how often a row gave up its memory

    def __len__(self) -> int:
        return len(self.waiting) + len(self.running)

    def add(self, row: Row) -> None:
        """Let a row wait; there must be memory for so long a row, were it alone."""
        self.waiting.append(row)

    def remove(self, row: Row) -> None:
        """Forget a row, whatever it does; of one that ran, the caller releases or keeps the memory."""
        if self.running.pop(row.number, None) is None and row in self.waiting:
            self.waiting.remove(row)

    def admit(self) -> list[Row]:
        """The rows that run from now on."""
        admitted = []
        while self.waiting and len(self.running) < self.max_rows:
            row = min(self.waiting, key=lambda each: each.order)
            self.memory.match(row.digests)  # so that this prefix is the last to go
            if not self.memory.reserve(row.number, len(row.ids) + 1):
                break
            self.waiting.remove(row)
            self.running[row.number] = row
            admitted.append(row)
        return admitted

    def plan(self) -> list[Share]:
        """What the next pass reads: rows that write first, then prompts."""
        shares = [Share(row, 1) for row in self._writing()]
        reading = sorted((row for row in self.running.values() if row.rest > 1), key=lambda row: row.order)
        left = self.budget
        for row in reading[:AT_ONCE]:
            count = row.rest if row.rest <= left else left - (row.read + left) % self.cut
            if count > 0:
                shares.append(Share(row, count))
                left -= count
        return shares

    def _writing(self) -> list[Row]:
        """Rows of which one id is to be read, with memory for it."""
        for row in [row for row in self.running.values() if row.rest == 1]:
            while row.number in self.running and not self.memory.reserve(row.number, len(row.ids)):
                self.preempt(next(reversed(self.running.values())))
        return [row for row in self.running.values() if row.rest == 1]

    def preempt(self, row: Row) -> None:
        """Take a row's memory; it reads again from its beginning when there is some."""
        del self.running[row.number]
        self.memory.release(row.number)
        row.read, row.arrived, self.preempted = 0, _FIRST, self.preempted + 1
        self.waiting.appendleft(row)
