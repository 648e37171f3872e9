"""Going on from a checkpoint: which one, and what is put back where it was."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from transept.errors import FileError, FormatError, InputError, TranseptWarning
from transept.files import load_object
from transept.schema import kind_of, read_typed, typed
from transept.training.checkpoint.contents import SCHEDULE, Parts, load_generators, load_parts
from transept.training.checkpoint.digests import RowsDigest, digest_rows
from transept.training.checkpoint.directory import (
    MANIFEST_NAME,
    check_checkpoint,
    find_last_checkpoint,
    list_checkpoints,
    read_manifest,
)
from transept.training.checkpoint.generators import Generators
from transept.training.checkpoint.place import (
    DATA_NAME,
    DataPlace,
    SavedTally,
    rows_of_batch,
    started_again,
    warn_of_own_order,
)
from transept.training.checkpoint.values import read_values, unpack
from transept.training.data.loader import is_stream, restore_stream
from transept.training.data.stream import StreamState
from transept.training.files import ARGUMENTS_NAME
from transept.training.run import TrainingRun
from transept.training.state import STATE_NAME, ExportableState, TrainerState

STREAM = "stream"  # where an iterable is, by its own ``state_dict``
# Settings that change what a run computes.
_RELEVANT = (
    *("per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs", "max_steps", "seed", "data_seed"),
    *("learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "layerwise_lr_decay", "max_grad_norm"),
    *("optim", "optim_args", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "bf16", "fp16", "ema_decay"),
    *("train_sampling_strategy", "max_tokens_per_batch", "dataloader_drop_last"),
    *("label_smoothing_factor", "neftune_noise_alpha"),
)
# What a run that goes on has by itself.
_OWN = (
    *("max_steps", "num_train_epochs", "train_batch_size", "logging_steps", "eval_steps", "save_steps"),
    *("is_hyper_param_search", "is_local_process_zero", "is_world_process_zero"),
)
_NOTED: Any = {"args": dict[str, Any], "attributes": dict[str, Any]}  # of a callback


def find_checkpoint(folder: Path, resume: str | os.PathLike[str] | bool | None, *, saves: bool) -> Path | None:
    """The checkpoint to go on from, whose files are as they were written; ``None`` where a run begins anew.

    Raises:
        InputError: ``resume`` is ``True``, and there is no whole checkpoint.
        CheckpointError, FileError: the one that was named was altered, or is none.
    """
    earlier = [path.name for _, path in list_checkpoints(folder)]
    if resume is None and started_again():
        return find_last_checkpoint(folder)
    if not resume:
        if saves and earlier:
            what = f"{folder} has checkpoints of an earlier run, the last of them {earlier[-1]}. This run begins anew"
            warnings.warn(f"{what}; to go on from them pass resume_from_checkpoint=True.", TranseptWarning, stacklevel=5)
        return None
    path = find_last_checkpoint(folder) if resume is True else Path(resume)
    if path is None:
        hint = f"Pass one of these by name: {', '.join(earlier)}." if earlier else "Begin a new run without it."
        raise InputError("has no whole checkpoint to go on from.", path=folder, hint=hint)
    if (path / MANIFEST_NAME).exists():
        check_checkpoint(path)
    elif not (path / STATE_NAME).is_file():
        raise FileError(f"is no checkpoint: it has neither {MANIFEST_NAME} nor {STATE_NAME}.", path=path)
    return path


def go_on(
    run: TrainingRun, trainer: Any, checkpoint: Path, parts: Parts, rows: RowsDigest | None
) -> tuple[Generators | None, bool]:
    """Put a run where it was when a checkpoint was saved; gives its random generators, and whether a callback had ended it."""
    args, replicas = run.args, run.devices.replicas.size
    state = read_state(checkpoint / STATE_NAME, run.state)
    warn_of_changes(checkpoint, args.to_dict(), replicas)
    lost = load_parts(checkpoint, parts)
    run.continue_from(state)
    trainer.state = state
    with_settings = args.restore_callback_states_from_checkpoint
    restore_callbacks(trainer.callback_handler.callbacks, state, checkpoint / STATE_NAME, with_settings=with_settings)
    ended = False
    if (path := checkpoint / DATA_NAME).exists():
        place = read_typed(path, DataPlace)
        vars(run.tally).update(_tally_of(place, path))
        run.place.epoch, ended = place.epoch, place.ended
        run.place.batch = place.next_batch(rows_of_batch(run.loader, args.train_batch_size), replicas)
        warn_of_rows(trainer.train_dataset, place.rows, rows)
    else:
        batches_in = run.length.batches_in if run.length.batches is not None else None
        step = min(state.global_step, state.max_steps)
        run.place.epoch, run.place.batch = place_of(step, args.gradient_accumulation_steps, batches_in)
    if args.ignore_data_skip:
        run.place.batch = 0
    _find_rows(checkpoint, run)
    if run.place.batch:
        warn_of_own_order(run.loader)
    generators = load_generators(checkpoint, rank=args.process_index)
    if SCHEDULE in lost and not run.follows_metric:  # it follows from the number of updates
        lost.remove(SCHEDULE)
        with warnings.catch_warnings(action="ignore"):  # PyTorch's, that the optimizer made no step before
            for _ in range(min(state.global_step, state.max_steps)):
                run.scheduler.step()
    lost += [] if generators else ["random generators"]
    if lost:
        why = ", since pickles are not read" if (checkpoint / "optimizer.pt").exists() else ""
        what = f"{checkpoint}: not restored: {', '.join(lost)}. These begin anew{why}."
        warnings.warn(what, TranseptWarning, stacklevel=5)
    return generators, ended


def read_state(path: Path, now: TrainerState) -> TrainerState:
    """The state of a checkpoint, with the length and the intervals of the run that goes on."""
    state = TrainerState.load_from_json(path)
    return replace(state, **{name: getattr(now, name) for name in _OWN})


def _tally_of(place: DataPlace, path: Path) -> dict[str, Any]:
    try:
        return dict(vars(typed(unpack(place.tally, {}), SavedTally, path=path)))
    except FormatError as error:
        error.path = str(path)
        raise


def place_of(step: int, accumulation: int, batches_in: Any) -> tuple[int, int]:
    """The epoch and the batch that follow an update, where the checkpoint does not tell them.

    ``batches_in`` gives the batches of an epoch (epoch, accumulation); ``None``: their number is not known.
    """
    epoch = 0
    while batches_in is not None and step >= (updates := -(-batches_in(epoch, accumulation) // accumulation)) > 0:
        step, epoch = step - updates, epoch + 1
    return epoch, step * accumulation


def _find_rows(checkpoint: Path, run: TrainingRun) -> None:
    """Let an iterable go on from its state, or say that its rows are read up to the place of the run."""
    loader, place, path = run.loader, run.place, checkpoint / f"{STREAM}.json"
    restored = False
    if path.exists():
        state = typed(read_values(path), StreamState, path=path)
        restored = restore_stream(loader, state, place.epoch, place.batch)
    if is_stream(loader) and place.batch and not restored:
        what = f"`train_dataset` is an iterable without a saved state: the rows of {place.batch} batches are read and left out."
        hint = "A data set with `state_dict` and `load_state_dict`, and no workers, goes on at once."
        warnings.warn(f"{what} {hint}", TranseptWarning, stacklevel=6)


def restore_callbacks(callbacks: Iterable[Any], state: TrainerState, path: Path, *, with_settings: bool) -> None:
    """Give callbacks what they had noted, such as how long a metric has not become better."""
    saved: dict[str, Any] = dict(state.stateful_callbacks or {})
    for callback in callbacks:
        name, own = type(callback).__name__, vars(callback)
        noted = saved.get(name)
        if isinstance(noted, list):  # of several of one class
            saved[name], noted = noted[1:], (noted or [None])[0]
        if isinstance(callback, ExportableState) and noted is not None:
            values: Any = typed(noted, _NOTED, path=path)
            known = (values["args"] if with_settings else {}) | values["attributes"]
            known = {key: value for key, value in known.items() if key in own}
            numbers: Any = {key: kind_of(own[key]) for key in known if isinstance(own[key], int | float)}
            own.update(typed(known, numbers, path=path))


def warn_of_changes(checkpoint: Path, settings: dict[str, Any], replicas: int) -> None:
    """Say what is other than when the checkpoint was saved: the version, and settings that change the result."""
    from transept import __version__

    changes, relevant = list[str](), [*_RELEVANT]
    if (checkpoint / MANIFEST_NAME).exists():
        manifest = read_manifest(checkpoint)
        if manifest.version != __version__:
            changes.append(f"it was saved by transept {manifest.version[:40]}, and this is {__version__}")
        if manifest.world_size != replicas:  # see :func:`keep_rows_of_update`
            relevant.remove("gradient_accumulation_steps")
    if (path := checkpoint / ARGUMENTS_NAME).exists():
        before = load_object(path)
        other = [name for name in relevant if name in before and before[name] != settings[name]]
        changes += [f"`{name}` was {str(before[name])[:60]} and is {str(settings[name])[:60]}" for name in other]
    if changes:
        what = f"{checkpoint}: {'; '.join(changes)}. The run goes on, but not as it would have."
        kept = "What the optimizer and the schedule keep, such as the learning rate, is the checkpoint's."
        warnings.warn(f"{what} {kept}", TranseptWarning, stacklevel=5)


def warn_of_rows(dataset: Any, before: RowsDigest | None, now: RowsDigest | None) -> None:
    """Say that the rows are others than when the run began."""
    if before is not None and now is not None and digest_rows(dataset, before.looked_at) != before:
        other = before.rows == now.rows
        change = "some of its rows are others" if other else f"it had {before.rows} rows and has {now.rows}"
        what = f"the training data changed since the run began: {change}. The run goes on, but not as it would have."
        warnings.warn(what, TranseptWarning, stacklevel=6)
