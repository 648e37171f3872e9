"""Loaders whose every batch follows from its place: neither workers nor what was read before change what a row becomes.

Before a row is read and before a batch is collated, the global generators of Python, NumPy and PyTorch are seeded from the seed
of the run and the place, and put back afterwards.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from transept.errors import InputError, InputTypeError
from transept.training.order import BatchPlace, EpochBatches, place_seed

Collate = Callable[[list[Any]], Any]
_END = object()
KEPT_STATES = 1024  # as many batches as may be read ahead of an update's end


@contextlib.contextmanager
def kept_generators() -> Iterator[Callable[[int], None]]:
    """Gives a function that seeds the global generators, which are as before at the end."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002 (what transforms draw from)
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


@dataclass
class Columns:
    """Renames and leaves out the columns of a row.

    ``kept`` are the names that stay (``None``: all), ``label`` and ``label_ids`` become ``labels`` where that is one of them.
    """

    kept: frozenset[str] | None

    def __call__(self, row: Any) -> Any:
        if self.kept is None or not isinstance(row, Mapping):
            return row
        return {name: value for name, value in row.items() if name in self.kept}


class _Rows(torch.utils.data.Dataset[Any]):
    """A data set that is read by batches with a place."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self.dataset, self.seed = dataset, seed
        self.draws = not isinstance(dataset, list | tuple)  # rows of a list are there already

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, row: int) -> Any:
        return self.dataset[row]

    def __getitems__(self, place: BatchPlace) -> tuple[BatchPlace, list[Any]]:
        if not self.draws:
            return place, [self.dataset[row] for row in place.rows]
        with kept_generators() as seed:
            rows = []
            for row in place.rows:
                seed(place_seed(self.seed, place.epoch, row, purpose="row"))
                rows.append(self.dataset[row])
        return place, rows


_END = object()  # of an iterable


class _Stream(IterableDataset[Any]):
    """An iterable whose batches get a place: the epoch, and a number of their worker's own.

    Where R processes take batches in turn, the one of rank r gives every R-th from number r on.
    """

    def __init__(self, dataset: Any, batch_size: int, seed: int, drop_last: bool, rank: int = 0, ranks: int = 1) -> None:
        self.dataset, self.batch_size, self.seed, self.drop_last = dataset, batch_size, seed, drop_last
        self.rank, self.ranks = rank, ranks
        self.epoch = self.start = 0
        # The data set after so many batches of this epoch, and whether it had ended, where it tells its state.
        self.states: dict[int, dict[str, Any]] = {}
        self.state: dict[str, Any] | None = None  # the one of these that the next epoch goes on from, at its batch ``start``

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Begin at that epoch; the rows of the first ``start`` batches are read, and not collated."""
        self.epoch, self.start, self.states = epoch, start, {}
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    @property
    def keeps_state(self) -> bool:
        """Whether the data set tells where it is, and can go on from there."""
        return hasattr(self.dataset, "state_dict") and hasattr(self.dataset, "load_state_dict")

    def note(self, number: int, *, ended: bool = False) -> None:
        """Keep the data set's state after so many batches; in a worker nobody could read it."""
        if self.keeps_state and get_worker_info() is None:
            self.states[number] = {"state": self.dataset.state_dict(), "ended": ended}
            self.states.pop(number - KEPT_STATES, None)

    def __iter__(self) -> Iterator[tuple[BatchPlace, list[Any]]]:
        info = get_worker_info()
        workers, worker = (info.num_workers, info.id) if info else (1, 0)
        rows: list[Any] = []
        read = 0  # batches, those of other processes too
        if self.state is not None and info is None:
            self.dataset.load_state_dict(self.state["state"])
            # The state is the first process's behind its batch before ``start``.
            read, ended, self.state = (self.start - 1) * self.ranks + 1, self.state["ended"], None
            if ended:
                return
        source: Iterator[Any] | None = None
        row: Any = None
        while row is not _END:
            with kept_generators() as seed:
                place = (worker + read * workers) * self.batch_size + len(rows)
                seed(place_seed(self.seed, self.epoch, place, purpose="row"))
                source = iter(self.dataset) if source is None else source
                row = next(source, _END)
            if row is not _END:
                rows.append(row)
            if len(rows) == self.batch_size or (row is _END and rows and not self.drop_last):
                number = worker + read // self.ranks * workers  # among those of this process
                if read % self.ranks == self.rank and number >= self.start:
                    self.note(number + 1, ended=row is _END)
                    yield BatchPlace(self.epoch, number * self.ranks + self.rank, []), rows
                rows, read = [], read + 1


