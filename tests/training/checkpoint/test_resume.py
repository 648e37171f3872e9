"""Runs go on as if nothing had happened, to the bit."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from tests.fuzz.mutate import mutated
from tests.thorough import crossed, in_turn
from tests.training.runs import Rows, Run, make, other_run, outcome, train
from transept import EarlyStoppingCallback, TrainerCallback
from transept.errors import (
    CheckpointError,
    FileError,
    FormatError,
    InputError,
    InputTypeError,
    TrainingError,
    TranseptError,
    TranseptWarning,
)
from transept.training.checkpoint.directory import LOCK_NAME, MANIFEST_NAME, list_checkpoints
from transept.training.checkpoint.generators import Generators
from transept.training.checkpoint.saved_run import SavedRun

# Every pair of an optimizer, a schedule, a number of micro-batches, workers, a precision, and a place in an epoch.
CELLS = [
    ("adamw_torch", "linear", 1, 0, False, "middle"),
    ("adamw_torch", "cosine", 3, 2, True, "end"),
    ("adamw_torch_fused", "reduce_lr_on_plateau", 3, 0, True, "middle"),
    ("sgd", "linear", 3, 2, False, "end"),
    ("sgd", "cosine", 1, 0, True, "middle"),
    ("sgd", "reduce_lr_on_plateau", 1, 2, False, "middle"),
    ("adafactor", "linear", 1, 0, True, "end"),
    ("adafactor", "cosine", 3, 2, False, "middle"),
    ("adafactor", "reduce_lr_on_plateau", 3, 0, False, "end"),
]


def cut(folder: Path, step: int) -> None:
    """Take a run back to where it had been killed after that step."""
    for number, path in list_checkpoints(folder):
        if number > step:
            shutil.rmtree(path)


def check(run: Run, folder: Path, step: int, callbacks: Any = tuple, **arguments: Any) -> Any:
    """A run that goes on from a step ends as the one that was not interrupted; gives what it came to."""
    whole = train(run, folder, None, callbacks(), **arguments)
    cut(folder, step)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", category=TranseptWarning)
        warnings.filterwarnings("ignore", message="this processor has no bf16")
        assert train(run, folder, True, callbacks(), **arguments) == whole
    return whole


@pytest.mark.filterwarnings("ignore:this processor has no bf16")
@pytest.mark.parametrize(
    ("optim", "schedule", "accumulation", "workers", "bf16", "place"),
    in_turn([pytest.param(*cell, id="-".join(map(str, cell))) for cell in CELLS], 5),
)
def test_resume(optim: str, schedule: str, accumulation: int, workers: int, bf16: bool, place: str, tmp_path: Path) -> None:
    run = Run(optim, schedule, accumulation, workers, bf16, save_steps=1)
    check(run, tmp_path, -(-6 // accumulation) if place == "end" else 1)


def test_other_generators_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that goes on with other generators ends otherwise, which these tests would see."""
    monkeypatch.setattr(SavedRun, "restore_generators", lambda self: None)
    with pytest.raises(AssertionError):
        check(Run(), tmp_path, 2)


EVERY: dict[str, dict[str, Any]] = {
    "an average of the weights": {"ema_decay": 0.5},
    "logs that reach over a save": {"logging_steps": 3},
    "evaluations at the ends of epochs": {"eval_strategy": "epoch", "logging_strategy": "epoch"},
    "a schedule that follows epochs": {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "epoch"},
    "rows by length": {"train_sampling_strategy": "group_by_length"},
    "tokens that are counted": {"include_num_input_tokens_seen": "all"},
    "updates in number": {"max_steps": 8, "num_train_epochs": 1},
    "a part of an epoch": {"num_train_epochs": 1.5},
    "gradients that are not clipped": {"max_grad_norm": 0.0},
    "noisy embeddings": {"neftune_noise_alpha": 5.0},
    "layers that thaw": {"unfreeze_schedule": {0: "classifier", 1: 1}},
    "layers that are recomputed": {"gradient_checkpointing": True},
}


