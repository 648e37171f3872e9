"""Going on from a checkpoint: which one, where in the data the run was, and what is put back."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Self

from torch.utils.data import SequentialSampler

from transept.config.fields import Count, Range
from transept.config.schema import kind_of, read_typed, typed
from transept.errors import FileError, TranseptWarning, naming, refuse
from transept.storage.files import load_json, load_object
from transept.training.checkpoint import directory
from transept.training.checkpoint.contents import SCHEDULE, load_generators, load_parts
from transept.training.checkpoint.digests import RowsDigest, digest_rows
from transept.training.checkpoint.directory import MANIFEST_NAME
from transept.training.checkpoint.serialization import pack, tensors_beside, unpack
from transept.training.data.loader import is_stream, restore_stream
from transept.training.data.order import EpochBatches
from transept.training.data.stream import StreamState
from transept.training.files import ARGUMENTS_NAME
from transept.training.run import TrainingRun
from transept.training.state import STATE_NAME, ExportableState, TrainerState

DATA_NAME = "data.json"
STREAM = "stream"  # where an iterable is, by its own ``state_dict``
Number = Annotated[int, Range(0)]
Resume = str | os.PathLike[str] | bool | None
# What a checkpoint keeps of a `Tally`.
_TALLY: Any = {
    **dict.fromkeys(("loss", "total_loss", "grad_norm"), float),
    **dict.fromkeys(("learned", "all_learned", "skipped", "logged_step"), Number),
    "learning_rate": float | None,
}
# Settings that change what a run computes.
_RELEVANT = (
    *("per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs", "max_steps", "seed"),
    *("learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "layerwise_lr_decay"),
    *("optim", "optim_args", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "bf16", "fp16", "ema_decay"),
    *("train_sampling_strategy", "max_tokens_per_batch", "dataloader_drop_last", "data_seed"),
    *("label_smoothing_factor", "neftune_noise_alpha", "max_grad_norm"),
)
# What a run that goes on has by itself.
_OF_THIS_RUN = (
    *("max_steps", "num_train_epochs", "train_batch_size", "logging_steps", "eval_steps", "save_steps"),
    *("is_hyper_param_search", "is_local_process_zero", "is_world_process_zero"),
)
_CALLBACK: Any = {"args": dict[str, Any], "attributes": dict[str, Any]}


@dataclass(frozen=True)
class DataPlace:
    """Where in the data a run was, as ``data.json`` tells it."""

    epoch: Number
    batches: Number  # of the epoch, which all processes together have read
    rows_of_batch: Count | None  # `None` where batches differ, as with a token budget
    replicas: Count  # the processes that took other batches
    accumulation: Count  # the batches of each process in an update
    tally: dict[str, Any]  # what was added up since the last log, packed
    rows: RowsDigest | None = None
    ended: bool = False  # by a callback

    @classmethod
    def of(cls, run: TrainingRun, rows: RowsDigest | None, *, ended: bool) -> Self:
        """The place of a run after its last update."""
        replicas, accumulation = run.devices.replicas.size, run.args.gradient_accumulation_steps
        epoch, batches = run.place.epoch, run.place.batch * replicas
        tally = pack({name: getattr(run.tally, name) for name in _TALLY}, "tally", {})
        ended = ended and run.state.global_step < run.state.max_steps
        return cls(epoch, batches, _rows_of_batch(run), replicas, accumulation, tally, rows, ended)

    def restore(self, run: TrainingRun, path: Path) -> None:
        """Put a run where it was (``FormatError``: the tally of the file cannot be)."""
        with naming(path):
            tally = typed(unpack(self.tally, {}), _TALLY)
        vars(run.tally).update({name: tally[name] for name in _TALLY})
        run.place.epoch, run.place.batch = self.epoch, self.next_batch(_rows_of_batch(run), run.devices.replicas.size)

    def next_batch(self, rows_of_batch: int | None, replicas: int) -> int:
        """The number of the batch that each of so many processes goes on with."""
        unit, done, at_once = "batches", self.batches, replicas
        if self.rows_of_batch is not None and rows_of_batch is not None:
            unit, done, at_once = "rows", done * self.rows_of_batch, at_once * rows_of_batch
        if again := done % at_once:
            what = f"{again} {unit} of this epoch are read again: processes and batches are not as they were."
            warnings.warn(what, TranseptWarning, stacklevel=2)
        return done // at_once


def _rows_of_batch(run: TrainingRun) -> int | None:  # `None` where they differ or are not known
    sampler = getattr(run.loader, "batch_sampler", None)
    by_number = isinstance(sampler, EpochBatches) and not sampler.varies
    return run.args.train_batch_size if by_number or is_stream(run.loader) else None


def keep_update_size(args: Any, resume: Resume, replicas: int) -> None:
    """Let a run that goes on with another number of processes, ``replicas``, keep the rows of an update.

    ``args.gradient_accumulation_steps`` is changed, with a warning; where the rows cannot be divided it stays.
    """
    with warnings.catch_warnings(action="ignore"):  # what is wrong with checkpoints is said when one is read
        checkpoint = _choose_checkpoint(args.output_dir, resume)
    if checkpoint is None or not (path := checkpoint / DATA_NAME).is_file():
        return
    saved = read_typed(path, DataPlace)
    if saved.replicas == replicas:
        return
    unit, size = ("batches", 1) if saved.rows_of_batch is None else ("rows", args.train_batch_size)
    before, at_once = saved.replicas * saved.accumulation * (saved.rows_of_batch or 1), size * replicas
    accumulation, rest = divmod(before, at_once)
    if rest:
        now = f"an update had {before} {unit} and has {at_once * args.gradient_accumulation_steps} now. "
        now += f"Choose batch sizes and an accumulation whose product is {before} {unit} over all processes."
    elif accumulation != args.gradient_accumulation_steps:
        args.gradient_accumulation_steps = accumulation
        now = f"gradient_accumulation_steps is {accumulation} now, so that an update has {before} {unit} as before."
    else:
        return
    warnings.warn(f"the run had {saved.replicas} processes and has {replicas}: {now}", TranseptWarning, stacklevel=3)


def _choose_checkpoint(folder: str | Path, resume: Resume) -> Path | None:
    """The checkpoint to go on from: by name, or the last whole one for ``True`` or where torchrun starts again."""
    started_again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    if resume is True or (resume is None and started_again):
        return directory.find_last_checkpoint(folder)
    return Path(resume) if resume else None


def find_checkpoint(folder: Path, resume: Resume, *, saves: bool) -> Path | None:
    """The checkpoint to go on from, whose files are as they were written; ``None`` where a run begins anew.

    Refused are ``True`` without a whole checkpoint, and the name of one that was altered, or is none.
    """
    earlier = [path.name for _, path in directory.list_checkpoints(folder)]
    path = _choose_checkpoint(folder, resume)
    if path is None:
        hint = f"Pass one of these by name: {', '.join(earlier)}." if earlier else "Begin a new run without it."
        refuse(resume, "has no whole checkpoint to go on from.", hint, path=folder)
        if saves and earlier:
            what = f"{folder} has checkpoints of an earlier run, the last of them {earlier[-1]}. "
            what += "This run begins anew; to go on from them pass resume_from_checkpoint=True."
            warnings.warn(what, TranseptWarning, stacklevel=5)
    elif (path / MANIFEST_NAME).exists():
        directory.check_checkpoint(path)
    elif not (path / STATE_NAME).is_file():
        raise FileError(f"is no checkpoint: it has neither {MANIFEST_NAME} nor {STATE_NAME}.", path=path)
    return path


def restore_run(run: TrainingRun, trainer: Any, checkpoint: Path, rows: RowsDigest | None) -> tuple[Any, bool]:
    """Put a run where it was at a checkpoint; gives its random generators, and whether a callback had ended it."""
    args, ended = run.args, False
    state = TrainerState.load_from_json(checkpoint / STATE_NAME)
    state = replace(state, **{name: getattr(run.state, name) for name in _OF_THIS_RUN})
    if changes := _changes(checkpoint, args.to_dict(), run.devices.replicas.size):
        what = f"{checkpoint}: {'; '.join(changes)}. The run goes on, but not as it would have."
        rates = "What the optimizer and the schedule keep, such as the learning rate, is the checkpoint's."
        warnings.warn(f"{what} {rates}", TranseptWarning, stacklevel=5)
    trainer._load_from_checkpoint(str(checkpoint))
    lost = load_parts(checkpoint, run)
    run.continue_from(state)
    trainer.state = state
    _restore_callbacks(trainer, checkpoint / STATE_NAME)
    if (path := checkpoint / DATA_NAME).exists():
        place = read_typed(path, DataPlace)
        place.restore(run, path)
        ended = place.ended
        _warn_of_rows(trainer.train_dataset, place.rows, rows)
    else:
        _count_to_place(run)
    if args.ignore_data_skip:
        run.place.batch = 0
    _restore_stream(checkpoint, run)
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


def _changes(checkpoint: Path, settings: dict[str, Any], replicas: int) -> list[str]:
    """What is other than when the checkpoint was saved: the version, and settings that change the result."""
    from transept import __version__

    changes, relevant = list[str](), [*_RELEVANT]
    if (checkpoint / MANIFEST_NAME).exists():
        manifest = directory.read_manifest(checkpoint)
        if manifest.version != __version__:
            changes.append(f"it was saved by transept {manifest.version[:40]}, and this is {__version__}")
        if manifest.world_size != replicas:  # see :func:`keep_rows_of_update`
            relevant.remove("gradient_accumulation_steps")
    if (path := checkpoint / ARGUMENTS_NAME).exists():
        before = load_object(path)
        other = [name for name in relevant if name in before and before[name] != settings[name]]
        changes += [f"`{name}` was {str(before[name])[:60]} and is {str(settings[name])[:60]}" for name in other]
    return changes


def _restore_callbacks(trainer: Any, path: Path) -> None:
    """Give callbacks their saved attributes, such as how long a metric has not become better."""
    saved: dict[str, Any] = dict(trainer.state.stateful_callbacks or {})
    for callback in trainer.callback_handler.callbacks:
        name, attributes = type(callback).__name__, vars(callback)
        document = saved.get(name)
        if isinstance(document, list):  # of several of one class
            saved[name], document = document[1:], (document or [None])[0]
        if isinstance(callback, ExportableState) and document is not None:
            values: Any = typed(document, _CALLBACK, path=path)
            settings = values["args"] if trainer.args.restore_callback_states_from_checkpoint else {}
            values = {key: value for key, value in (settings | values["attributes"]).items() if key in attributes}
            numbers = {key: attributes[key] for key in values if isinstance(attributes[key], int | float)}
            attributes.update(typed(values, kind_of(numbers), path=path))


def _warn_of_rows(dataset: Any, before: RowsDigest | None, now: RowsDigest | None) -> None:
    if before is not None and now is not None and digest_rows(dataset, before.looked_at) != before:
        same_number = before.rows == now.rows
        change = "some of its rows are others" if same_number else f"it had {before.rows} rows and has {now.rows}"
        what = f"the training data changed since the run began: {change}. The run goes on, but not as it would have."
        warnings.warn(what, TranseptWarning, stacklevel=6)


def _count_to_place(run: TrainingRun) -> None:
    """Put a run behind as many updates as it made, where a checkpoint of the reference's does not tell the place."""
    accumulation = run.args.gradient_accumulation_steps
    left, epoch = min(run.state.global_step, run.state.max_steps), 0
    while run.length.batches is not None:
        updates = -(-run.length.batches_in(epoch, accumulation) // accumulation)
        if not 0 < updates <= left:
            break
        left, epoch = left - updates, epoch + 1
    run.place.epoch, run.place.batch = epoch, left * accumulation


def _restore_stream(checkpoint: Path, run: TrainingRun) -> None:
    """Let an iterable go on from its state, or say that its rows are read up to the place of the run."""
    place, path, restored = run.place, checkpoint / f"{STREAM}.json", False
    if path.exists():
        state = typed(unpack(load_json(path), tensors_beside(path)), StreamState, path=path)
        restored = restore_stream(run.loader, state, place.epoch, place.batch)
    if is_stream(run.loader) and place.batch and not restored:
        what = "`train_dataset` is an iterable without a saved state: "
        what += f"the rows of {place.batch} batches are read and left out. "
        what += "A data set with `state_dict` and `load_state_dict`, and no workers, goes on at once."
        warnings.warn(what, TranseptWarning, stacklevel=6)


def warn_of_own_order(loader: Any) -> None:
    """Warn of a user's own loader that draws the order of its rows anew in a run that goes on within an epoch."""
    sampler = getattr(loader, "sampler", None)
    parts = (loader, sampler, getattr(loader, "batch_sampler", None))
    follows_epoch = any(hasattr(part, "set_epoch") for part in parts) or is_stream(loader)
    if not follows_epoch and not isinstance(sampler, SequentialSampler | None):
        what = "the order of your own loader's rows is drawn anew: some rows of this epoch are read twice, "
        what += "others never. Give it a sampler with `set_epoch`, whose order follows from the epoch."
        warnings.warn(what, TranseptWarning, stacklevel=2)
