"""Batches that waste little: sorted by length within a list read ahead, cut by a budget of positions."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from transept.errors import InputError, TranseptError

T = TypeVar("T")
R = TypeVar("R")

FIRST_READ, MOST_READ = 64, 1024
# Some of PyTorch's allocators say it in words alone.
_MEMORY_ERRORS = (torch.OutOfMemoryError, MemoryError)
_NO_MEMORY = ("out of memory", "not enough memory", "can't allocate memory", "STATUS_ALLOC_FAILED")


@dataclass
class Sample:
    """One row for the model: its values by name, its positions, which rows it may be batched with, and its result."""

    inputs: dict[str, Any]
    length: int
    group: Hashable = None
    result: Any = None

    @classmethod
    def of(cls, input_ids: list[int], **more: Any) -> Sample:
        """A row of token ids."""
        return cls({"input_ids": input_ids, **more}, len(input_ids))

    def __len__(self) -> int:
        return self.length


def flat(prepared: Sequence[list[Sample] | TranseptError]) -> list[Sample]:
    """All rows of the inputs that could be prepared."""
    return [row for rows in prepared if not isinstance(rows, TranseptError) for row in rows]


def read_ahead(items: Iterable[T], most: int = MOST_READ, most_bytes: int | None = None) -> Iterator[list[T]]:
    """Cut a stream into lists of ``most`` items, or about ``most_bytes``, at most; what comes before its error is not lost.

    The first lists of what is no sequence are short, so that a first answer comes soon.
    """
    size, weight = most if isinstance(items, Sequence) else min(most, FIRST_READ), 0
    read: list[T] = []
    try:
        for item in items:
            read.append(item)
            weight += 0 if most_bytes is None else _bytes(item)
            if len(read) == size or (most_bytes is not None and weight >= most_bytes):
                yield read
                read, weight, size = [], 0, min(2 * size, most)
    except Exception:  # the source's own, of whatever kind; it is raised again
        if read:
            yield read
        raise
    if read:
        yield read


def _bytes(item: Any) -> int:
    """Bytes of a file, a string of bytes or an array; 0 where that is not known."""
    try:
        size: int = os.stat(item).st_size if isinstance(item, str | os.PathLike) else getattr(item, "nbytes", 0)
    except (OSError, ValueError):
        return 0  # opening it will tell what is wrong
    return len(item) if isinstance(item, bytes) else size


def batches(samples: Sequence[Sample], budget: int, most_rows: int | None = None, *, padded: bool = True) -> list[list[int]]:
    """Indices of samples, batch by batch, longest first; a sample of more than ``budget`` positions is a batch of its own.

    Each of the rows of a batch takes as many positions as its longest one where they are ``padded``.
    """
    groups: dict[Hashable, list[int]] = {}
    for index, sample in enumerate(samples):
        groups.setdefault(sample.group, []).append(index)
    found: list[list[int]] = []
    for members in groups.values():
        members.sort(key=lambda index: -samples[index].length)
        batch, filled = list[int](), 0
        for index in members:
            size = max(samples[batch[0] if padded and batch else index].length, 1)
            if batch and (filled + size > budget or len(batch) == most_rows):
                found.append(batch)
                batch, filled, size = [], 0, max(samples[index].length, 1)
            batch.append(index)
            filled += size
        found.append(batch)
    return found


def attempt(function: Callable[..., R], *given: Any) -> R | TranseptError:
    """What the function gives, or the error of ours that it raises."""
    try:
        return function(*given)
    except TranseptError as error:
        return error


def halving(
    function: Callable[[list[T]], Sequence[R]], items: list[T], full: Callable[[int], None] | None = None
) -> list[R | TranseptError]:
    """``function(items)``, one result an item, or errors of ours in the places of the items that cause them.

    What fails, or is too large for the device's memory (``full`` is told its size), is halved until what fails is alone.
    """
    if not items:
        return []
    wrong: TranseptError | None = None
    try:
        return list(function(items))
    except TranseptError as error:
        wrong = error
    except (RuntimeError, MemoryError) as error:
        if not isinstance(error, _MEMORY_ERRORS) and not any(words in str(error) for words in _NO_MEMORY):
            raise
    # Beyond the clauses, where nothing of the failed attempt is kept alive any more.
    if len(items) == 1:
        hint = "Shorten it, ask for less (shorter answers, fewer beams), or load the model in a smaller type."
        return [wrong or InputError("there is not enough memory for this input alone.", hint=hint)]
    if wrong is None and full is not None:
        full(len(items))
    half = len(items) // 2
    return [*halving(function, items[:half], full), *halving(function, items[half:], full)]
