"""Runs go on as if nothing had happened, to the bit."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from transept import EarlyStoppingCallback, TrainerCallback
from transept.errors import CheckpointError, FileError, FormatError, InputError, TranseptWarning
from transept.training.checkpoint import MANIFEST_NAME, list_checkpoints
from transept.training.persist.lock import LOCK_NAME
from transept.training.persist.run import SavedRun

from .runs import Rows, Run, make, outcome, train

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
@pytest.mark.parametrize(("optim", "schedule", "accumulation", "workers", "bf16", "place"), CELLS)
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


@pytest.mark.parametrize("case", EVERY)
@pytest.mark.parametrize("step", [2, 6])
def test_settings(case: str, step: int, tmp_path: Path) -> None:
    check(Run(), tmp_path, step, **EVERY[case])


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
    """Change a file, and the manifest with it."""
    import hashlib

    document = json.loads((path / name).read_text()) | values
    (path / name).write_text(json.dumps(document))
    manifest = json.loads((path / MANIFEST_NAME).read_text())
    if name in manifest["files"]:
        data = (path / name).read_bytes()
        manifest["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
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
        {"batch": "x"},
        {"batch_size": 0},
        {"tally": {}},
        {"tally": []},
        {"tally": {"loss": {}}},
        {"tally": {"tensor": "x"}},
    ],
)
def test_a_place_that_cannot_be(begun: Path, tmp_path: Path, values: dict[str, Any]) -> None:
    path = shutil.copytree(begun, tmp_path / "checkpoint-2")
    rewrite(path, "data.json", **values)
    with pytest.raises(FormatError, match="data.json: does not say where"):
        train(BEGUN, tmp_path, resume=True)


def test_a_new_run_beside_old_checkpoints_is_said(begun: Path) -> None:
    with pytest.warns(TranseptWarning, match="has checkpoints of an earlier run, the last of them checkpoint-2"):
        make(BEGUN, begun.parent, max_steps=1, save_strategy="epoch").train()


OTHER = """
import sys
from transept.training.persist.lock import only_run
with only_run(sys.argv[1]):
    print("in", flush=True)
    sys.stdin.read()
"""


def test_another_run_in_the_directory(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", OTHER, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"in\n"
        with pytest.raises(FileError, match=rf"in use: process {other.pid} on \S+ trains in it"):
            train(Run(), tmp_path)
        other.communicate()
    train(replace(Run(), rows=4, epochs=1), tmp_path)
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

    from .runs import collate

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
