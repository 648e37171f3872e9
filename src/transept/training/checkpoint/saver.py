"""Saving a run again and again: what goes into a checkpoint, failures that a run survives, and how many checkpoints stay."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from transept.errors import FileError, TranseptWarning
from transept.files import dump_json, write_text
from transept.parallel.processes import everywhere
from transept.parallel.streams import ModelFiles, written_together
from transept.training.checkpoint.contents import Collected, Parts, collect
from transept.training.checkpoint.digests import RowsDigest
from transept.training.checkpoint.directory import Fill, clean, rotate, write_checkpoint
from transept.training.checkpoint.generators import Generators
from transept.training.checkpoint.place import DATA_NAME, DataPlace, SavedTally, rows_of_batch
from transept.training.checkpoint.resume import STREAM
from transept.training.checkpoint.values import pack, write_values
from transept.training.data.loader import stream_state
from transept.training.files import whole_weights
from transept.training.run import TrainingRun
from transept.training.state import STATE_NAME, ExportableState

MAX_FAILURES = 3


class CheckpointSaver:
    """Saves the checkpoints of a run.

    A save that fails leaves the earlier checkpoints whole, warns, and training goes on; the third in a row raises its
    ``FileError``, and so does one that is the ``final`` one of the run.

    Args:
        run: the run's directory.
        limit: how many checkpoints stay (``save_total_limit``); ``None`` keeps all.
        resumed_from: the checkpoint that the run goes on from, which stays too.
    """

    def __init__(
        self, run: str | os.PathLike[str], *, limit: int | None = None, resumed_from: str | os.PathLike[str] | None = None
    ) -> None:
        self.run, self.limit = Path(run), limit
        self.resumed_from = None if resumed_from is None else Path(resumed_from)
        self.failures = 0
        self.saved: Path | None = None
        clean(self.run)

    def save(
        self,
        step: int,
        fill: Fill,
        *,
        needed: int = 0,
        world_size: int = 1,
        best: str | os.PathLike[str] | None = None,
        final: bool = False,
    ) -> Path | None:
        """Write the checkpoint of a step; ``None`` where that failed (see :class:`CheckpointSaver` and ``write_checkpoint``).

        ``best`` is the checkpoint of the best model, which stays.
        """
        try:
            self.saved = write_checkpoint(self.run, step, fill, world_size=world_size, needed=needed)
        except FileError as error:
            self.failures += 1
            left = self._free()
            if final or self.failures >= MAX_FAILURES:
                which = "the last checkpoint of the run" if final else f"{self.failures} checkpoints in a row"
                what = f"{which} could not be saved ({error.message.rstrip('.')}; {left})."
                raise FileError(what, path=error.path, hint=error.hint) from error
            text = f"The checkpoint of step {step} could not be saved: {error} Then {left}. Training goes on; "
            text += f"{MAX_FAILURES - self.failures} more failure(s) in a row end it."
            warnings.warn(text, TranseptWarning, stacklevel=3)
            return None
        self.failures = 0
        rotate(self.run, self.limit, last=self.saved, keep=(Path(best) if best else None, self.resumed_from))
        return self.saved

    def _free(self) -> str:
        with suppress(OSError):
            return f"{shutil.disk_usage(self.run).free / 1e6:.1f} MB are free"
        return "the free space is unknown"


def save_run(
    run: TrainingRun, trainer: Any, saver: CheckpointSaver, parts: Parts, rows: RowsDigest | None, *, final: bool
) -> Path | None:
    """Save the checkpoint of the last update, which all processes do together; ``None`` where the run goes on without."""
    run.add_up_losses()
    collected = None if run.args.save_only_model else collect(parts, everywhere(Generators.now()))
    in_shards = parts.writes_shards and collected is not None
    weights = whole_weights(run.model, run.form, run.average, elsewhere=in_shards)
    path: Path | None = None
    # What was collected is the last stream, since it is written first.
    with written_together(*(each for each in (weights, collected) if isinstance(each, Collected | ModelFiles))):
        if run.args.process_index == 0:
            path = _write(run, saver, lambda stage: _fill(stage, run, trainer, collected, weights, rows), parts.bytes, final)
    told: tuple[Path | None, int, str | None] = (path, saver.failures, run.state.best_model_checkpoint)
    path, saver.failures, run.state.best_model_checkpoint = run.devices.replicas.from_first(told)
    saver.saved = path or saver.saved
    return path


def _write(run: TrainingRun, saver: CheckpointSaver, fill: Fill, needed: int, final: bool) -> Path | None:
    """Write the checkpoint, and note where the best one is."""
    state = run.state
    step, before, target = state.global_step, state.best_model_checkpoint, saver.run / f"checkpoint-{state.global_step}"
    if state.best_global_step:
        best = saver.run / f"checkpoint-{state.best_global_step}"
        if state.best_global_step == step or best.is_dir():
            state.best_model_checkpoint = str(best)
    path: Path | None = None
    try:
        best_one, final = state.best_model_checkpoint, final or step >= state.max_steps
        replicas = run.devices.replicas.size
        path = saver.save(step, fill, needed=needed, world_size=replicas, best=best_one, final=final)
    finally:
        if path is None and state.best_model_checkpoint == str(target):
            state.best_model_checkpoint = before
    return path


def _fill(
    stage: Path, run: TrainingRun, trainer: Any, collected: Collected | None, weights: Any, rows: RowsDigest | None
) -> Iterator[Path]:
    """Write the files of a checkpoint; gives each large one when it is whole."""
    if collected is not None:  # the largest files first, since the last ones are waited for
        yield from collected.write(stage)
    before = set(stage.iterdir())
    if run.devices.alone:
        trainer.save_model(stage, _internal_call=True)
    else:  # the other processes are not asked again
        trainer._save(stage, weights)
    yield from sorted({*stage.glob("*.safetensors")} - before)
    stream = stream_state(run.loader, run.place.epoch, run.place.batch)
    if stream is not None:
        yield from write_values(stage, STREAM, vars(stream))
    callbacks = [*trainer.callback_handler.callbacks, trainer.control]
    run.store_flops()
    run.state.keep_callbacks([callback for callback in callbacks if isinstance(callback, ExportableState)])
    run.state.save_to_json(stage / STATE_NAME)
    write_text(stage / DATA_NAME, dump_json(asdict(_place(run, rows, ended=trainer.control.should_training_stop))))


def _place(run: TrainingRun, rows: RowsDigest | None, *, ended: bool) -> DataPlace:
    """Where in the data the run is, and what it has added up, exactly."""
    args, replicas = run.args, run.devices.replicas.size
    tally = {field.name: getattr(run.tally, field.name) for field in fields(SavedTally)}
    return DataPlace(
        epoch=run.place.epoch,
        batches=run.place.batch * replicas,
        rows_of_batch=rows_of_batch(run.loader, args.train_batch_size),
        replicas=replicas,
        accumulation=args.gradient_accumulation_steps,
        tally=pack(tally, "tally", {}),
        rows=rows,
        ended=ended and run.state.global_step < run.state.max_steps,
    )