@pytest.mark.parametrize(("case", "step"), crossed(EVERY, [2, 6], 5))
def test_settings(case: str, step: int, tmp_path: Path) -> None:
    check(Run(), tmp_path, step, **EVERY[case])


# What is trained, settings, and the updates of an epoch; each is killed within and at the end of an epoch.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "a scaler": ("bert", {"fp16": True}),
    "a scaler over micro-batches": ("bert", {"fp16": True, "gradient_accumulation_steps": 3, "max_grad_norm": 0.0}),
    "adapters": ("lora", {}),
    "adapters and a scaler": ("lora", {"fp16": True, "optim": "sgd"}),
    "adapters over eight bits": ("int8", {}),
    "adapters of peft": ("peft", {}),
    "an average of adapters": ("lora", {"ema_decay": 0.5}),
    "an average over micro-batches": ("bert", {"ema_decay": 0.9, "gradient_accumulation_steps": 2, "optim": "adafactor"}),
    "an average and a scaler": ("bert", {"ema_decay": 0.9, "fp16": True}),
    "states that are carried on": ("lstm", {"train_sampling_strategy": "sequential"}),
    "states of another kind": ("gru", {"train_sampling_strategy": "sequential", "gradient_accumulation_steps": 2}),
    "states and evaluations": ("lstm", {"eval_strategy": "steps", "eval_steps": 3}),
}


@pytest.mark.filterwarnings("ignore:`save_pretrained` of peft")
@pytest.mark.parametrize(("case", "place"), crossed(KINDS, ["middle", "end"], 5))
def test_models_and_their_states(case: str, place: str, tmp_path: Path) -> None:
    kind, settings = KINDS[case]
    whole = check(
        Run(kind=kind, save_steps=1),
        tmp_path,
        2 if place == "middle" else -(-6 // settings.get("gradient_accumulation_steps", 1)),
        **settings,
    )
    assert (whole["scaler"] is not None) == ("fp16" in settings)


@pytest.mark.parametrize("kind", ["bert", "lora", "int8"])
def test_the_best_mean_of_weights_is_loaded(kind: str, tmp_path: Path) -> None:
    settings = {"eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True, "ema_decay": 0.5}
    trainer = make(
        Run(kind=kind), tmp_path, metric_for_best_model="loss", greater_is_better=True, learning_rate=0.1, **settings
    )
    trainer.train()
    losses = {entry["step"]: entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry}
    best = trainer.state.best_global_step
    trainer.average = None  # what is evaluated is what was loaded
    assert trainer.evaluate()["eval_loss"] == losses[best] == max(losses.values())


LOST = {"scaler": ("bert", {"fp16": True}), "carried": ("lstm", {"train_sampling_strategy": "sequential"})}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LOST)
def test_states_that_are_lost_are_seen(name: str, tmp_path: Path) -> None:
    """Without them a run ends otherwise, which these tests would see."""
    kind, settings = LOST[name]
    run = Run(kind=kind, save_steps=1)
    whole = train(run, tmp_path, **settings)
    cut(tmp_path, 2)
    (path,) = (tmp_path / "checkpoint-2").glob(f"{name}.*")
    path.unlink()
    (tmp_path / "checkpoint-2" / MANIFEST_NAME).unlink()
    assert train(run, tmp_path, str(tmp_path / "checkpoint-2"), **settings) != whole


class Stream(torch.utils.data.IterableDataset[Any]):
    """Rows one after another, of which it counts those that it read."""

    def __init__(self, size: int = 22) -> None:
        self.rows, self.read = Rows(size), 0

    def __iter__(self) -> Any:
        for row in range(len(self.rows)):
            self.read += 1
            yield self.rows[row]


class Stateful(Stream):
    """The same, and it can go on where it was; it shuffles by a generator of its own."""

    def __init__(self, size: int = 22) -> None:
        super().__init__(size)
        self.place, self.draw = 0, torch.Generator().manual_seed(3)

    def __iter__(self) -> Any:
        while self.place < len(self.rows):
            self.place, self.read = self.place + 1, self.read + 1
            yield self.rows[int(torch.randint(0, len(self.rows), (), generator=self.draw))]
        self.place = 0

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place, "draw": self.draw.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]
        self.draw.set_state(state["draw"])


