"""Rows by number and rows one after another, which show the epoch that they were told and what was drawn for them."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info


def row_of(number: int, epoch: int) -> dict[str, Any]:
    """A row that shows its number and the epoch that was told, and has a token that is drawn."""
    ids = [number % 30 + 5, epoch + 5, random.randrange(5, 40)]
    return {"input_ids": ids, "attention_mask": [1, 1, 1], "labels": number % 3}


class Mapped:
    """Rows by number, that hear of epochs."""

    epoch = -1

    def __init__(self, size: int = 11) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, number: int) -> dict[str, Any]:
        return row_of(number, self.epoch)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class Iterated(IterableDataset[Any]):
    """Rows one after another, shared out between workers, in unequal parts."""

    epoch = -1

    def __init__(self, size: int = 11) -> None:
        self.size, self.numbers = size, random.Random(5)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        info = get_worker_info()
        own = (
            range(self.size)
            if info is None or info.num_workers == 1
            else (range(self.size * 2 // 3), range(self.size * 2 // 3, self.size))[info.id]
        )
        if info is None:
            self.numbers.seed(self.epoch)
        for number in own:
            yield row_of(number + self.numbers.randrange(9), self.epoch)


class Sized(Iterated):
    """The same with a length."""

    def __len__(self) -> int:
        return self.size


class Stateful(IterableDataset[Any]):
    """Rows that are drawn by a generator that goes on from epoch to epoch."""

    epoch = -1

    def __init__(self, size: int = 11) -> None:
        self.size, self.place, self.draw = size, 0, torch.Generator().manual_seed(3)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        while self.place < self.size:
            self.place += 1
            yield row_of(int(torch.randint(0, 30, (), generator=self.draw)), self.epoch)
        self.place = 0

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place, "draw": self.draw.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]
        self.draw.set_state(state["draw"])


class SizedStateful(Stateful):
    """The same with a length."""

    def __len__(self) -> int:
        return self.size
