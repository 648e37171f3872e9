"""Updates that are done again with fewer rows at a time, after running out of memory; their result stays the same."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from transept.core.model import Model
from transept.errors import TrainingError, TranseptWarning
from transept.objectives.terms import LossTerm
from transept.training.counts import task_of
from transept.training.persist.generators import Generators

R = TypeVar("R")
Batch = Mapping[str, Any]

_NO_MEMORY = ("out of memory", "DefaultCPUAllocator", "not enough memory", "can't allocate memory", "STATUS_ALLOC_FAILED")
_HINT = "Use a smaller `per_device_train_batch_size`, gradient_checkpointing, shorter rows, or a smaller model."


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an error is that of an allocator, of an accelerator or of the host."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _NO_MEMORY)


class Halving:
    """Runs updates, and after running out of memory does one again with half the rows in each micro-batch.

    The loss of an update is a sum over its micro-batches, so that it stays the same. The size that fitted is kept for later
    updates.

    Args:
        model: whose micro-batches they are: it knows of inputs that have other than one entry for each row.
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        self.task = None if model is None else task_of(model)
        self.limit: int | None = None  # values of a micro-batch's largest input

    def run(
        self, update: Callable[[list[Batch]], R], batches: Sequence[Batch], clear: Callable[[], None], whole: str | None = None
    ) -> R:
        """Run an update, again with smaller micro-batches while there is too little memory.

        Args:
            update: makes the gradients of an update from micro-batches.
            batches: as they come.
            clear: undoes what a failed update has left, such as gradients.
            whole: why these micro-batches cannot be divided, if they cannot: a loss that is not a sum over rows.

        Raises:
            TrainingError: there is too little memory for a single row, or for what cannot be divided.
        """
        parts, said, before = list(batches) if whole is not None else self.fitted(batches), "", self.limit
        generators = Generators.now()
        while True:
            try:
                found = update(parts)
            except (RuntimeError, MemoryError) as error:
                if not ran_out_of_memory(error):
                    raise
                said = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            else:
                if self.limit != before:
                    most = max(self._rows(each) for each in parts)
                    what = f"too little memory for {max(map(self._rows, batches))} rows at once ({said}): going on with"
                    warnings.warn(f"{what} at most {most}. The result stays the same.", TranseptWarning, stacklevel=3)
                return found
            # Outside, where the error no longer holds what the update had made.
            clear()
            generators.restore()
            _free()
            parts = self._smaller(batches, parts, said, whole)

    def fitted(self, batches: Sequence[Batch]) -> list[Batch]:
        """The micro-batches in parts of a size that fitted before."""
        found = list(batches)
        while self.limit is not None and any(_size(each) > self.limit and halves(each, self.task) for each in found):
            found = [half for each in found for half in ((_size(each) > self.limit and halves(each, self.task)) or (each,))]
        return found

    def _rows(self, batch: Batch) -> int:
        return count_rows(batch, self.task)

    def _smaller(self, batches: Sequence[Batch], parts: Sequence[Batch], said: str, whole: str | None) -> list[Batch]:
        largest = max(parts, key=_size)
        rows = self._rows(largest)
        reason = whole or ("a single row is too large" if rows < 2 else uneven(largest, self.task))
        if reason is not None:
            what = f"there is too little memory for a micro-batch of {rows} rows, and {reason} ({said})."
            raise TrainingError(what, hint=_HINT)
        self.limit = (_size(largest) + 1) // 2
        return self.fitted(batches)


def check_sums(terms: Mapping[str, LossTerm]) -> None:
    """Refuse terms of a loss that are no sums over rows, where the rows of a batch were divided (``TrainingError``)."""
    if wrong := [name for name, term in terms.items() if not term.additive]:
        what = f"there is too little memory for a micro-batch, and its loss has {wrong[0]!r}, which is no sum over rows."
        raise TrainingError(what, hint=_HINT)


def reads_all_rows(model: nn.Module) -> str | None:
    """The path of a module that is being trained and reads all rows of a batch at once, if there is one."""
    norms = (nn.modules.batchnorm._BatchNorm,)
    return next((path for path, each in model.named_modules() if isinstance(each, norms) and each.training), None)


def count_rows(batch: Batch, task: Model | None = None) -> int:
    """B, by the first of the inputs that has one entry for each row; -1 where none has."""
    return next((number for _, number in _entries(batch, task)), -1)


def uneven(batch: Batch, task: Model | None = None) -> str | None:
    """Why a batch cannot be taken apart by rows: the input that has another number of entries; ``None`` where it can be."""
    rows = count_rows(batch, task)
    wrong = [f"`{name}` has {number} entries" for name, number in _entries(batch, task) if number != rows]
    return f"{wrong[0]}, which cannot be told apart by rows" if wrong else None


def halves(batch: Batch, task: Model | None = None) -> tuple[Batch, Batch] | None:
    """The first and the second half of the rows; ``None`` where there is one row, or an input that is not by row."""
    rows = count_rows(batch, task)
    if rows < 2 or uneven(batch, task) is not None:
        return None
    middle = (rows + 1) // 2

    def part(start: int, stop: int) -> Batch:
        beside = {} if task is None else task.inputs_of_rows(batch, start, stop)
        return {name: beside[name] if name in beside else _of_rows(value, start, stop) for name, value in batch.items()}

    return part(0, middle), part(middle, rows)


def _entries(batch: Batch, task: Model | None) -> Iterator[tuple[str, int]]:
    """The numbers of entries of all inputs that should have one for each row, with their names."""
    beside = {} if task is None else task.inputs_of_rows(batch, 0, 0)
    for name, value in batch.items():
        if name not in beside:
            yield from ((name, number) for number in _lengths(value))


def _lengths(value: Any) -> Iterator[int]:
    if isinstance(value, Mapping):
        for each in value.values():
            yield from _lengths(each)
    elif _is_nested(value):
        for each in value:
            yield from _lengths(each)
    elif isinstance(value, list | tuple) or (isinstance(value, Tensor | np.ndarray) and value.ndim > 0):
        yield len(value)


def _of_rows(value: Any, start: int, stop: int) -> Any:
    if isinstance(value, Mapping):
        return {name: _of_rows(each, start, stop) for name, each in value.items()}
    if _is_nested(value):
        return tuple(_of_rows(each, start, stop) for each in value)
    by_row = isinstance(value, list | tuple) or (isinstance(value, Tensor | np.ndarray) and value.ndim > 0)
    return value[start:stop] if by_row else value


def _is_nested(value: Any) -> bool:
    """Whether it is a tuple of inputs, as states of layers are; lists are by row."""
    return isinstance(value, tuple) and any(isinstance(each, Tensor | tuple) for each in value)


def _size(batch: Batch) -> int:
    """How large a micro-batch is: the values in its largest input."""
    return max([each.numel() for each in _tensors(batch)], default=0) or count_rows(batch)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping | tuple | list):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(each)


def _free() -> None:
    gc.collect()
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()