def stream(folder: Path, data: Stream, resume: Any = None, **more: Any) -> dict[str, Any]:
    trainer = make(Run(save_steps=1), folder, max_steps=9, **more)
    trainer.train_dataset = data
    trainer.train(resume_from_checkpoint=resume)
    return outcome(trainer)


@pytest.mark.parametrize(("accumulation", "step", "size"), [(1, 2, 22), (1, 6, 22), (2, 2, 22), (1, 6, 24)])
def test_iterables_go_on_by_their_state(accumulation: int, step: int, size: int, tmp_path: Path) -> None:
    more = {"gradient_accumulation_steps": accumulation}
    first, data = Stateful(size), Stateful(size)
    whole = stream(tmp_path, first, **more)
    cut(tmp_path, step)
    data.draw.manual_seed(9)
    with warnings.catch_warnings():
        warnings.simplefilter("error", TranseptWarning)
        assert stream(tmp_path, data, True, **more) == whole
    assert data.read == first.read - 4 * accumulation * step + (2 if step == 6 and size == 22 else 0)  # nothing again


@pytest.mark.parametrize(("workers", "step"), [(0, 2), (0, 6), (1, 2)])
def test_iterables_without_a_state_are_read_up_to_the_place(workers: int, step: int, tmp_path: Path) -> None:
    more = {"dataloader_num_workers": workers}
    whole = stream(tmp_path, Stream(), **more)
    cut(tmp_path, step)
    what = f"an iterable without a saved state: the rows of {step} batches are read"
    with pytest.warns(TranseptWarning, match=what) as caught:
        assert stream(tmp_path, Stream(), True, **more) == whole
    assert len([each for each in caught if "iterable" in str(each.message)]) == 1


def test_a_state_of_an_iterable_that_cannot_be(tmp_path: Path) -> None:
    stream(tmp_path, Stateful())
    cut(tmp_path, 2)
    rewrite(tmp_path / "checkpoint-2", "stream.json", ended=[], state=3, other=1)
    with pytest.raises(FormatError, match="stream.json: `ended` must be true or false"):
        stream(tmp_path, Stateful(), True)


# --- metrics -----------------------------------------------------------------------------------------------------------------

METRICS: dict[str, tuple[Any, Any]] = {
    "an array": (np.array([0.5, 1.0]), [0.5, 1.0]),
    "a matrix of integers": (np.eye(2, dtype=np.int64), [[1, 0], [0, 1]]),
    "a number of NumPy": (np.float32(0.5), 0.5),
    "a tensor": (torch.tensor([1.5]), 1.5),
    "a set": ({"b", "a"}, ["a", "b"]),
    "a mapping": ({1: (2, np.int8(3))}, {"1": [2, 3]}),
    "a text": ("a\udcffb", "a\\udcffb"),
}


def measured(folder: Path, value: Any, resume: Any = None) -> Any:
    trainer = make(replace(BEGUN, save_steps=1), folder, eval_strategy="steps", eval_steps=1)
    trainer.compute_metrics = lambda _: {"own": value}
    trainer.train(resume_from_checkpoint=resume)
    return trainer.state.log_history


@pytest.mark.parametrize("case", METRICS)
def test_metrics_of_any_kind_are_logged_and_gone_on_with(case: str, tmp_path: Path) -> None:
    given, logged = METRICS[case]
    logs = measured(tmp_path, given)
    assert [log["eval_own"] for log in logs if "eval_own" in log] == [logged] * 2
    cut(tmp_path, 1)
    again = measured(tmp_path, given, resume=True)
    assert [log["eval_own"] for log in again if "eval_own" in log] == [logged] * 2


