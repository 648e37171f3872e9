"""Batches that waste little: sorted by length within a window, cut by a budget of positions.

A batch costs its rows times its longest row. Sorting makes the rows of a batch nearly equally long, and the budget keeps
the cost of all batches alike, whatever the lengths.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

T = TypeVar("T")

FIRST_WINDOW, LAST_WINDOW = 64, 1024


@dataclass
class Sample:
    """One row for the model.

    ``inputs`` are its values by name, ``length`` its positions. Samples of different ``group`` are never in one batch;
    models whose rows disturb each other when padded put the length there.
    """

    inputs: dict[str, Any]
    length: int
    group: Hashable = None


def windows(items: Iterable[T]) -> Iterator[list[T]]:
    """Cut a stream into lists: short ones first, so that a first answer comes soon, then longer ones, which sort better.

    A sequence is known to be finite, so its windows are long from the start. What a failing source gave before its error
    still comes, and then the error.
    """
    size = LAST_WINDOW if isinstance(items, Sequence) else FIRST_WINDOW
    iterator = iter(items)
    failure: Exception | None = None
    full = True
    while full and failure is None:
        window: list[T] = []
        try:
            window.extend(islice(iterator, size))
        except Exception as error:  # the source's own, of whatever kind; it is raised again
            failure = error
        if window:
            yield window
        full = len(window) == size
        size = min(2 * size, LAST_WINDOW)
    if failure is not None:
        raise failure


def batches(samples: Sequence[Sample], budget: int, most_rows: int | None = None) -> list[list[int]]:
    """Indices of samples, batch by batch, longest first.

    Args:
        samples: of any lengths.
        budget: positions of a batch, padding included; a longer sample is a batch of its own.
        most_rows: rows of a batch at most.
    """
    groups: dict[Hashable, list[int]] = {}
    for index, sample in enumerate(samples):
        groups.setdefault(sample.group, []).append(index)
    found: list[list[int]] = []
    for members in groups.values():
        members.sort(key=lambda index: -samples[index].length)
        batch: list[int] = []
        for index in members:
            full = batch and (len(batch) + 1) * max(samples[batch[0]].length, 1) > budget
            if full or (most_rows is not None and len(batch) == most_rows):
                found.append(batch)
                batch = []
            batch.append(index)
        found.append(batch)
    return found
