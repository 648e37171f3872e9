"""Runs over data of every kind, with workers of every kind, go on from any batch as if nothing had happened."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import warnings
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from tests.thorough import crossed, in_turn
from tests.training.runs import Run, make, outcome
from tests.training.streams import Iterated, Mapped, Sized, SizedStateful, Stateful, row_of
from transept import TrainerCallback
from transept.errors import ConfigError, InputTypeError, TranseptWarning, UnsupportedError
from transept.training.checkpoint.directory import list_checkpoints
from transept.training.data.loader import Columns, begin_epoch, check_rows, make_loader, restore_stream, stream_state
from transept.training.data.order import EpochSampler

KINDS: list[Any] = [Mapped, Iterated, Sized, Stateful, SizedStateful]
WORKERS = {"none": (0, False), "1": (1, False), "2": (2, False), "1 living on": (1, True), "2 living on": (2, True)}


def loader(kind: Any, workers: str, size: int = 22) -> DataLoader[Any]:
    """A loader of batches of 4 rows, which are given as they are."""
    number, persistent = WORKERS[workers]
    options: dict[str, Any] = {"num_workers": number} | ({"persistent_workers": persistent} if number else {})
    order = EpochSampler(size, 7) if kind is Mapped else None
    return make_loader(kind(size), order, list, Columns(None), seed=1, batch_size=4, drop_last=False, **options)


def read(
    loader: DataLoader[Any], epochs: range, start: int = 0
) -> tuple[dict[tuple[int, int], Any], dict[tuple[int, int], Any]]:
    """The batches of some epochs by their places, and the states before them."""
    found, states = {}, {}
    for epoch in epochs:
        first = start if epoch == epochs.start else 0
        for number, batch in enumerate(begin_epoch(loader, epoch, first), first):
            found[epoch, number] = batch
            states[epoch, number + 1] = stream_state(loader, epoch, number + 1)
        states[epoch + 1, 0] = stream_state(loader, epoch + 1, 0)
    return found, states


@pytest.mark.parametrize(("kind", "workers"), crossed(KINDS, WORKERS, 9))
def test_batches_come_as_if_nothing_had_happened(kind: Any, workers: str) -> None:
    whole, states = read(loader(kind, workers), range(3))
    if workers.endswith("living on"):
        assert whole == read(loader(kind, workers.split()[0]), range(3))[0]
    if kind is Mapped:
        assert whole == read(loader(kind, "none"), range(3))[0]
    tokens = {
        epoch: [row["input_ids"][2] for (own, _), batch in whole.items() if own == epoch for row in batch] for epoch in range(3)
    }
    assert tokens[0] != tokens[1] != tokens[2]
    assert {row["input_ids"][1] - 5 for (epoch, _), batch in whole.items() if epoch == 2 for row in batch} == {2}
    for epoch, start in ((0, 3), (1, 0), (1, 4), (1, 6), (2, 0)):
        again = loader(kind, workers)
        state = states.get((epoch, start))
        assert (state is not None) == (issubclass(kind, Stateful) and workers == "none")
        assert state is None or restore_stream(again, state, epoch, start)
        assert read(again, range(epoch, 3), start)[0] == {at: batch for at, batch in whole.items() if at >= (epoch, start)}


STEPS = 8  # of batches of 4: epochs of 3 batches


def train(data: Any, folder: Path, resume: Any = None, callbacks: Any = (), **more: Any) -> dict[str, Any]:
    trainer = make(Run(save_steps=1, optim="sgd"), folder, callbacks, **{"max_steps": STEPS, "eval_strategy": "no"} | more)
    trainer.train_dataset = data
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*(`train_dataset` is an iterable|The run goes on, but not)", TranseptWarning)
        trainer.train(resume_from_checkpoint=resume)
    return outcome(trainer)


def resumed(kind: Any, whole: Path, folder: Path, step: int, **more: Any) -> dict[str, Any]:
    """What a run comes to that goes on from a step."""
    folder.mkdir()
    shutil.copytree(whole / f"checkpoint-{step}", folder / f"checkpoint-{step}")
    return train(kind(), folder, True, **more)


RESUMED = [(Mapped, 0), (Iterated, 2), (Sized, 0), (Stateful, 0), (SizedStateful, 1)]


@pytest.mark.parametrize(
    ("kind", "workers"), in_turn([pytest.param(*case, id=f"{case[0].__name__}-{case[1]}") for case in RESUMED], 3)
)
def test_runs_go_on_from_any_batch(kind: Any, workers: int, tmp_path: Path) -> None:
    more: dict[str, Any] = {"dataloader_num_workers": workers}
    whole = train(kind(), tmp_path / "whole", save_total_limit=20, **more)
    more["dataloader_persistent_workers"] = workers > 0
    for step in (2, 3, 4):
        assert resumed(kind, tmp_path / "whole", tmp_path / str(step), step, **more) == whole


def test_workers_end_with_their_run(tmp_path: Path) -> None:
    """Those that live on between epochs too, also where the run ends within one."""
    living_on: dict[str, Any] = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}
    others = multiprocessing.active_children()
    train(Iterated(), tmp_path / "whole", **living_on, eval_strategy="epoch")
    assert multiprocessing.active_children() == others
    with pytest.raises(SystemExit):
        train(Iterated(), tmp_path / "stopped", None, (Stop(2),), **living_on)
    assert multiprocessing.active_children() == others


class Stop(TrainerCallback):
    """Ends a run by a signal after a step, or at the end of the first epoch."""

    def __init__(self, step: int = 0) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self.step:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("kind", [Stateful, SizedStateful])
def test_iterables_keep_their_state_at_the_end_of_an_epoch(kind: Any, tmp_path: Path) -> None:
    whole = train(kind(), tmp_path / "whole", save_strategy="epoch")
    first = list_checkpoints(tmp_path / "whole")[0][0]
    data = kind()
    assert resumed(lambda: data, tmp_path / "whole", tmp_path / "resumed", first, save_strategy="epoch") == whole
    for step in (0, 2, 3):
        folder = tmp_path / f"signal{step}"
        with pytest.raises(SystemExit):
            train(kind(), folder, None, (Stop(step),), save_strategy="epoch")
        assert train(kind(), folder, True, save_strategy="epoch") == whole


def test_a_state_is_that_of_the_batch_only(tmp_path: Path) -> None:
    """With `ignore_data_skip` an epoch begins anew, whatever the state; with smaller batches rows are counted."""
    train(Stateful(), tmp_path / "whole")
    data = Stateful()
    resumed(lambda: data, tmp_path / "whole", tmp_path / "skip", 2, ignore_data_skip=True, max_steps=3)
    assert data.place == 4
    data = Stateful(40)
    resumed(lambda: data, tmp_path / "whole", tmp_path / "smaller", 2, per_device_train_batch_size=2, max_steps=3)
    assert data.place == 10  # 8 rows were read, and the next 2 are


def test_iterables_with_a_length_run_for_epochs(tmp_path: Path) -> None:
    found = train(Sized(), tmp_path, max_steps=-1, num_train_epochs=2)
    assert found["step"] == 6


def test_a_token_budget_is_resumed_with_another_batch_size(tmp_path: Path) -> None:
    class Seen(Mapped):
        def __getitem__(self, number: int) -> dict[str, Any]:
            rows.append(number)
            return row_of(number, 0)

    more: dict[str, Any] = {"train_sampling_strategy": "token_budget", "max_tokens_per_batch": 9, "max_steps": 8}
    rows: list[int] = []
    train(Seen(24), tmp_path / "whole", **more)
    rows.clear()
    resumed(lambda: Seen(24), tmp_path / "whole", tmp_path / "resumed", 3, per_device_train_batch_size=2, **more)
    assert len(set(rows[-15:])) == 15  # the batches of 3 rows behind the first 3 batches, no row twice


def test_what_workers_cannot_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"`dataloader_num_workers` is 100000, .* {os.cpu_count()} cores"):
        train(Mapped(), tmp_path, dataloader_num_workers=100_000)
    rows = (row_of(number, 0) for number in range(8))
    with pytest.raises(UnsupportedError, match="generator cannot be copied .*dataloader_persistent_workers=False"):
        train(rows, tmp_path, dataloader_num_workers=1, dataloader_persistent_workers=True)


@pytest.mark.parametrize("length", [-1, 2.5, "3"])
def test_lengths_that_are_none(length: Any) -> None:
    class Odd(Mapped):
        def __len__(self) -> Any:
            return length

    with pytest.raises(InputTypeError, match=r"`train_dataset` tells its length as .*, which is no number of rows"):
        check_rows(Odd(), "train_dataset")


def test_generators_are_kept_once_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    from transept.training.data import loader, stream

    kept, real = [], loader.kept_generators
    for module in (loader, stream):
        monkeypatch.setattr(module, "kept_generators", lambda: kept.append(1) or real())
    how: Any = {"seed": 1, "batch_size": 8, "drop_last": False}
    made: DataLoader[Any] = make_loader(Iterated(64), None, list, Columns(None), **how)
    assert len(list(begin_epoch(made, 0, 0))) == 8
    assert len(kept) == 8 + 8 + 1  # rows, collating, and the end