@pytest.mark.parametrize("value", [b"bytes", 10**400, 1j, object(), [[[b""]]]])
def test_metrics_that_no_file_can_hold_are_refused_at_once(value: Any, tmp_path: Path) -> None:
    with pytest.raises(InputTypeError, match="`eval_own` is .*, which a log cannot hold"):
        measured(tmp_path, value)
    assert not list_checkpoints(tmp_path)


# --- updates that fail ------------------------------------------------------------------------------------------------------


class Spoil(TrainerCallback):
    """Makes one gradient no number, in the update after ``step``."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if state.global_step == self.step:
            model.head.out_proj.weight.register_hook(lambda gradient: gradient * torch.nan)


@pytest.mark.parametrize("settings", [{}, {"gradient_accumulation_steps": 2}, {"ema_decay": 0.5}])
@pytest.mark.parametrize("step", [1, 3])
def test_the_state_is_saved_before_an_update_that_is_no_number_ends_the_run(step: int, settings: Any, tmp_path: Path) -> None:
    whole = train(Run(save_steps=50), tmp_path / "whole", **settings)
    target = tmp_path / "other" / f"checkpoint-{step}"
    with pytest.raises(
        TrainingError, match=f"update {step + 1} .*weights were not changed.* {target} has the state after update {step}"
    ):
        train(Run(save_steps=50), tmp_path / "other", None, (Spoil(step),), **settings)
    assert [path for _, path in list_checkpoints(tmp_path / "other")] == [target]
    assert train(Run(save_steps=50), tmp_path / "other", True, **settings) == whole


def test_a_checkpoint_that_is_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"checkpoint-2 has the state after update 2"):
        train(Run(save_steps=2), tmp_path, None, (Spoil(2),))
    written = (tmp_path / "checkpoint-2" / MANIFEST_NAME).stat().st_mtime_ns
    with pytest.raises(TrainingError, match=r"checkpoint-2 has the state after update 2"):
        train(Run(save_steps=2), tmp_path, True, (Spoil(2),))
    assert (tmp_path / "checkpoint-2" / MANIFEST_NAME).stat().st_mtime_ns == written


def test_nothing_is_saved_where_nothing_was_learnt_or_saving_is_off(tmp_path: Path) -> None:
    for step, more in ((0, {}), (2, {"save_strategy": "no"})):
        with pytest.raises(TrainingError, match="update") as caught:
            train(Run(), tmp_path / str(step), None, (Spoil(step),), **more)
        assert "has the state" not in str(caught.value)
        assert not list_checkpoints(tmp_path / str(step))


def test_a_full_disk_is_said_beside_the_update_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise FileError("the disk is full.")

    monkeypatch.setattr("transept.training.checkpoint.saved_run.write_checkpoint", full)
    with pytest.raises(TrainingError, match="update 2 .*The state after update 1 could not be saved.*the disk is full"):
        train(Run(save_steps=50), tmp_path, None, (Spoil(1),))


# --- accelerators -----------------------------------------------------------------------------------------------------------


class Accelerator:
    """A made-up device module: so many devices with a generator each."""

    def __init__(self, count: int) -> None:
        self.draws = [torch.Generator().manual_seed(number) for number in range(count)]

    def get_rng_state(self, device: int) -> torch.Tensor:
        return self.draws[device].get_state()

    def set_rng_state(self, state: torch.Tensor, device: int) -> None:
        self.draws[device].set_state(state)

    def use(self, patch: pytest.MonkeyPatch) -> Accelerator:
        patch.setattr(torch.accelerator, "is_available", lambda: True)
        patch.setattr(torch.accelerator, "device_count", lambda: len(self.draws))
        patch.setattr(torch.accelerator, "current_accelerator", lambda *_, **__: torch.device("cpu"))
        patch.setattr(torch, "get_device_module", lambda *_: self)
        return self

    def numbers(self) -> list[int]:
        return [int(torch.randint(0, 2**31, (), generator=draw)) for draw in self.draws]


class Noise(TrainerCallback):
    """Adds noise of every device's generator to a gradient."""

    def __init__(self, device: Accelerator) -> None:
        self.device = device

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        for draw in self.device.draws:
            model.head.out_proj.weight.grad += torch.rand(3, 16, generator=draw)


