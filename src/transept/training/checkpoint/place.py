"""Where in the data a run is, also for a run that goes on with other processes or other batches."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Self

from torch.utils.data import SequentialSampler

from transept.errors import TranseptWarning, naming
from transept.fields import Count, Range
from transept.schema import read_typed, typed
from transept.training.checkpoint.digests import RowsDigest
from transept.training.checkpoint.directory import find_last_checkpoint
from transept.training.checkpoint.values import pack, unpack
from transept.training.data.loader import is_stream
from transept.training.data.order import EpochBatches, TokenBudgetSampler
from transept.training.run import TrainingRun

DATA_NAME = "data.json"
Number = Annotated[int, Range(0)]
Resume = str | os.PathLike[str] | bool | None


@dataclass(frozen=True)
class SavedTally:
    """What a checkpoint keeps of a :class:`transept.training.run.Tally`."""

    loss: float
    total_loss: float
    learned: Number
    all_learned: Number
    skipped: Number
    logged_step: Number
    grad_norm: float
    learning_rate: float | None


@dataclass(frozen=True)
class DataPlace:
    """Where in the data a run was, as ``data.json`` tells it.

    Args:
        epoch: counted from 0.
        batches: how many batches of the epoch all processes together have read.
        rows_of_batch: the rows of each of them; ``None`` where these differ, as with a token budget.
        replicas: how many processes took other batches.
        accumulation: the batches of each process in an update.
        tally: a :class:`SavedTally`, packed.
        rows: the digest of the data.
        ended: whether a callback ended the run.
    """

    epoch: Number
    batches: Number
    rows_of_batch: Count | None
    replicas: Count
    accumulation: Count
    tally: dict[str, Any]
    rows: RowsDigest | None = None
    ended: bool = False

    @classmethod
    def of(cls, run: TrainingRun, rows: RowsDigest | None, *, ended: bool) -> Self:
        """The place of a run after its last update."""
        replicas = run.devices.replicas.size
        return cls(
            epoch=run.place.epoch,
            batches=run.place.batch * replicas,
            rows_of_batch=rows_of_batch(run),
            replicas=replicas,
            accumulation=run.args.gradient_accumulation_steps,
            tally=pack({field.name: getattr(run.tally, field.name) for field in fields(SavedTally)}, "tally", {}),
            rows=rows,
            ended=ended and run.state.global_step < run.state.max_steps,
        )

    def restore(self, run: TrainingRun, path: Path) -> None:
        """Put a run where it was (``FormatError``: the tally of the file cannot be)."""
        with naming(path):
            tally = typed(unpack(self.tally, {}), SavedTally)
        vars(run.tally).update(vars(tally))
        run.place.epoch, run.place.batch = self.epoch, self.next_batch(rows_of_batch(run), run.devices.replicas.size)

    def next_batch(self, rows_of_batch: int | None, replicas: int) -> int:
        """The number of the batch that each of so many processes goes on with."""
        unit, done, at_once = "batches", self.batches, replicas
        if self.rows_of_batch is not None and rows_of_batch is not None:
            unit, done, at_once = "rows", done * self.rows_of_batch, at_once * rows_of_batch
        if again := done % at_once:
            what = f"{again} {unit} of this epoch are read again: processes and batches are not as they were."
            warnings.warn(what, TranseptWarning, stacklevel=2)
        return done // at_once


def rows_of_batch(run: TrainingRun) -> int | None:
    """The rows of each batch of a run; ``None`` where they differ or are not known."""
    sampler = getattr(run.loader, "batch_sampler", None)
    by_number = isinstance(sampler, EpochBatches) and not isinstance(sampler.sampler, TokenBudgetSampler)
    return run.args.train_batch_size if by_number or is_stream(run.loader) else None


def warn_of_own_order(loader: Any) -> None:
    """Warn of a loader of the user's own that draws the order of its rows anew in a run that goes on within an epoch."""
    sampler = getattr(loader, "sampler", None)
    parts = (loader, sampler, getattr(loader, "batch_sampler", None))
    follows_epoch = any(hasattr(part, "set_epoch") for part in parts) or is_stream(loader)
    if not follows_epoch and not isinstance(sampler, SequentialSampler | None):
        what = "the order of your own loader's rows is drawn anew: some rows of this epoch are read twice, others never."
        hint = "Give it a sampler with `set_epoch`, whose order follows from the epoch."
        warnings.warn(f"{what} {hint}", TranseptWarning, stacklevel=2)


def checkpoint_named(folder: str | Path, resume: Resume) -> Path | None:
    """The checkpoint that a run is to go on from, if any: one by name, or the last whole one.

    The last one is taken where ``resume`` is ``True``, or says nothing and torchrun starts processes again.
    """
    started_again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    if resume is True or (resume is None and started_again):
        return find_last_checkpoint(folder)
    return Path(resume) if resume else None


def keep_rows_of_update(args: Any, resume: Resume, replicas: int) -> None:
    """Let a run that goes on with another number of processes keep the rows of an update, by its accumulation.

    Args:
        args: whose ``gradient_accumulation_steps`` is changed, with a warning; where the rows cannot be divided it stays.
        resume: see :class:`transept.training.checkpoint.saved_run.SavedRun`.
        replicas: how many processes take other rows.
    """
    with warnings.catch_warnings(action="ignore"):  # what is wrong with checkpoints is said when one is read
        checkpoint = checkpoint_named(args.output_dir, resume)
    if checkpoint is None or not (path := checkpoint / DATA_NAME).is_file():
        return
    saved = read_typed(path, DataPlace)
    if saved.replicas == replicas:
        return
    unit, size = ("batches", 1) if saved.rows_of_batch is None else ("rows", args.train_batch_size)
    before, at_once = saved.replicas * saved.accumulation * (saved.rows_of_batch or 1), size * replicas
    accumulation, rest = divmod(before, at_once)
    what = f"the run had {saved.replicas} processes and has {replicas}:"
    if rest:
        has = f"an update had {before} {unit} and has {at_once * args.gradient_accumulation_steps} now."
        hint = f"Choose batch sizes and an accumulation whose product is {before} {unit} over all processes."
        warnings.warn(f"{what} {has} {hint}", TranseptWarning, stacklevel=3)
    elif accumulation != args.gradient_accumulation_steps:
        args.gradient_accumulation_steps = accumulation
        now = f"gradient_accumulation_steps is {accumulation} now, so that an update has {before} {unit} as before."
        warnings.warn(f"{what} {now}", TranseptWarning, stacklevel=3)