@dataclass
class _Collate:
    """Collates a batch with the generators of its place."""

    collate: Collate
    columns: Columns
    seed: int

    def __call__(self, placed: tuple[BatchPlace, list[Any]]) -> Any:
        place, rows = placed
        with kept_generators() as seed:
            seed(place_seed(self.seed, place.epoch, place.number, purpose="batch"))
            reseed(self.collate, self.seed, place)
            return self.collate([self.columns(row) for row in rows])


def reseed(collate: Any, seed: int, place: BatchPlace) -> None:
    """Seed a collator's own generator, where it has one."""
    own = getattr(collate, "generator", None)
    if isinstance(own, torch.Generator):
        own.manual_seed(place_seed(seed, place.epoch, place.number, purpose="collator"))
    elif isinstance(own, np.random.Generator):
        collate.generator = np.random.default_rng(place_seed(seed, place.epoch, place.number, purpose="collator"))


def make_loader(
    dataset: Any,
    batches: Any,
    collate: Collate,
    columns: Columns,
    *,
    seed: int,
    batch_size: int,
    drop_last: bool,
    rank: int = 0,
    ranks: int = 1,
    **options: Any,
) -> DataLoader[Any]:
    """A loader of the batches of a sampler, or of an iterable where ``batches`` is ``None``.

    Of ``ranks`` processes that take batches in turn this is number ``rank``. ``options`` are those of PyTorch's
    ``DataLoader``: workers, pinned memory and such.
    """
    collated: Any = _Collate(collate, columns, seed)
    options["generator"] = torch.Generator().manual_seed(seed)  # the loader would draw from the global one
    if batches is None:
        stream = _Stream(dataset, batch_size, seed, drop_last, rank, ranks)
        return DataLoader(stream, batch_size=None, collate_fn=collated, **options)
    if not isinstance(batches, EpochBatches):
        batches = EpochBatches(batches, batch_size, drop_last, rank, ranks)
    return DataLoader(_Rows(dataset, seed), batch_sampler=batches, collate_fn=collated, **options)


def begin_epoch(loader: Any, epoch: int, start: int) -> Iterator[Any]:
    """The batches of an epoch of any loader from number ``start`` on; ours begin there, others are read up to there."""
    for part in (getattr(loader, "batch_sampler", None), getattr(loader, "dataset", None)):
        if isinstance(part, EpochBatches | _Stream):
            part.set_epoch(epoch, start)
            return iter(loader)
    parts: list[Any] = [loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)]
    for part in parts:
        if hasattr(part, "set_epoch"):
            part.set_epoch(epoch)
    batches: Iterator[Any] = iter(loader)
    for _ in range(start):
        next(batches, None)
    return batches


def stream_of(loader: Any) -> _Stream | None:
    """The iterable behind a loader of ours, which rows cannot be read from by number; ``None`` for other loaders."""
    dataset = getattr(loader, "dataset", None)
    return dataset if isinstance(dataset, _Stream) else None


def first_batch(loader: Any, epoch: int = 0) -> Any:
    """The first batch of an epoch of all processes, to stand in where one has none left; ``None``: there is none."""
    for part in (getattr(loader, "batch_sampler", None), getattr(loader, "dataset", None)):
        if isinstance(part, EpochBatches | _Stream):
            rank, part.rank = part.rank, 0
            try:
                return next(begin_epoch(loader, epoch, 0), None)
            finally:
                part.rank = rank
    return next(begin_epoch(loader, epoch, 0), None)


def source_of(loader: Any) -> Any:
    """The data set of a loader, as it was given."""
    dataset = getattr(loader, "dataset", None)
    return dataset.dataset if isinstance(dataset, _Rows | _Stream) else dataset


def lengths_of(dataset: Any, column: str, input_name: str) -> Sequence[int]:
    """The number of tokens of each row: the column of lengths, or else how many inputs a row has.

    Raises:
        InputTypeError: rows that have neither.
    """
    if column in (getattr(dataset, "column_names", None) or ()):
        return [int(length) for length in dataset[column]]
    try:
        return [len(dataset[row][input_name]) for row in range(len(dataset))]  # iterating might never end
    except (KeyError, TypeError, IndexError):
        hint = f"Add a column {column!r}, or use rows that are dictionaries with {input_name!r}."
        raise InputTypeError(f"the lengths of rows are not known: they have no {input_name!r}.", hint=hint) from None


def check_rows(dataset: Any, name: str) -> None:
    """Refuse a data set without rows, and what is none (``InputError``)."""
    if dataset is None:
        raise InputError(f"there is no `{name}`.", hint=f"Pass one to the trainer as `{name}`.")
    if hasattr(dataset, "__len__") and len(dataset) == 0:
        raise InputError(f"`{name}` has no rows.")
    if not hasattr(dataset, "__getitem__") and not hasattr(dataset, "__iter__"):
        raise InputTypeError(f"`{name}` is {type(dataset).__name__}, which can be neither indexed nor iterated over.")