def test_generators_of_every_device_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Accelerator(3).use(monkeypatch)
    whole = train(Run(), tmp_path, None, (Noise(device),))
    after = device.numbers()
    cut(tmp_path, 4)
    again = Accelerator(3).use(monkeypatch)
    again.numbers()
    assert train(Run(), tmp_path, True, (Noise(again),)) == whole
    assert again.numbers() == after


def test_fewer_or_more_devices_than_before(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Accelerator(3).use(monkeypatch)
    states = Generators.of(Generators.now().tensors())
    wanted = device.numbers()
    for count in (1, 3, 5):
        other = Accelerator(count).use(monkeypatch)
        fresh = Accelerator(count).numbers()
        for draw in other.draws:
            draw.manual_seed(77)
        untouched = [int(torch.randint(0, 2**31, (), generator=torch.Generator().manual_seed(77)))] * count
        states.restore()
        assert other.numbers() == [*wanted, *untouched[3:]][:count]
        assert len(fresh) == count


def test_a_device_that_is_not_in_use_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Accelerator(2).use(monkeypatch)
    device.is_initialized = lambda: False  # type: ignore[attr-defined]
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: pytest.fail("it was asked for"))
    assert Generators.now().devices == ()


def test_early_stopping_goes_on_counting(tmp_path: Path) -> None:
    settings = {"eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True, "learning_rate": 0.3}
    stops = lambda: (EarlyStoppingCallback(2),)  # noqa: E731
    whole = check(Run(epochs=4), tmp_path, 4, stops, **settings)
    assert whole["step"] < 24
    last = list_checkpoints(tmp_path)[-1][0]
    assert last == whole["step"]
    assert train(Run(epochs=4), tmp_path, True, stops(), **settings)["weights"] == whole["weights"]  # nothing is left to do


def test_a_finished_run_has_nothing_left(tmp_path: Path) -> None:
    whole = train(Run(), tmp_path)
    again = train(Run(), tmp_path, resume=True)
    assert again["step"] == whole["step"] == 12
    assert again["weights"] == whole["weights"]
    assert again["optimizer"] == whole["optimizer"]


def test_a_longer_run_goes_on(tmp_path: Path) -> None:
    train(Run(), tmp_path, lr_scheduler_type="constant")
    with pytest.warns(TranseptWarning, match="`num_train_epochs` was 2.* and is 3"):
        longer = train(Run(epochs=3), tmp_path, resume=True, lr_scheduler_type="constant")
    assert longer == train(Run(epochs=3), tmp_path / "whole", lr_scheduler_type="constant")


def test_the_best_model_is_loaded_and_kept(tmp_path: Path) -> None:
    settings = {"eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True, "save_total_limit": 1}
    trainer = make(Run(), tmp_path, metric_for_best_model="loss", greater_is_better=True, **settings)
    trainer.train()
    best = trainer.state.best_global_step
    assert trainer.state.best_model_checkpoint == str(tmp_path / f"checkpoint-{best}")
    assert {step for step, _ in list_checkpoints(tmp_path)} == {best, 12}
    losses = {entry["step"]: entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry}
    assert trainer.evaluate()["eval_loss"] == losses[best] == max(losses.values())


def test_weights_alone(tmp_path: Path) -> None:
    train(Run(), tmp_path, save_only_model=True)
    assert not (tmp_path / "checkpoint-12" / "optimizer.safetensors").exists()
    cut(tmp_path, 6)
    with pytest.warns(TranseptWarning, match="not restored: optimizer, random generators. These begin anew.$"):
        train(Run(), tmp_path, resume=True, save_only_model=True)


# --- what is refused and what is said ------------------------------------------------------------------------------------


def test_there_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no whole checkpoint to go on from. Begin a new run"):
        train(Run(), tmp_path, resume=True)
    with pytest.raises(FileError, match="is no checkpoint"):
        train(Run(), tmp_path, resume=str(tmp_path / "absent"))


BEGUN = Run(rows=8, epochs=1)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("begun")
    train(BEGUN, folder)
    return folder / "checkpoint-2"


def rewrite(path: Path, name: str, **values: Any) -> None:
    """Change a document, and the manifest with it."""
    replace_file(path, name, json.dumps(json.loads((path / name).read_text()) | values))


def replace_file(path: Path, name: str, text: str) -> None:
    """Write a file of a checkpoint anew, and its manifest."""
    (path / name).write_text(text)
    manifest = json.loads((path / MANIFEST_NAME).read_text())
    if name in manifest["files"]:
        data = (path / name).read_bytes()
        manifest["files"][name] = {"size": len(data), "sha256-16MiB": hashlib.sha256(hashlib.sha256(data).digest()).hexdigest()}
        (path / MANIFEST_NAME).write_text(json.dumps(manifest))


def test_an_altered_file_is_named(begun: Path, tmp_path: Path) -> None:
    path = shutil.copytree(begun, tmp_path / "checkpoint-2")
    data = bytearray((path / "optimizer.safetensors").read_bytes())
    data[-1] ^= 1
    (path / "optimizer.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError, match="optimizer.safetensors: was altered"):
        train(BEGUN, tmp_path, resume=True)
    (path / "optimizer.safetensors").unlink()
    with pytest.raises(CheckpointError, match="optimizer.safetensors: is missing"):
        train(BEGUN, tmp_path, resume=str(path))
    with pytest.warns(TranseptWarning, match="passed over"), pytest.raises(InputError, match="by name: checkpoint-2"):
        train(BEGUN, tmp_path, resume=True)


def test_another_version_is_said(begun: Path, tmp_path: Path) -> None:
    path = shutil.copytree(begun, tmp_path / "checkpoint-2")
    rewrite(path, MANIFEST_NAME, version="0.0.1")
    with pytest.warns(TranseptWarning, match=r"saved by transept 0\.0\.1, and this is"):
        train(BEGUN, tmp_path, resume=True)


def test_other_settings_are_said(begun: Path, tmp_path: Path) -> None:
    with pytest.warns(TranseptWarning, match=r"`learning_rate` was 0\.01 and is 0\.5.*is the checkpoint's"):
        train(BEGUN, tmp_path, resume=str(begun), learning_rate=0.5)


@pytest.mark.parametrize("rows", [7, 9])
def test_data_that_changed_are_said(begun: Path, tmp_path: Path, rows: int) -> None:
    with pytest.warns(TranseptWarning, match=f"training data changed.*had 8 rows and has {rows}"):
        train(replace(BEGUN, rows=rows), tmp_path, resume=str(begun))


def test_rows_that_changed_are_said(begun: Path, tmp_path: Path) -> None:
    trainer = make(BEGUN, tmp_path)
    trainer.train_dataset = [Rows(8)[row] for row in range(8)]
    with pytest.warns(TranseptWarning, match="training data changed.*some of its rows are others"):
        trainer.train(resume_from_checkpoint=str(begun))


@pytest.mark.parametrize(
    "values",
    [
        {"epoch": -1},
        {"batches": "x"},
        {"rows_of_batch": 0},
        {"tally": {}},
        {"tally": []},
        {"tally": {"loss": {}}},
        {"tally": {"tensor": "x"}},
    ],
)
def test_a_place_that_cannot_be(begun: Path, tmp_path: Path, values: dict[str, Any]) -> None:
    path = shutil.copytree(begun, tmp_path / "checkpoint-2")
    rewrite(path, "data.json", **values)
    with pytest.raises(FormatError, match="data.json: "):
        train(BEGUN, tmp_path, resume=True)


KEPT = (
    "MANIFEST.json",
    "data.json",
    "optimizer.json",
    "scaler.json",
    "scheduler.json",
    "trainer_state.json",
    "training_args.json",
)


def mutations(folder: Path, settings: dict[str, Any], callbacks: Any, noise: Random, count: int) -> Counter[str]:
    """What becomes of runs that go on from a checkpoint of which one JSON file was changed, and the manifest with it."""
    run, outcomes = Run(rows=8, epochs=2, save_steps=1, more=settings), Counter[str]()
    make(run, folder / "whole", callbacks()).train()
    for number in range(count):
        shutil.rmtree(folder / "run", ignore_errors=True)
        path = shutil.copytree(folder / "whole" / "checkpoint-2", folder / "run" / "checkpoint-2")
        present = [name for name in KEPT if (path / name).exists()]
        name = present[number % len(present)]
        document = mutated(json.loads((path / name).read_text()), noise)
        replace_file(path, name, json.dumps(document))
        try:
            make(run, folder / "run", callbacks()).train(resume_from_checkpoint=str(path))
            outcomes["went on"] += 1
        except TranseptError:
            outcomes["refused"] += 1
    return outcomes


FOLLOWED = {
    "lr_scheduler_type": "reduce_lr_on_plateau",
    "eval_strategy": "steps",
    "eval_steps": 1,
    "load_best_model_at_end": True,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("settings", [{"fp16": True}, FOLLOWED | {"optim": "sgd", "metric_for_best_model": "loss"}])
def test_changed_documents_go_on_or_are_refused(settings: dict[str, Any], tmp_path: Path) -> None:
    stops = lambda: (EarlyStoppingCallback(3),) if "eval_steps" in settings else ()  # noqa: E731
    outcomes = mutations(tmp_path, settings, stops, Random(5), 28)
    assert min(outcomes["went on"], outcomes["refused"]) > 3


def test_a_new_run_beside_old_checkpoints_is_said(begun: Path) -> None:
    with pytest.warns(TranseptWarning, match="has checkpoints of an earlier run, the last of them checkpoint-2"):
        make(BEGUN, begun.parent, max_steps=1, save_strategy="epoch").train()


def test_another_run_in_the_directory(tmp_path: Path) -> None:
    with other_run(tmp_path) as other:
        with pytest.raises(FileError, match=rf"in use: process {other.pid} on \S+ trains in it"):
            train(Run(), tmp_path)
        other.communicate()
    train(replace(Run(), rows=4, epochs=1), tmp_path)
    assert not (tmp_path / LOCK_NAME).exists()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"stateful_callbacks": 5}, "must be an object, but is 5"),
        ({"stateful_callbacks": {"TrainerControl": 5, "EarlyStoppingCallback": 5}}, "must be an object, but is 5"),
        ({"log_history": [{"loss": 1}]}, "`step` is missing"),
        ({"global_step": -1}, "`global_step` must be at least 0"),
        ({"best_metric": "x"}, "`best_metric` must be a number or null"),
    ],
)
def test_states_that_cannot_be(begun: Path, tmp_path: Path, values: dict[str, Any], message: str) -> None:
    path = shutil.copytree(begun, tmp_path / "checkpoint-2")
    rewrite(path, "trainer_state.json", **values)
    trainer = make(BEGUN, tmp_path, (EarlyStoppingCallback(3),))
    with pytest.raises(FormatError, match=f"trainer_state.json: .*{message}"), warnings.catch_warnings(action="ignore"):
        trainer.train(resume_from_checkpoint=True)


