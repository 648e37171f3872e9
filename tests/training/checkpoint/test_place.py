"""A run goes on where it was in the data, with other processes, other batches and other loaders."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, SequentialSampler

from tests.training.runs import Rows, Run, collate, make
from transept import TrainerCallback
from transept.errors import FormatError, TranseptWarning
from transept.storage.files import dump_json
from transept.training.checkpoint.resume import DATA_NAME, DataPlace, keep_update_size, warn_of_own_order

RUN = Run(rows=24, save_steps=1, epochs=1)


def place(batches: int, rows_of_batch: int | None = 8, replicas: int = 3, accumulation: int = 1) -> DataPlace:
    return DataPlace(0, batches, rows_of_batch, replicas, accumulation, {})


@pytest.mark.parametrize(
    ("saved", "rows_of_batch", "replicas", "batch", "again"),
    [
        (place(9), 8, 3, 3, ""),
        (place(9), 8, 2, 4, "8 rows"),
        (place(9), 4, 2, 9, ""),
        (place(9), None, 2, 4, "1 batches"),
        (place(9, None), None, 3, 3, ""),
        (place(8, None), 4, 2, 4, ""),
    ],
)
def test_the_next_batch(saved: DataPlace, rows_of_batch: int | None, replicas: int, batch: int, again: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert saved.next_batch(rows_of_batch, replicas) == batch
    assert [str(warning.message).partition(" of this epoch")[0] for warning in caught] == ([again] if again else [])


@pytest.mark.parametrize(
    ("saved", "batch_size", "replicas", "accumulation", "message"),
    [
        (place(1), 8, 3, 1, ""),
        (place(1), 8, 2, 1, "an update had 24 rows and has 16 now. Choose batch sizes"),
        (place(1), 6, 2, 2, "gradient_accumulation_steps is 2 now, so that an update has 24 rows as before"),
        (place(1), 12, 2, 1, ""),
        (place(1, None, 4, 1), 99, 2, 2, "is 2 now, so that an update has 4 batches as before"),
        (place(1, None), 99, 2, 1, "an update had 3 batches and has 2 now"),
    ],
)
def test_the_rows_of_an_update(
    saved: DataPlace, batch_size: int, replicas: int, accumulation: int, message: str, tmp_path: Path
) -> None:
    args = SimpleNamespace(output_dir=str(tmp_path), train_batch_size=batch_size, gradient_accumulation_steps=1)
    (tmp_path / DATA_NAME).write_text(dump_json(vars(saved)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        keep_update_size(args, tmp_path, replicas)
    assert args.gradient_accumulation_steps == accumulation
    assert len(caught) == bool(message)
    assert all(message in str(warning.message) for warning in caught)
    document = json.loads((tmp_path / DATA_NAME).read_text()) | {"replicas": 0}
    (tmp_path / DATA_NAME).write_text(json.dumps(document))
    with pytest.raises(FormatError, match="`replicas` must be at least 1"):
        keep_update_size(args, tmp_path, replicas)


class Noted(Rows):
    """Rows that note which of them are read."""

    def __init__(self, size: int, read: list[int]) -> None:
        super().__init__(size)
        self.read = read

    def __getitem__(self, row: int) -> dict[str, Any]:
        self.read.append(row)
        return super().__getitem__(row)


def rows_read(folder: Path, resume: Path | None, loader: Callable[[Any], Any] | None = None, **arguments: Any) -> list[int]:
    """The rows that a run reads for training, each once: what looks at the data before it reads them too."""
    trainer, read = make(RUN, folder, **arguments), list[int]()
    trainer.train_dataset = Noted(24, read)
    if loader is not None:
        trainer.get_train_dataloader = lambda: loader(trainer.train_dataset)
    before: list[int] = []
    trainer.add_callback(Note(read, before))
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return read[before[0] :]


class Note(TrainerCallback):
    """Notes how much was read before training."""

    def __init__(self, read: list[int], before: list[int]) -> None:
        self.read, self.before = read, before

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.before.append(len(self.read))


def test_a_token_budget_goes_on_by_its_batches(tmp_path: Path) -> None:
    budget = {"max_tokens_per_batch": 30, "train_sampling_strategy": "token_budget", "length_column_name": "none"}
    first = rows_read(tmp_path / "one", None, **budget)
    assert sorted(first) == [*range(24)]
    with pytest.warns(TranseptWarning, match="`per_device_train_batch_size` was 4 and is 1"):
        rest = rows_read(tmp_path / "two", tmp_path / "one" / "checkpoint-2", per_device_train_batch_size=1, **budget)
    assert rest == first[-len(rest) :]
    done = len(first) - len(rest)
    assert 0 < done < 24


@pytest.mark.parametrize(("now", "done"), [(8, 8), (6, 6), (2, 8)])
def test_a_place_is_kept_in_rows(now: int, done: int, tmp_path: Path) -> None:
    first = rows_read(tmp_path / "one", None)
    with pytest.warns(TranseptWarning) as caught:
        rest = rows_read(tmp_path / "two", tmp_path / "one" / "checkpoint-2", per_device_train_batch_size=now)
    assert rest == first[done : done + len(rest)]
    assert sum("2 rows of this epoch are read again" in str(warning.message) for warning in caught) == (done == 6)


class Shuffled(torch.utils.data.Sampler[int]):
    """An order that follows from the epoch."""

    def set_epoch(self, epoch: int) -> None: ...

    def __iter__(self) -> Iterator[int]:
        return iter(range(24))


@pytest.mark.parametrize(
    ("options", "is_said"),
    [
        ({"shuffle": True}, True),
        ({}, False),
        ({"sampler": SequentialSampler(Rows(24))}, False),
        ({"sampler": Shuffled()}, False),
    ],
)
def test_a_loader_of_the_user_s_own(options: dict[str, Any], is_said: bool) -> None:
    loader: Any = DataLoader(Rows(24), batch_size=4, collate_fn=collate, **options)  # type: ignore[arg-type]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_own_order(loader)
    assert [str(warning.message).startswith("the order of your own loader's rows") for warning in caught] == [True] * is_said


def test_a_run_over_a_shuffled_loader_says_that_it_does_not_go_on(tmp_path: Path) -> None:
    own = lambda rows: DataLoader(rows, batch_size=4, shuffle=True, collate_fn=collate)  # noqa: E731
    rows_read(tmp_path / "one", None, own)
    with pytest.warns(TranseptWarning, match="some rows of this epoch are read twice, others never"):
        rows_read(tmp_path / "two", tmp_path / "one" / "checkpoint-2", own)
