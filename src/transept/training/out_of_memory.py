"""Updates that are made again with fewer rows at a time, after running out of memory; their result stays the same."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import torch

from transept.errors import TrainingError, TranseptWarning
from transept.objectives.terms import LossTerm
from transept.training.checkpoint.generators import Generators
from transept.training.objective import Batch, count_rows, tensors_in

R = TypeVar("R")
Divide = Callable[[Batch], tuple[Batch, Batch] | str]

_NO_MEMORY = ("out of memory", "DefaultCPUAllocator", "not enough memory", "can't allocate memory", "STATUS_ALLOC_FAILED")
_HINT = "Use a smaller `per_device_train_batch_size`, gradient_checkpointing, shorter rows, or a smaller model."


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an error is that of an allocator, of an accelerator or of the host."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _NO_MEMORY)


class Halving:
    """Runs updates, and after running out of memory runs one again with half the rows in each micro-batch.

    The loss of an update is a sum over its micro-batches, so that it stays the same. The size that fitted is kept for later
    updates.

    Args:
        divide: the halves of a micro-batch whose losses add up to its own, or why there are none.
        rows: the number of rows of a micro-batch, for messages.
    """

    def __init__(self, divide: Divide, rows: Callable[[Batch], int] = count_rows) -> None:
        self.divide, self.rows = divide, rows
        self.limit: int | None = None  # values of a micro-batch's largest input

    def run(self, update: Callable[[list[Batch]], R], batches: Sequence[Batch], clear: Callable[[], None]) -> R:
        """Run an update, again with smaller micro-batches while there is too little memory.

        Args:
            update: makes the gradients of an update from micro-batches.
            batches: as they come.
            clear: undoes what a failed update has left, such as gradients.

        Raises:
            TrainingError: there is too little memory for a single row, or for what cannot be divided.
        """
        generators, limit_before = Generators.now(), self.limit
        parts, failure = self._fitting(batches), ""
        while True:
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
            _free_memory()
            largest = max(parts, key=_size)
            reason = self.divide(largest)
            if isinstance(reason, str):
                what = f"there is too little memory for a micro-batch of {self.rows(largest)} rows, and {reason} ({failure})."
                raise TrainingError(what, hint=_HINT)
            self.limit = (_size(largest) + 1) // 2
            parts = self._fitting(batches)
        if self.limit != limit_before:
            rows, fitting = max(map(self.rows, batches)), max(map(self.rows, parts))
            what = f"too little memory for {rows} rows at once ({failure}): going on with at most {fitting}."
            warnings.warn(f"{what} The result stays the same.", TranseptWarning, stacklevel=2)
        return result

    def _fitting(self, batches: Sequence[Batch]) -> list[Batch]:
        """The micro-batches in parts of a size that fitted before."""
        return [part for batch in batches for part in self._parts(batch)]

    def _parts(self, batch: Batch) -> Iterator[Batch]:
        divided = "" if self.limit is None or _size(batch) <= self.limit else self.divide(batch)
        if isinstance(divided, str):
            yield batch
        else:
            for half in divided:
                yield from self._parts(half)


def check_sums(terms: Mapping[str, LossTerm]) -> None:
    """Refuse terms of a loss that are no sums over rows, where the rows of a batch were divided (``TrainingError``)."""
    if wrong := [name for name, term in terms.items() if not term.additive]:
        what = f"there is too little memory for a micro-batch, and its loss has {wrong[0]!r}, which is no sum over rows."
        raise TrainingError(what, hint=_HINT)


def _size(batch: Batch) -> int:
    """How large a micro-batch is: the values in its largest input."""
    return max((tensor.numel() for tensor in tensors_in(batch)), default=0) or count_rows(batch)


def _free_memory() -> None:
    gc.collect()
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()
