"""Loaders whose every batch follows from its place: neither workers nor earlier batches change what a row becomes.

Before a row is read and before a batch is collated, the global generators of Python, NumPy and PyTorch are seeded
from the seed of the run and the place, and put back afterwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from transept.adapt.features import Features, precompute
from transept.core.task import TaskModel
from transept.errors import InputError, InputTypeError, refuse
from transept.tables.dataset import TableDataset
from transept.training.callbacks.base import length_of
from transept.training.data.order import BatchPlace, EpochBatches, kept_generators, place_seed
from transept.training.data.stream import Placed, Stream, StreamState
from transept.training.loss import precision
from transept.training.objective import own_task, to_device

Collate = Callable[[list[Any]], Any]


@dataclass
class Columns:
    """Leaves columns of a row out; ``kept`` are the names that stay (``None``: all)."""

    kept: frozenset[str] | None

    def __call__(self, row: Any) -> Any:
        if self.kept is None or not isinstance(row, Mapping):
            return row
        return {name: value for name, value in row.items() if name in self.kept}

    def collate(self, collate: Collate, rows: list[Any]) -> Any:
        return collate([self(row) for row in rows])


class _Rows(torch.utils.data.Dataset[Any]):
    """A data set that is read by batches with a place."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self.dataset, self.seed = dataset, seed
        is_table = isinstance(dataset, TableDataset)
        self.is_stored = dataset.is_stored if is_table else isinstance(dataset, list | tuple)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, row: int) -> Any:
        return self.dataset[row]

    def __getitems__(self, place: BatchPlace) -> tuple[BatchPlace, list[Any]]:
        if self.is_stored:  # reading draws no random numbers
            return place, [self.dataset[row] for row in place.rows]
        if hasattr(self.dataset, "set_epoch"):  # here, since this may be a worker's copy
            self.dataset.set_epoch(place.epoch)
        with kept_generators() as seed:
            rows = []
            for row in place.rows:
                seed(place_seed(self.seed, place.epoch, row, purpose="row"))
                rows.append(self.dataset[row])
        return place, rows


def _collate(collate: Any, columns: Columns, seed: int, placed: Placed) -> Any:
    """Collate a batch with the generators of its place, the collator's own among them."""
    place, rows = placed
    if rows is None:
        return None
    with kept_generators() as seed_all:
        seed_all(place_seed(seed, place.epoch, place.number, purpose="batch"))
        generator: Any = getattr(collate, "generator", None)
        own_seed = place_seed(seed, place.epoch, place.number, purpose="collator")
        if hasattr(collate, "reseed"):
            collate.reseed(own_seed)
        elif isinstance(generator, torch.Generator):
            generator.manual_seed(own_seed)
        elif isinstance(generator, np.random.Generator):
            collate.generator = np.random.default_rng(own_seed)
        return columns.collate(collate, rows)


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

    Of ``ranks`` processes that take batches in turn this is number ``rank``. ``options`` are the ``DataLoader``'s.
    """
    options["collate_fn"] = partial(_collate, collate, columns, seed)
    options["generator"] = torch.Generator().manual_seed(seed)  # the loader would draw from the global one
    if batches is None:
        stream = Stream(dataset, batch_size, seed, drop_last, rank, ranks, options)
        return DataLoader(stream, batch_size=None, **options)
    if not isinstance(batches, EpochBatches):
        batches = EpochBatches(batches, batch_size, drop_last, rank, ranks)
    return DataLoader(_Rows(dataset, seed), batch_sampler=batches, **options)


@contextlib.contextmanager
def ending_workers(loader: Any) -> Iterator[None]:
    """End the workers of a loader afterwards that live on between epochs.

    PyTorch would end them where it finds the loader among garbage, and there waits five seconds for each.
    """
    try:
        yield
    finally:
        if (batches := getattr(loader, "_iterator", None)) is not None:
            batches._shutdown_workers()
            loader._iterator = None


def computed_once(trainer: Any, loader: DataLoader[Any]) -> tuple[DataLoader[Any], nn.Module]:
    """A loader of a frozen backbone's states in the order of a loader of rows, and the head to train on them.

    Refused (``InputError``, ``UnsupportedError``) are rows without numbers, a backbone that is trained in part, and a
    model without a head that could be told from its backbone.
    """
    args, task = trainer.args, own_task(trainer.model, "precompute")
    batches: Any = loader.batch_sampler
    source = trainer.get_test_dataloader(trainer.train_dataset)
    if not isinstance(batches, EpochBatches) or not isinstance(source.batch_sampler, EpochBatches):
        raise InputError("`precompute` needs rows that can be read by number.", hint="Leave it out.")
    with precision(args):
        features, head = precompute(cast(TaskModel[Any], task), (to_device(batch, args.device) for batch in source))
    order = [row for batch in source.batch_sampler.all() for row in batch]
    rows = [row for _, row in sorted(zip(order, features.rows, strict=True), key=lambda pair: pair[0])]
    collate = Features(rows, features.padding).collate
    sizes = {"batch_size": args.train_batch_size, "drop_last": args.dataloader_drop_last}
    return make_loader(rows, batches, collate, Columns(None), seed=args.seed, **sizes), head


def begin_epoch(loader: Any, epoch: int, start: int) -> Iterator[Any]:
    """The batches of an epoch from number ``start`` on; loaders of ours begin there, others are read up to there."""
    part, skipped = _placed(loader), start
    if part is not None:
        part.set_epoch(epoch, start)
    else:
        batches_of: Any = getattr(loader, "batch_sampler", None)
        others: tuple[Any, ...] = (loader, getattr(loader, "sampler", None), batches_of, getattr(batches_of, "sampler", None))
        for other in others:
            if hasattr(other, "set_epoch"):
                other.set_epoch(epoch)
    batches: Iterator[Any] = iter(loader)
    if isinstance(part, EpochBatches):
        skipped = 0
    elif part is not None and not part.workers:
        length = length_of(loader)
        if length is not None and length > start:
            return _to_the_end(batches, length - start)
        skipped = int(length is not None)  # such an iterable has no batch left, but its own code comes to its end
    for _ in range(skipped):
        next(batches, None)
    return batches


def _to_the_end(batches: Iterator[Any], count: int) -> Iterator[Any]:
    """So many batches of an iterable that has a length; before the last one, the iterable's code comes to its end."""
    for number, batch in zip(range(1, count + 1), batches):
        if number == count:
            next(batches, None)
        yield batch


