"""A run as it is kept on the disk: it is begun or gone on with, saved between updates, and ended by signals."""

from __future__ import annotations

import contextlib
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Self

from transept.environment.logging import get_logger
from transept.errors import FileError, TranseptWarning
from transept.parallel.processes import gather_objects, same_on_all
from transept.parallel.streams import written_together
from transept.storage.files import dump_json, write_text
from transept.training.checkpoint.contents import Collected, checkpoint_bytes
from transept.training.checkpoint.digests import digest_rows
from transept.training.checkpoint.directory import check_free, check_space, clean, only_run, rotate, write_checkpoint
from transept.training.checkpoint.generators import Generators, Rewind
from transept.training.checkpoint.resume import DATA_NAME, STREAM, DataPlace, Resume, find_checkpoint, restore_run
from transept.training.checkpoint.serialization import write_values
from transept.training.checkpoint.signals import SignalWatch
from transept.training.data.loader import stream_state
from transept.training.files import whole_weights
from transept.training.run import TrainingRun
from transept.training.state import STATE_NAME, ExportableState, SaveStrategy

MAX_FAILURES = 3


class SavedRun:
    """The disk's side of one call of ``train()``, as a context around it.

    It keeps other runs out of the directory, goes on from a checkpoint (``resume=True``: from the last whole one in
    ``output_dir``), watches for signals, and saves. A save that fails leaves the earlier checkpoints whole and warns,
    and training goes on; the third in a row raises its ``FileError``, and so does the last one of the run.

    Raises:
        InputError: there is no checkpoint to go on from.
        CheckpointError: the checkpoint was altered, or is of another model, optimizer or schedule.
        FileError: the directory is another run's, has checkpoints that transept did not write, or cannot be read.
    """

    def __init__(self, run: TrainingRun, trainer: Any, resume: Resume = None) -> None:
        self.run, self.trainer, self.args, self.resume = run, trainer, run.args, resume
        self.folder, self.saves = Path(self.args.output_dir or "."), self.args.save_strategy != SaveStrategy.NO
        self.alone, self.is_first = run.devices.alone, self.args.process_index == 0
        self.signals = SignalWatch(self.args.save_on_signal and self.saves)
        self.rows = digest_rows(trainer.train_dataset) if self.saves else None
        self.rewind = Rewind(run.model)
        self.generators: Generators | None = None
        self.ended = False
        self.failures = 0  # saves in a row that failed
        self.last: Path | None = None  # the checkpoint that was saved last

    def __enter__(self) -> Self:
        checkpoint = None
        with contextlib.ExitStack() as undo:
            with same_on_all():
                if self.is_first:
                    undo.enter_context(only_run(self.folder))
                    checkpoint = find_checkpoint(self.folder, self.resume, saves=self.saves)
            self.resumed = checkpoint = gather_objects(checkpoint)[0]
            with same_on_all():
                if checkpoint is not None:
                    self.generators, self.ended = restore_run(self.run, self.trainer, checkpoint, self.rows)
                if self.saves and self.is_first:
                    check_free(self.folder, self.run.state.global_step, self.run.state.max_steps)
                    weights = sum(weight.nbytes for weight in self.run.model.parameters() if weight.requires_grad)
                    try:  # whether there is room for one checkpoint more; AdamW keeps two numbers a weight
                        check_space(self.folder, checkpoint_bytes(self.run) + 2 * weights)
                    except FileError as error:
                        warnings.warn(str(error), TranseptWarning, stacklevel=3)
                clean(self.folder)
            self.begin_update()
            undo.enter_context(self.signals)
            self._exit = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def restore_generators(self) -> None:
        """Put the random generators where the run was; the loop calls this where the run goes on."""
        if self.generators is not None:
            self.generators.restore()
            self.generators = None

    def save(self, *, final: bool = False) -> Path | None:
        """Save the last update, which all processes do together; ``None`` where that failed and the run goes on."""
        run, path = self.run, None
        run.add_up_losses()
        collected = None if self.args.save_only_model else Collected(run, gather_objects(Generators.now()))
        in_shards = collected is not None and collected.shards is not None
        weights = whole_weights(run.model, run.form, run.average, elsewhere=in_shards)
        # What was collected is the last stream, since it is written first.
        with written_together(*(part for part in (weights, collected) if hasattr(part, "finish"))):
            if self.is_first:
                path = self._write(collected, weights, final)
        outcome = path, self.failures, run.state.best_model_checkpoint
        path, self.failures, run.state.best_model_checkpoint = gather_objects(outcome)[0]
        self.last = path or self.last
        return path

    def _write(self, collected: Collected | None, weights: Any, final: bool) -> Path | None:
        """Write the checkpoint, note where the best one is, and remove old ones; ``None`` where writing failed."""
        run, state, step, path = self.run, self.run.state, self.run.state.global_step, None
        final = final or step >= state.max_steps
        before, best = state.best_model_checkpoint, self.folder / f"checkpoint-{state.best_global_step}"
        if state.best_global_step and (state.best_global_step == step or best.is_dir()):
            state.best_model_checkpoint = str(best)
        try:
            needed, world_size = checkpoint_bytes(run), run.devices.replicas.size
            fill = partial(self._fill, collected=collected, weights=weights)
            path = write_checkpoint(self.folder, step, fill, world_size=world_size, needed=needed)
        except FileError as error:
            self.failures += 1
            left = "the free space is unknown"
            with contextlib.suppress(OSError):
                left = f"{shutil.disk_usage(self.folder).free / 1e6:.1f} MB are free"
            if final or self.failures >= MAX_FAILURES:
                which = "the last checkpoint of the run" if final else f"{self.failures} checkpoints in a row"
                what = f"{which} could not be saved ({error.message.rstrip('.')}; {left})."
                raise FileError(what, path=error.path, hint=error.hint) from error
            text = f"The checkpoint of step {step} could not be saved: {error} Then {left}. Training goes on; "
            text += f"{MAX_FAILURES - self.failures} more failure(s) in a row end it."
            warnings.warn(text, TranseptWarning, stacklevel=2)
            return None
        finally:
            if path is None and state.best_global_step == step:
                state.best_model_checkpoint = before
        self.failures = 0
        rotate(self.folder, self.args.save_total_limit, last=path, keep=(state.best_model_checkpoint, self.resumed))
        return path

    def _fill(self, stage: Path, collected: Collected | None, weights: Any) -> Iterator[Path]:
        """Write the files of a checkpoint; gives each large one when it is whole."""
        run, trainer = self.run, self.trainer
        if collected is not None:  # the largest files first, since the last ones are waited for
            yield from collected.write(stage)
        before = set(stage.iterdir())
        if self.alone:
            trainer.save_model(stage, _internal_call=True)
        else:  # the other processes are not asked again
            trainer._save(stage, weights)
        yield from sorted({*stage.glob("*.safetensors")} - before)
        if (stream := stream_state(run.loader, run.place.epoch, run.place.batch)) is not None:
            yield from write_values(stage, STREAM, vars(stream))
        callbacks = [*trainer.callback_handler.callbacks, trainer.control]
        run.store_flops()
        run.state.keep_callbacks([callback for callback in callbacks if isinstance(callback, ExportableState)])
        run.state.save_to_json(stage / STATE_NAME)
        place = DataPlace.of(run, self.rows, ended=trainer.control.should_training_stop)
        write_text(stage / DATA_NAME, dump_json(asdict(place)))

    def begin_update(self) -> None:
        """Note the state at the beginning of an update."""
        self.rewind.note()
        self._counts = self.run.tally.flops, self.run.state.num_input_tokens_seen

    def _go_back(self) -> None:
        self.run.optimizer.zero_grad()
        self.rewind.back()
        self.run.tally.flops, self.run.state.num_input_tokens_seen = self._counts

    def save_before_update(self) -> str:
        """Save the run as it was before this update, which failed; gives a sentence about where that is, if it is."""
        step = self.run.state.global_step
        if not self.saves or not step:
            return ""
        present = (path for path in (self.last, self.resumed) if path and path.name.endswith(f"-{step}"))
        path = next(present, None)
        if path is None:
            self._go_back()
            try:
                path = self.save(final=True)
            except FileError as error:
                return f" The state after update {step} could not be saved: {error.message}"
            self.trainer.event("on_save")
        return f" {path} has the state after update {step}, to go on from."

    def check_signals(self) -> None:
        """Look for a signal within an update: one that ends the run leaves the update out, as if it had not begun."""
        # Several processes look before an update, all at the same one.
        if self.alone and self.signals.ended_by is not None:
            self._go_back()
            self._follow_signals()

    def receive_signals(self, numbers: list[tuple[int, int]]) -> None:
        """Do what a signal to any of several processes asks for, before an update that all of them begin together."""
        if not self.alone:
            for ending, save in numbers:
                self.signals.receive(ending, save)
            self._follow_signals()

    def end_update(self) -> None:
        """Do what a signal asked for, after an update."""
        if self.alone:
            self._follow_signals()

    def _follow_signals(self) -> None:
        step, signals = self.run.state.global_step, self.signals
        if signals.ended_by is None and not signals.save:
            return
        target = self.folder / f"checkpoint-{step}"
        is_new = step > self.run.first_step and self.last != target
        if is_new and self.save(final=signals.ended_by is not None):
            self.trainer.event("on_save")
        signals.save = False
        if signals.ended_by is not None:
            message = f"{signals.ended_by.name} ended training after {step} updates"
            hint = f"; {target} has all of it, and resume_from_checkpoint=True goes on from there"
            message += f"{hint}." if target.is_dir() else "."
            get_logger(__name__).warning(message)
            signals.end(message)
