"""Updates that ran out of memory: made again with fewer rows at a time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from transept.environment.memory import give_back
from transept.errors import TrainingError, TranseptWarning
from transept.training.checkpoint.generators import Generators
from transept.training.loss import LESS_MEMORY
from transept.training.objective import Batch, count_rows, tensors_in

R = TypeVar("R")
Divide = Callable[[Batch], tuple[Batch, Batch] | str]

_NO_MEMORY = (*("out of memory", "DefaultCPUAllocator", "not enough memory"), *("can't allocate memory", "STATUS_ALLOC_FAILED"))


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an error is that of an allocator, of an accelerator or of the host."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _NO_MEMORY)


class Halving:
    """Runs updates, and after running out of memory runs one again with half the rows in each micro-batch.

    The loss of an update is a sum over its micro-batches, and stays the same. The size that fits is kept.
    """

    def __init__(self, divide: Divide, rows: Callable[[Batch], int] = count_rows) -> None:
        self.divide = divide  # the halves of a micro-batch whose losses add up to its own, or why there are none
        self.rows = rows  # the number of rows of a micro-batch, for messages
        self.limit: int | None = None  # values of a micro-batch's largest input

    def run(self, update: Callable[[list[Batch]], R], batches: Sequence[Batch], clear: Callable[[], None]) -> R:
        """Run an update, again with smaller micro-batches while there is too little memory.

        ``update`` makes gradients from micro-batches; ``clear`` removes those that a failed one has left.
        ``TrainingError``: there is too little memory for a single row, or for a batch that cannot be divided.
        """
        generators, limit_before = Generators.now(), self.limit
        failure = ""
        while True:
            parts = [part for batch in batches for part in self._parts(batch)]
            try:
                result = update(parts)
                break
            except (RuntimeError, MemoryError) as error:
                if not ran_out_of_memory(error):
                    raise
                failure = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            # Outside, where the error no longer holds what the update had made.
            clear()
            generators.restore()
            give_back()
            largest = max(parts, key=_size)
            if isinstance(reason := self.divide(largest), str):
                what = f"there is too little memory for a micro-batch of {self.rows(largest)} rows"
                raise TrainingError(f"{what}, and {reason} ({failure}).", hint=LESS_MEMORY)
            self.limit = (_size(largest) + 1) // 2
        if self.limit != limit_before:
            rows, fitting = max(map(self.rows, batches)), max(map(self.rows, parts))
            what = f"too little memory for {rows} rows at once ({failure}): going on with at most {fitting}."
            warnings.warn(f"{what} The result stays the same.", TranseptWarning, stacklevel=2)
        return result

    def _parts(self, batch: Batch) -> list[Batch]:
        """A micro-batch in parts of a size that fitted before."""
        divided = "" if self.limit is None or _size(batch) <= self.limit else self.divide(batch)
        return [batch] if isinstance(divided, str) else [part for half in divided for part in self._parts(half)]


def _size(batch: Batch) -> int:
    """How large a micro-batch is: the values in its largest input."""
    return max((tensor.numel() for tensor in tensors_in(batch)), default=0) or count_rows(batch)
