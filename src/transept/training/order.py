"""Which row comes when: pure functions of the seed and the epoch, so that any place in a run can be found again.

Rows are numbers of a data set; a batch is a list of them.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch.utils.data import Sampler

from transept.errors import ConfigError

MEGA = 50  # batches that are sorted by length together


def place_seed(seed: int, *place: int, purpose: str = "") -> int:
    """A seed of 64 bits for a place, such as an epoch and a row, and for a purpose."""
    packed = struct.pack(f"<{len(place) + 1}q", seed, *place) + purpose.encode()
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little")


def shuffled(size: int, seed: int, epoch: int) -> list[int]:
    """All rows in the order that the reference's trainer draws in that epoch."""
    generator = torch.Generator().manual_seed(seed + epoch)
    rows: list[int] = torch.randperm(size, generator=generator).tolist()
    return rows


def grouped_by_length(lengths: Sequence[int], batch_size: int, generator: torch.Generator) -> list[int]:
    """All rows, shuffled, then sorted by falling length inside groups of 50 batches; the longest row of all comes first.

    For fewer rows there are four groups. The order is the reference's for the same generator.
    """
    size = batch_size * (min(len(lengths) // (batch_size * 4), MEGA) or 1)
    rows: list[int] = torch.randperm(len(lengths), generator=generator).tolist()
    groups = [sorted(rows[at : at + size], key=lambda row: -lengths[row]) for at in range(0, len(rows), size)]
    longest = max(range(len(groups)), key=lambda group: lengths[groups[group][0]])
    groups[0][0], groups[longest][0] = groups[longest][0], groups[0][0]
    return [row for group in groups for row in group]


def token_budget(lengths: Sequence[int], budget: int, seed: int, epoch: int) -> list[list[int]]:
    """Batches of rows of like length, each as large as its padded size, rows times longest, stays within the budget.

    Rows are shuffled, sorted inside large groups, and cut; then batches are shuffled.

    Raises:
        ConfigError: a row is longer than the budget.
    """
    if lengths and max(lengths) > budget:
        row = max(range(len(lengths)), key=lengths.__getitem__)
        what = f"row {row} has {lengths[row]} tokens, but `max_tokens_per_batch` is {budget}."
        raise ConfigError(what, hint="Raise it, or truncate rows.")
    generator = torch.Generator().manual_seed(place_seed(seed, epoch, purpose="token budget") >> 1)
    rows = torch.randperm(len(lengths), generator=generator).tolist()
    mean = max(1, sum(lengths) // max(1, len(lengths)))
    size = max(1, MEGA * budget // mean)
    batches: list[list[int]] = []
    for at in range(0, len(rows), size):
        batch: list[int] = []
        for row in sorted(rows[at : at + size], key=lambda row: -lengths[row]):
            if batch and (len(batch) + 1) * lengths[batch[0]] > budget:
                batches.append(batch)
                batch = []
            batch.append(row)
        batches.append(batch)
    return [batches[at] for at in torch.randperm(len(batches), generator=generator).tolist()]


def in_batches(rows: Sequence[int], size: int, drop_last: bool = False) -> list[list[int]]:
    """Rows in batches of that size; the last one may be smaller, or is left out."""
    batches = [list(rows[at : at + size]) for at in range(0, len(rows), size)]
    return batches[:-1] if drop_last and batches and len(batches[-1]) < size else batches


class EpochSampler(Sampler[int]):
    """All rows of a data set in the order of an epoch; see ``set_epoch``."""

    def __init__(self, size: int, seed: int, *, shuffle: bool = True) -> None:
        self.size, self.seed, self.shuffle, self.epoch = size, seed, shuffle, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def batches(self, size: int, drop_last: bool) -> list[list[int]]:
        """The batches of the epoch."""
        return in_batches(list(self), size, drop_last)

    def rows(self) -> list[int]:
        """The rows of the epoch, in order."""
        return shuffled(self.size, self.seed, self.epoch) if self.shuffle else list(range(self.size))

    def __iter__(self) -> Iterator[int]:
        return iter(self.rows())

    def __len__(self) -> int:
        return self.size


class LengthSampler(EpochSampler):
    """Rows grouped by length; ``group`` is the number of rows of an update."""

    def __init__(self, lengths: Sequence[int], seed: int, group: int) -> None:
        super().__init__(len(lengths), seed)
        self.lengths, self.group = lengths, group

    def rows(self) -> list[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return grouped_by_length(self.lengths, self.group, generator)


class SortedSampler(EpochSampler):
    """Rows by falling length, for evaluations."""

    def __init__(self, lengths: Sequence[int]) -> None:
        super().__init__(len(lengths), 0)
        self.lengths = lengths

    def rows(self) -> list[int]:
        return sorted(range(self.size), key=lambda row: -self.lengths[row])


class TokenBudgetSampler(EpochSampler):
    """Rows in batches of like length that stay within a number of tokens."""

    def __init__(self, lengths: Sequence[int], seed: int, budget: int) -> None:
        super().__init__(len(lengths), seed)
        self.lengths, self.budget = lengths, budget

    def batches(self, size: int, drop_last: bool) -> list[list[int]]:
        return token_budget(self.lengths, self.budget, self.seed, self.epoch)

    def rows(self) -> list[int]:
        return [row for batch in self.batches(0, False) for row in batch]


@dataclass(frozen=True)
class BatchPlace:
    """Which batch it is, and which rows of the data set it has."""

    epoch: int
    number: int
    rows: list[int]


class EpochBatches(Sampler[BatchPlace]):
    """The batches of an epoch, each with its place; ``start`` is the number of the first one that is given.

    ``sampler`` is one of those above, or any of PyTorch's. Where R processes take batches in turn, the one of rank r gives
    every R-th from number r on; its length, and numbers to start from, count its own, where the last may be missing.
    """

    def __init__(self, sampler: Sampler[int], batch_size: int, drop_last: bool = False, rank: int = 0, ranks: int = 1) -> None:
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last
        self.rank, self.ranks = rank, ranks
        self.epoch = self.start = 0

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        self.epoch, self.start = epoch, start
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def all(self) -> list[list[int]]:
        """All batches of the epoch, of all processes."""
        if isinstance(self.sampler, EpochSampler):
            return self.sampler.batches(self.batch_size, self.drop_last)
        return in_batches(list(self.sampler), self.batch_size, self.drop_last)

    def __iter__(self) -> Iterator[BatchPlace]:
        first = self.start * self.ranks + self.rank
        for number, rows in islice(enumerate(self.all()), first, None, self.ranks):
            yield BatchPlace(self.epoch, number, rows)

    def __len__(self) -> int:
        if isinstance(self.sampler, TokenBudgetSampler):
            return -(-len(self.all()) // self.ranks)
        rows = len(self.sampler)  # type: ignore[arg-type]  # samplers of data sets with a length have one
        batches = rows // self.batch_size if self.drop_last else -(-rows // self.batch_size)
        return -(-batches // self.ranks)