@pytest.mark.filterwarnings("ignore")
def test_a_step_beyond_the_run_does_not_hang(begun: Path, tmp_path: Path) -> None:
    path = shutil.copytree(begun, tmp_path / "checkpoint-2")
    rewrite(path, "trainer_state.json", global_step=2**62)
    for name in ("data.json", "scheduler.json", MANIFEST_NAME):
        (path / name).unlink()
    assert train(BEGUN, tmp_path, resume=str(path))["step"] == 2**62


def test_checkpoints_of_other_programs_are_not_replaced(tmp_path: Path) -> None:
    other = tmp_path / "checkpoint-2"
    other.mkdir()
    (other / "trainer_state.json").write_text("mine")
    with (
        pytest.warns(TranseptWarning),
        pytest.raises(FileError, match="checkpoint-2: was not written by transept, and this run might save there"),
    ):
        train(BEGUN, tmp_path)
    assert [(path.name, path.read_text()) for path in other.iterdir()] == [("trainer_state.json", "mine")]
    assert not (tmp_path / LOCK_NAME).exists()


class Raise(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        raise KeyError("a mistake of the user's")


def test_handlers_and_locks_are_put_back_after_an_error(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyError):
        train(Run(), tmp_path, None, (Raise(),))
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert not (tmp_path / LOCK_NAME).exists()


# --- the reference ---------------------------------------------------------------------------------------------------------


def reference(folder: Path, **arguments: Any) -> Any:
    """The reference's trainer of the same run."""
    import transformers

    from tests.training.runs import collate

    config = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**config, num_labels=3))
    args = transformers.TrainingArguments(
        str(folder), per_device_train_batch_size=4, num_train_epochs=2, learning_rate=1e-2, save_steps=2, logging_steps=1,
        use_cpu=True, disable_tqdm=True, report_to="none", remove_unused_columns=False, dataloader_pin_memory=False, **arguments
    )  # fmt: skip
    data: Any = torch.utils.data.StackDataset(rows=Rows(22))
    return transformers.Trainer(model, args, data_collator=lambda rows: collate([r["rows"] for r in rows]), train_dataset=data)


