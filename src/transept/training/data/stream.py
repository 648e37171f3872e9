"""Iterables, whose rows come one after the other, in batches that have a place."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from transept.errors import UnsupportedError
from transept.training.data.order import BatchPlace, kept_generators, place_seed

KEPT_STATES = 1024  # as many batches may be read ahead of an update's end
_END = object()
Placed = tuple[BatchPlace, list[Any] | None]


@dataclass(frozen=True)
class StreamState:
    state: Any  # what an iterable's `state_dict` gave
    epoch: int
    rows: int  # that the iterable had given in this epoch
    ended: bool


class Stream(IterableDataset[Any]):
    """An iterable whose batches get a place: the epoch, and a number among those of its process.

    Where R processes take batches in turn, the one of rank r gives every R-th from number r on. Of several workers,
    each reads a copy of the data set, and the loader takes their batches in turn. ``options`` are the loader's.
    The ``set_epoch`` of the iterable is called before each epoch, where it has one.
    """

    def __init__(
        self, dataset: Any, size: int, seed: int, drop_last: bool, rank: int, ranks: int, options: dict[str, Any]
    ) -> None:
        self.dataset, self.batch_size, self.seed, self.drop_last = dataset, size, seed, drop_last
        self.ranks, self.workers = ranks, options.get("num_workers", 0)
        self.persistent = bool(options.get("persistent_workers"))  # workers live on from epoch to epoch
        # The epoch, its first batch, and the rank: workers that live on read it when they begin an epoch.
        self.begin = torch.tensor([0, 0, rank], device="cpu")
        if self.workers:
            self.begin.share_memory_()  # type: ignore[no-untyped-call]
        # Whether the data set tells where it is, and can go on from there; nobody could ask that of workers.
        keeps_state = hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict")
        self.keeps_state = keeps_state and not self.workers
        self.states: dict[int, StreamState] = {}  # of the data set after so many batches of the epoch
        self.last_state: StreamState | None = None
        self.restored: StreamState | None = None  # what the next epoch goes on from

    @property
    def rank(self) -> int:
        return int(self.begin[2])

    @rank.setter
    def rank(self, rank: int) -> None:
        self.begin[2] = rank

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Begin at that epoch; the rows of the first ``start`` batches are read, and not collated."""
        self.begin[:2] = torch.tensor([epoch, start], device="cpu")
        self.states, self.last_state = {}, None

    def __len__(self) -> int:
        batches, rest = divmod(len(self.dataset), self.batch_size)
        return -(-(batches + (rest > 0 and not self.drop_last)) // self.ranks)

    def __iter__(self) -> Iterator[Placed]:
        epoch, start, rank = self.begin.tolist()  # now, since the next epoch may be written there soon
        restored, self.restored = self.restored, None
        return self._batches(epoch, start, rank, restored)

    def _batches(self, epoch: int, start: int, rank: int, restored: StreamState | None) -> Iterator[Placed]:
        """The batches of an epoch; in workers ``None`` for each before ``start``, by which the loader counts them."""
        info = get_worker_info()
        workers, worker = (info.num_workers, info.id) if info else (1, 0)
        dataset, done, ended = self._begun(epoch, restored)
        read, source = done // self.batch_size, None  # batches of this worker, those of other processes too
        rows: list[Any] = [None] * (done % self.batch_size)
        while not ended:
            first = (worker + read * workers) * self.batch_size
            with kept_generators() as seed:
                while len(rows) < self.batch_size and not ended:
                    seed(place_seed(self.seed, epoch, first + len(rows), purpose="row"))
                    source = iter(dataset) if source is None else source
                    row = next(source, _END)
                    ended = row is _END
                    rows += [] if ended else [row]
            number, is_own = worker + read // self.ranks * workers, read % self.ranks == rank
            self._note(epoch, number + 1 if is_own else None, read * self.batch_size + len(rows), ended)
            if is_own and (len(rows) == self.batch_size or (rows and not self.drop_last)):
                if number >= start:
                    yield BatchPlace(epoch, number * self.ranks + rank, []), rows
                elif info is not None:
                    yield BatchPlace(epoch, number, []), None
            rows, read = [], read + 1

    def _begun(self, epoch: int, restored: StreamState | None) -> tuple[Any, int, bool]:
        """The data set at an epoch's beginning or in a checkpoint's state; the rows it gave, and whether it ended."""
        dataset = self.dataset
        if self.persistent:  # an epoch begins as in a worker that was started for it
            try:
                dataset = copy.deepcopy(dataset)
            except Exception as error:
                what = f"{type(dataset).__name__} cannot be copied ({str(error)[:200]})"
                what += ", which workers that live on need."
                raise UnsupportedError(what, hint="Pass dataloader_persistent_workers=False.") from error
        if restored is not None and restored.epoch < epoch:  # the state is that between two epochs
            dataset.load_state_dict(restored.state)
            restored = None
        if hasattr(dataset, "set_epoch"):
            dataset.set_epoch(epoch)
        if restored is None:
            return dataset, 0, False
        dataset.load_state_dict(restored.state)
        self.last_state = restored
        return dataset, restored.rows, restored.ended

    def _note(self, epoch: int, number: int | None, rows: int, ended: bool) -> None:
        """Keep the data set's state after so many rows, that is after a batch of this process or of another one."""
        if not self.keeps_state:
            return
        self.last_state = StreamState(copy.deepcopy(self.dataset.state_dict()), epoch, rows, ended)
        if number is not None:
            self.states[number] = self.last_state
            self.states.pop(number - KEPT_STATES, None)

    def state_at(self, epoch: int, batch: int) -> StreamState | None:
        """The data set's state before a batch, or before an epoch that follows on what was read."""
        if batch:
            return self.states.get(batch) if epoch == self.begin[0] else None
        return self.last_state if epoch == self.begin[0] + 1 else None