def _placed(loader: Any) -> EpochBatches | Stream | None:  # what gives the batches of a loader of ours their places
    parts = getattr(loader, "batch_sampler", None), getattr(loader, "dataset", None)
    return next((part for part in parts if isinstance(part, EpochBatches | Stream)), None)


def is_stream(loader: Any) -> bool:
    """Whether a loader of ours reads an iterable, whose rows cannot be read by number."""
    return isinstance(_placed(loader), Stream)


def stream_state(loader: Any, epoch: int, batch: int) -> StreamState | None:
    """The state of a loader's iterable before a batch, for :func:`restore_stream`; ``None`` where it tells none."""
    part = _placed(loader)
    return part.state_at(epoch, batch) if isinstance(part, Stream) else None


def restore_stream(loader: Any, state: StreamState, epoch: int, batch: int) -> bool:
    """Let a loader's iterable go on from a state at its next epoch, which begins at a batch; gives whether it can."""
    part = _placed(loader)
    if not isinstance(part, Stream) or not part.keeps_state:
        return False
    is_before_epoch = batch == 0 and state.epoch == epoch - 1
    is_within_epoch = state.epoch == epoch and 0 < state.rows <= batch * part.batch_size * part.ranks
    if is_before_epoch or is_within_epoch:
        part.restored = state
    return part.restored is state


def first_batch(loader: Any, epoch: int = 0) -> Any:
    """The first batch of an epoch of all processes, to stand in where one has none left; ``None``: there is none."""
    part = _placed(loader)
    if part is None:
        return next(begin_epoch(loader, epoch, 0), None)
    rank, part.rank = part.rank, 0
    try:
        return next(begin_epoch(loader, epoch, 0), None)
    finally:
        part.rank = rank


def source_of(loader: Any) -> Any:  # the data set that a loader was made for
    dataset = getattr(loader, "dataset", None)
    return dataset.dataset if isinstance(dataset, _Rows | Stream) else dataset


def reads_by_number(dataset: Any) -> bool:
    # PyTorch's iterables have the method too.
    has_numbers = hasattr(dataset, "__getitem__") and not isinstance(dataset, IterableDataset)
    return has_numbers and length_of(dataset) is not None


def lengths_of(dataset: Any, column: str, input_name: str) -> NDArray[Any]:
    """The number of tokens of each row: the column of lengths, or else how many inputs a row has."""
    is_table, names = isinstance(dataset, TableDataset), getattr(dataset, "column_names", None) or ()
    if column in names:
        return np.array([int(length) for length in (dataset.values(column) if is_table else dataset[column])])
    try:
        if is_table and input_name in names:
            return dataset.lengths(input_name)  # type: ignore[no-any-return]
        # Iterating might never end.
        return np.fromiter((len(dataset[row][input_name]) for row in range(len(dataset))), np.int64, len(dataset))
    except (KeyError, TypeError, IndexError):
        hint = f"Add a column {column!r}, or use rows that are dictionaries with {input_name!r}."
        raise InputTypeError(f"the lengths of rows are not known: they have no {input_name!r}.", hint=hint) from None


def check_rows(dataset: Any, name: str) -> None:
    """Refuse a data set without rows, and what is none (``InputError``)."""
    refuse(dataset is None, f"there is no `{name}`.", f"Pass one to the trainer as `{name}`.")
    if not hasattr(dataset, "__getitem__") and not hasattr(dataset, "__iter__"):
        raise InputTypeError(f"`{name}` is {type(dataset).__name__}, which can be neither indexed nor iterated over.")
    length: Any = None
    with contextlib.suppress(TypeError, AttributeError, NotImplementedError):  # what some give that have no length
        length = type(dataset).__len__(dataset)  # `len` would hide what it is
    if length is not None and (not isinstance(length, int | np.integer) or length < 0):
        raise InputTypeError(f"`{name}` tells its length as {length!r}, which is no number of rows.")
    if length == 0:
        raise InputError(f"`{name}` has no rows.")