@pytest.mark.reference
@pytest.mark.filterwarnings("default")
def test_the_reference_goes_on_from_ours(tmp_path: Path) -> None:
    trainer = make(Run(), tmp_path / "ours")
    trainer.train()
    theirs = reference(tmp_path / "theirs")
    theirs.train(resume_from_checkpoint=str(tmp_path / "ours" / "checkpoint-12"))
    assert theirs.state.global_step == 12
    own = trainer.model.state_dict()
    loaded = type(trainer.model).from_pretrained(tmp_path / "ours" / "checkpoint-12").state_dict()
    assert all(loaded[name].equal(own[name]) for name in own)
    ours = {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}
    assert {entry["step"]: entry["loss"] for entry in theirs.state.log_history if "loss" in entry} == ours
    theirs = reference(tmp_path / "theirs")
    theirs.train(resume_from_checkpoint=str(tmp_path / "ours" / "checkpoint-8"))
    assert theirs.state.global_step == 12


@pytest.mark.reference
@pytest.mark.filterwarnings("default")
def test_ours_goes_on_from_the_reference_s(tmp_path: Path) -> None:
    theirs = reference(tmp_path)
    theirs.train()
    path = tmp_path / "checkpoint-8"
    with pytest.raises(InputError, match="Pass one of these by name: .*checkpoint-8"), pytest.warns(TranseptWarning):
        train(Run(), tmp_path, resume=True)
    trainer = make(Run(), tmp_path / "ours")
    with pytest.warns(TranseptWarning, match="not restored: optimizer, random generators.*pickles are not read"):
        trainer.train(resume_from_checkpoint=str(path))
    assert trainer.state.global_step == 12
    own = {entry["step"]: entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry}
    assert own == pytest.approx({e["step"]: e["learning_rate"] for e in theirs.state.log_history if "loss" in e}, rel=1e-12)
    assert outcome(trainer)["step"] == 12
