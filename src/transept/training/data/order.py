"""Which row comes when: pure functions of the seed and the epoch, so that any place in a run can be found again.

Rows are numbers of a data set, of which an epoch has an array; a batch is a list of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Sampler

from transept.errors import ConfigError, refuse

Numbers = NDArray[np.int64]
Lengths = Sequence[int] | NDArray[Any]
Order = Callable[[torch.Generator], Numbers]
MEGA = 50  # batches that are sorted by length together


def place_seed(seed: int, *place: int, purpose: str = "") -> int:
    """A seed of 64 bits for a place, such as an epoch and a row, and for a purpose."""
    packed = struct.pack(f"<{len(place) + 1}q", seed, *place) + purpose.encode()
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little")


@contextlib.contextmanager
def kept_generators() -> Iterator[Callable[[int], None]]:
    """Gives a function that seeds the global generators, and puts them back at the end, in some 100 microseconds."""
    # Transforms draw from all three.
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        yield _seed
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        torch.set_rng_state(before[2])


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.default_generator.manual_seed(seed)


class Batches:
    """Batches of an epoch, flat in memory: batch ``i`` has the rows from ``bounds[i]`` to ``bounds[i + 1]``."""

    def __init__(self, rows: Sequence[int] | Numbers, bounds: Numbers) -> None:
        self.rows, self.bounds = rows, bounds

    @classmethod
    def of(cls, rows: Sequence[int] | Numbers, size: int, drop_last: bool = False) -> Batches:
        """Batches of that size; the last one may be smaller, or is left out."""
        bounds = np.append(np.arange(0, len(rows), size), len(rows))
        return cls(rows, bounds[:-1] if drop_last and len(rows) % size else bounds)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, number: int) -> list[int]:
        number = range(len(self))[number]
        rows = self.rows[self.bounds[number] : self.bounds[number + 1]]
        return rows.tolist() if isinstance(rows, np.ndarray) else list(rows)

    def __iter__(self) -> Iterator[list[int]]:
        return map(self.__getitem__, range(len(self)))


def shuffled(size: int, generator: torch.Generator | None) -> Numbers:
    rows: Numbers = torch.randperm(size, generator=generator).numpy()
    return rows


def by_falling_length(lengths: Lengths) -> Numbers:
    return np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable")


def grouped_by_length(lengths: Lengths, batch_size: int, generator: torch.Generator | None) -> Numbers:
    """All rows, shuffled, then sorted by falling length inside groups of 50 batches; the longest row comes first.

    For fewer rows there are four groups. The order is the reference's for the same generator.
    """
    lengths = np.asarray(lengths)
    size = batch_size * (min(len(lengths) // (batch_size * 4), MEGA) or 1)
    rows = _sorted_in_groups(lengths, size, generator)
    longest = int(lengths[rows[::size]].argmax()) * size
    rows[[0, longest]] = rows[[longest, 0]]
    return rows


def _sorted_in_groups(lengths: NDArray[Any], size: int, generator: torch.Generator | None) -> Numbers:
    rows = shuffled(len(lengths), generator)
    for start in range(0, len(rows), size):
        group = rows[start : start + size]
        group[:] = group[by_falling_length(lengths[group])]
    return rows


def token_budget(lengths: Lengths, budget: int, seed: int, epoch: int) -> Batches:
    """Batches of rows of like length, each as large as its padded size, rows times longest, stays within the budget.

    Rows are shuffled, sorted inside large groups, and cut; then batches are shuffled (``ConfigError``: a row is
    longer than the budget).
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    row = int(lengths.argmax())
    if lengths[row] > budget:
        what = f"row {row} has {lengths[row]} tokens, but `max_tokens_per_batch` is {budget}."
        raise ConfigError(what, hint="Raise it, or truncate rows.")
    generator = torch.Generator().manual_seed(place_seed(seed, epoch, purpose="token budget") >> 1)
    size = max(1, MEGA * budget // max(1, int(lengths.sum()) // len(lengths)))
    rows, starts, longest = _sorted_in_groups(lengths, size, generator), list[int](), 0
    for place, length in enumerate(lengths[rows].tolist()):
        if place % size == 0 or (place + 1 - starts[-1]) * longest > budget:
            starts.append(place)
            longest = length
    bounds = np.array([*starts, len(rows)])
    order = shuffled(len(starts), generator)
    mixed = np.concatenate([rows[bounds[batch] : bounds[batch + 1]] for batch in order])
    return Batches(mixed, np.append(0, np.diff(bounds)[order].cumsum()))


class LengthGroupedSampler(Sampler[int]):
    """The reference's sampler of rows of like length, for loaders of one's own."""

    def __init__(
        self, batch_size: int, dataset: Any = None, lengths: Any = None, model_input_name: Any = None, generator: Any = None
    ) -> None:
        refuse(dataset is None and lengths is None, "a sampler by length needs a `dataset`, or `lengths`.")
        name = model_input_name or "input_ids"
        self.lengths = [len(row[name]) for row in dataset] if lengths is None else [int(length) for length in lengths]
        self.batch_size, self.generator = batch_size, generator

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        return map(int, grouped_by_length(self.lengths, self.batch_size, self.generator))


class EpochSampler(Sampler[int]):
    """Rows in an order of the seed and the epoch: shuffled as by the reference's trainer, or as they are.

    ``order`` makes another order of the epoch's generator.
    """

    def __init__(self, size: int, seed: int, *, shuffle: bool = True, order: Order | None = None) -> None:
        self.size, self.seed, self.shuffle, self.epoch = size, seed, shuffle, 0
        self.order = order or partial(shuffled, size)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def batches(self, size: int, drop_last: bool) -> Batches:
        return Batches.of(self.rows(), size, drop_last)

    def rows(self) -> Numbers:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return self.order(generator) if self.shuffle else np.arange(self.size)

    def __iter__(self) -> Iterator[int]:
        return map(int, self.rows())

    def __len__(self) -> int:
        return self.size


class TokenBudgetSampler(EpochSampler):
    """Rows in batches of like length that stay within a number of tokens."""

    def __init__(self, lengths: Lengths, seed: int, budget: int) -> None:
        super().__init__(len(lengths), seed)
        self.lengths, self.budget = lengths, budget

    def batches(self, size: int, drop_last: bool) -> Batches:
        return token_budget(self.lengths, self.budget, self.seed, self.epoch)

    def rows(self) -> Numbers:
        return np.asarray(self.batches(0, False).rows)


@dataclass(frozen=True)
class BatchPlace:
    epoch: int
    number: int  # of the batch in the epoch
    rows: list[int]  # of the data set


class EpochBatches(Sampler[BatchPlace]):
    """The batches of an epoch, each with its place; ``start`` is the number of the first one that is given.

    ``sampler`` is one of those above, or any of PyTorch's. Where R processes take batches in turn, the one of rank r
    gives every R-th from number r on; its length, and numbers to start from, count its own batches alone.
    """

    def __init__(self, sampler: Any, batch_size: int, drop_last: bool = False, rank: int = 0, ranks: int = 1) -> None:
        self.sampler: Sampler[int] = sampler
        self.batch_size, self.drop_last, self.rank, self.ranks = batch_size, drop_last, rank, ranks
        self.epoch = self.start = 0
        # Batches may have as many rows as their lengths allow, so that their number differs from epoch to epoch.
        self.varies = isinstance(sampler, TokenBudgetSampler)

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        self.epoch, self.start = epoch, start
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def all(self) -> Batches:
        """All batches of the epoch, of all processes."""
        if isinstance(self.sampler, EpochSampler):
            return self.sampler.batches(self.batch_size, self.drop_last)
        return Batches.of(list(self.sampler), self.batch_size, self.drop_last)

    def __iter__(self) -> Iterator[BatchPlace]:
        batches = self.all()
        for number in range(self.start * self.ranks + self.rank, len(batches), self.ranks):
            yield BatchPlace(self.epoch, number, batches[number])

    def __len__(self) -> int:
        if self.varies:
            return -(-len(self.all()) // self.ranks)
        rows = len(self.sampler)  # type: ignore[arg-type]  # samplers of data sets with a length have one
        batches = rows // self.batch_size if self.drop_last else -(-rows // self.batch_size)
        return -(-batches // self.ranks)
