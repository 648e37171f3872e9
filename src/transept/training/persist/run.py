"""A run as it is kept on the disk: it is begun or gone on with, saved between updates, and ended by signals."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from transept.errors import FileError, FormatError, InputError, TranseptWarning
from transept.files import dump_json, load_object, write_text
from transept.logging import get_logger
from transept.parallel.launch import everywhere, same_on_all
from transept.parallel.streams import ModelFiles, written_together
from transept.training.checkpoint import (
    MANIFEST_NAME,
    check_checkpoint,
    check_space,
    find_last_checkpoint,
    list_checkpoints,
    read_manifest,
)
from transept.training.files import ARGUMENTS_NAME
from transept.training.loader import stream_of
from transept.training.persist.digests import digest_rows
from transept.training.persist.generators import Generators
from transept.training.persist.lock import only_run
from transept.training.persist.plain import pack, unpack
from transept.training.persist.restart import DATA_NAME, started_again
from transept.training.persist.saver import CheckpointSaver
from transept.training.persist.signals import SignalWatch
from transept.training.persist.snapshot import (
    SCHEDULE,
    Collected,
    Parts,
    Rewind,
    collect,
    load_generators,
    load_parts,
    read_parts,
    write_parts,
)
from transept.training.state import STATE_NAME, ExportableState, SaveStrategy, TrainerState

STREAM = "stream"  # where an iterable is, by its own ``state_dict``
# What is added up between logs, and what the last update told: attributes of the loop.
_TALLY = ("total_loss", "learned", "all_learned", "skipped", "logged_step", "grad_norm", "rate")
# Settings that change what a run computes.
_RELEVANT = (
    *("per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs", "max_steps", "seed", "data_seed"),
    *("learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "layerwise_lr_decay", "max_grad_norm"),
    *("optim", "optim_args", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "bf16", "fp16", "ema_decay"),
    *("train_sampling_strategy", "max_tokens_per_batch", "dataloader_drop_last"),
    *("label_smoothing_factor", "neftune_noise_alpha"),
)


class SavedRun:
    """The disk's side of one call of ``train()``, as a context around it.

    It keeps other runs out of the directory, goes on from a checkpoint where one is given, watches for signals, and saves.

    Args:
        trainer: whose run it is; its loop, optimizer and schedule are made.
        resume: a checkpoint to go on from; ``True`` for the last whole one in ``output_dir``.

    Raises:
        InputError: there is no checkpoint to go on from.
        CheckpointError: the checkpoint was altered, or is of another model, optimizer or schedule.
        FileError: another run is in the directory, or the checkpoint cannot be read.
    """

    def __init__(self, trainer: Any, resume: str | os.PathLike[str] | bool | None = None) -> None:
        self.trainer, self.loop, self.args = trainer, trainer.loop, trainer.args
        self.folder, self.saves = Path(self.args.output_dir), self.args.save_strategy != SaveStrategy.NO
        self.resume = resume
        self.signals = SignalWatch(self.args.save_on_signal and self.saves)
        self.devices = trainer.devices
        self.parts = Parts.of(trainer)
        self.rows = digest_rows(trainer.train_dataset) if self.saves else None
        self.rewind = Rewind(trainer.model)
        self.generators: Generators | None = None
        self.ended = False
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> Self:
        is_first, checkpoint = self.args.process_index == 0, None
        with contextlib.ExitStack() as undo:
            with same_on_all():
                if self.saves and is_first:
                    undo.enter_context(only_run(self.folder))
                checkpoint = self._checkpoint() if is_first else None
            self.resumed = checkpoint = self.devices.replicas.from_first(checkpoint)
            with same_on_all():
                if checkpoint is not None:
                    self._go_on(checkpoint)
                self.saver = CheckpointSaver(self.folder, limit=self.args.save_total_limit, resumed_from=checkpoint)
                if self.saves and is_first:
                    self._warn_of_space()
            self.begin()
            undo.enter_context(self.signals)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    # --- going on -----------------------------------------------------------------------------------------------------------

    def _checkpoint(self) -> Path | None:
        """The checkpoint to go on from, whose files are as they were written."""
        earlier = [path.name for _, path in list_checkpoints(self.folder)]
        if self.resume is None and started_again():
            return find_last_checkpoint(self.folder)
        if not self.resume:
            if self.saves and earlier:
                what = f"{self.folder} has checkpoints of an earlier run, the last of them {earlier[-1]}. This run begins anew"
                warnings.warn(f"{what}; to go on from them pass resume_from_checkpoint=True.", TranseptWarning, stacklevel=4)
            return None
        if self.resume is True:
            found = find_last_checkpoint(self.folder)
            if found is None:
                hint = f"Pass one of these by name: {', '.join(earlier)}." if earlier else "Begin a new run without it."
                raise InputError("has no whole checkpoint to go on from.", path=self.folder, hint=hint)
            path = found
        else:
            path = Path(self.resume)
        if (path / MANIFEST_NAME).exists():
            check_checkpoint(path)
        elif not (path / STATE_NAME).is_file():
            raise FileError(f"is no checkpoint: it has neither {MANIFEST_NAME} nor {STATE_NAME}.", path=path)
        return path

    def _go_on(self, checkpoint: Path) -> None:
        """Put the run where it was when the checkpoint was saved."""
        trainer, loop = self.trainer, self.loop
        state = TrainerState.load_from_json(checkpoint / STATE_NAME)
        self._warn_of_changes(checkpoint)
        lost = load_parts(checkpoint, self.parts)
        now = trainer.state
        for name in ("max_steps", "num_train_epochs", "train_batch_size", "logging_steps", "eval_steps", "save_steps"):
            setattr(state, name, getattr(now, name))
        state.is_hyper_param_search = now.is_hyper_param_search
        trainer.state = loop.state = state
        loop.first_step = loop.logged_step = state.global_step
        loop.first_tokens = state.num_input_tokens_seen
        self._restore_callbacks(state)
        if (path := checkpoint / DATA_NAME).exists():
            self._find_place(path)
        else:
            loop.place.epoch, loop.place.batch = self._place_of(state.global_step)
        self._find_rows(checkpoint)
        self.generators = load_generators(checkpoint, rank=self.args.process_index)
        if SCHEDULE in lost and not trainer.follows_metric:  # it follows from the number of updates
            lost.remove(SCHEDULE)
            with warnings.catch_warnings(action="ignore"):  # PyTorch's, that the optimizer made no step before
                for _ in range(state.global_step):
                    trainer.lr_scheduler.step()
        lost += [] if self.generators else ["random generators"]
        if lost:
            why = ", since pickles are not read" if (checkpoint / "optimizer.pt").exists() else ""
            what = f"{checkpoint}: not restored: {', '.join(lost)}. These begin anew{why}."
            warnings.warn(what, TranseptWarning, stacklevel=5)

    def _find_place(self, path: Path) -> None:
        """Take over where in the data the run was, and what it had added up."""
        document, loop = load_object(path), self.loop
        try:
            epoch, batch, size = (int(document[name]) for name in ("epoch", "batch", "batch_size"))
            tally = unpack(document["tally"], {})
            loss = float(tally.pop("loss"))
            fits = tally.keys() == {*_TALLY} and all(value is None or type(value) in (int, float) for value in tally.values())
        except (LookupError, TypeError, ValueError, AttributeError, FormatError) as error:
            raise FormatError("does not say where in the data a run is.", path=path) from error
        if min(epoch, batch) < 0 or size < 1 or not fits:
            raise FormatError("does not say where in the data a run is.", path=path)
        loop.loss.fill_(loss)
        vars(loop).update(tally)
        now = self.args.train_batch_size * self.devices.replicas.size
        loop.place.epoch, loop.place.batch = epoch, batch * size // now
        self.ended = document.get("ended") is True
        if self.args.ignore_data_skip:
            loop.place.batch = 0
        rows = document.get("rows")
        if isinstance(rows, dict) and self.rows is not None:
            looked_at = [row for row in rows.get("looked_at", ()) if isinstance(row, int) and row >= 0]
            if digest_rows(self.trainer.train_dataset, looked_at) != rows:
                had, has = rows.get("rows"), self.rows["rows"]
                change = "some of its rows are others" if had == has else f"it had {had} rows and has {has}"
                what = f"the training data changed since the run began: {change}. The run goes on, but not as it would have."
                warnings.warn(what, TranseptWarning, stacklevel=6)

    def _find_rows(self, checkpoint: Path) -> None:
        """Let an iterable go on from its state, or say that its rows are read up to the place of the run."""
        stream, batches = stream_of(self.loop.loader), self.loop.place.batch
        if stream is None or not batches:
            return
        if (path := checkpoint / f"{STREAM}.json").exists() and stream.keeps_state and not self.args.dataloader_num_workers:
            stream.state = found = read_parts(path)
            if not isinstance(found, dict) or found.keys() != {"state", "ended"}:
                raise FormatError("does not say where an iterable is.", path=path)
        if stream.state is None:
            what = f"`train_dataset` is an iterable without a saved state: the rows of {batches} batches are read and left out."
            hint = "A data set with `state_dict` and `load_state_dict`, and no workers, goes on at once."
            warnings.warn(f"{what} {hint}", TranseptWarning, stacklevel=6)

    def _place_of(self, step: int) -> tuple[int, int]:
        """The epoch and the batch that follow an update, where the checkpoint does not tell them."""
        every, epoch = self.args.gradient_accumulation_steps, 0
        if self.loop.plan.batches is None or self.args.ignore_data_skip:
            return 0, 0 if self.args.ignore_data_skip else step * every
        while step >= (updates := -(-self.loop.plan.steps_in(epoch, every) // every)) > 0:
            step, epoch = step - updates, epoch + 1
        return epoch, step * every

    def _restore_callbacks(self, state: TrainerState) -> None:
        """Give callbacks what they had noted, such as how long a metric has not become better."""
        kept: dict[str, Any] = dict(state.stateful_callbacks or {})
        parts = ("args", "attributes") if self.args.restore_callback_states_from_checkpoint else ("attributes",)
        for callback in self.trainer.callback_handler.callbacks:
            found = kept.get(type(callback).__name__)
            if isinstance(found, list):  # several of one class
                kept[type(callback).__name__], found = found[1:], (found or [None])[0]
            if isinstance(callback, ExportableState) and isinstance(found, dict):
                values = {name: value for part in parts for name, value in dict(found.get(part) or {}).items()}
                vars(callback).update({name: values[name] for name in values.keys() & vars(callback).keys()})

    def _warn_of_changes(self, checkpoint: Path) -> None:
        """Say what is other than when the checkpoint was saved: the version, and settings that change the result."""
        from transept import __version__

        changes, relevant = list[str](), [*_RELEVANT]
        if (checkpoint / MANIFEST_NAME).exists():
            manifest = read_manifest(checkpoint)
            if manifest.version != __version__:
                changes.append(f"it was saved by transept {manifest.version[:40]}, and this is {__version__}")
            if manifest.world_size != self.devices.replicas.size:  # see :func:`keep_rows_of_update`
                relevant.remove("gradient_accumulation_steps")
        if (path := checkpoint / ARGUMENTS_NAME).exists():
            before, now = load_object(path), self.args.to_dict()
            other = [name for name in relevant if name in before and before[name] != now[name]]
            changes += [f"`{name}` was {str(before[name])[:60]} and is {str(now[name])[:60]}" for name in other]
        if changes:
            what = f"{checkpoint}: {'; '.join(changes)}. The run goes on, but not as it would have."
            kept = "What the optimizer and the schedule keep, such as the learning rate, is the checkpoint's."
            warnings.warn(f"{what} {kept}", TranseptWarning, stacklevel=5)

    def restore_generators(self) -> None:
        """Put the random generators where the run was; the loop calls this where the run goes on."""
        if self.generators is not None:
            self.generators.restore()
            self.generators = None

    # --- saving -------------------------------------------------------------------------------------------------------------

    def save(self, *, final: bool = False) -> Path | None:
        """Save the checkpoint of the last update, which all processes do together; ``None`` where the run goes on without."""
        collected = None if self.args.save_only_model else collect(self.parts, everywhere(Generators.now()))
        weights = self.trainer.whole_weights(self.parts.writes_shards and collected is not None)
        found: Path | None = None
        # What was collected is the last stream, since it is written first.
        with written_together(*(each for each in (weights, collected) if isinstance(each, Collected | ModelFiles))):
            if self.args.process_index == 0:
                found = self._write(collected, weights, final)
        state, saver = self.trainer.state, self.saver
        told: tuple[Path | None, int, str | None] = (found, saver.failures, state.best_model_checkpoint)
        found, saver.failures, state.best_model_checkpoint = self.devices.replicas.from_first(told)
        saver.saved = found or saver.saved
        return found

    def _write(self, collected: Collected | None, weights: Any, final: bool) -> Path | None:
        """Write the checkpoint, and note where the best one is."""
        state, step = self.trainer.state, self.trainer.state.global_step
        best_before, target = state.best_model_checkpoint, self.folder / f"checkpoint-{step}"
        if state.best_global_step:
            best = self.folder / f"checkpoint-{state.best_global_step}"
            if state.best_global_step == step or best.is_dir():
                state.best_model_checkpoint = str(best)
        found: Path | None = None
        try:
            found = self.saver.save(
                step,
                lambda stage: self._fill(stage, collected, weights),
                needed=self.parts.bytes,
                world_size=self.devices.replicas.size,
                best=state.best_model_checkpoint,
                final=final or step >= state.max_steps,
            )
        finally:
            if found is None and state.best_model_checkpoint == str(target):
                state.best_model_checkpoint = best_before
        return found

    def _fill(self, stage: Path, collected: Collected | None, weights: Any) -> Iterator[Path]:
        trainer = self.trainer
        if collected is not None:  # the largest files first, since the last ones are waited for
            yield from collected.write(stage)
        before = set(stage.iterdir())
        if self.devices.alone:
            trainer.save_model(stage, _internal_call=True)
        else:  # the other processes are not asked again
            trainer._save(stage, weights)
        yield from sorted({*stage.glob("*.safetensors")} - before)
        stream, place = stream_of(self.loop.loader), self.loop.place
        if stream is not None and place.epoch == stream.epoch and place.batch in stream.states:
            yield from write_parts(stage, STREAM, stream.states[place.batch])
        callbacks = [*trainer.callback_handler.callbacks, trainer.control]
        trainer.store_flos()
        trainer.state.keep_callbacks([each for each in callbacks if isinstance(each, ExportableState)])
        trainer.state.save_to_json(stage / STATE_NAME)
        write_text(stage / DATA_NAME, dump_json(self._place()))

    def _place(self) -> Mapping[str, Any]:
        """Where in the data the run is, and what it has added up, exactly."""
        loop, trainer = self.loop, self.trainer
        tally = {name: getattr(loop, name) for name in _TALLY} | {"loss": float(loop.loss)}
        ended = trainer.control.should_training_stop and trainer.state.global_step < trainer.state.max_steps
        return {
            "epoch": loop.place.epoch,
            "batch": loop.place.batch,
            "batch_size": self.args.train_batch_size * self.devices.replicas.size,
            "tally": pack(tally, "tally", {}),
            "rows": self.rows,
            "ended": ended,
        }

    def _warn_of_space(self) -> None:
        """Say before training where the disk is too small for one checkpoint more; AdamW keeps two numbers a weight."""
        weights = sum(each.nbytes for each in self.trainer.model.parameters() if each.requires_grad)
        try:
            check_space(self.folder, self.parts.bytes + 2 * weights)
        except FileError as error:
            warnings.warn(str(error), TranseptWarning, stacklevel=4)

    # --- signals ------------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """An update begins."""
        self.rewind.note()
        self._counted = self.trainer.flops, self.trainer.state.num_input_tokens_seen

    def keep(self) -> str:
        """Save the run as it was when this update began, which failed; a sentence about where that is, if it is anywhere."""
        step, trainer = self.trainer.state.global_step, self.trainer
        if not self.saves or not step:
            return ""
        known = {self.folder / f"checkpoint-{step}": self.saver.saved, self.resumed: self.resumed}
        found = next((path for path, saved in known.items() if path and path == saved and path.name.endswith(f"-{step}")), None)
        if found is None:
            trainer.optimizer.zero_grad()
            self.rewind.back()
            trainer.flops, trainer.state.num_input_tokens_seen = self._counted
            try:
                found = self.save(final=True)
            except FileError as error:
                return f" The state after update {step} could not be saved: {error.message}"
            trainer.event("on_save")
        return f" {found} has the state after update {step}, to go on from."

    def between(self) -> None:
        """Look for a signal within an update: one that ends the run leaves the update out, as if it had not begun."""
        # Several processes look before an update, all at the same one.
        if self.devices.alone and self.signals.ended_by is not None:
            self.trainer.optimizer.zero_grad()
            self.rewind.back()
            self.trainer.flops, self.trainer.state.num_input_tokens_seen = self._counted
            self._obey()

    def heed(self, told: list[Any]) -> None:
        """Do what a signal to any of several processes asks for, before an update that all of them begin together."""
        if not self.devices.alone:
            for each in told:
                self.signals.heed(each)
            self._obey()

    def after(self) -> None:
        """Do what a signal asked for, after an update."""
        if self.devices.alone:
            self._obey()

    def _obey(self) -> None:
        step, signals = self.trainer.state.global_step, self.signals
        if signals.ended_by is None and not signals.save:
            return
        target = self.folder / f"checkpoint-{step}"
        is_new = step > self.loop.first_step and self.saver.saved != target
        if is_new and self.save(final=signals.ended_by is not None):
            self.trainer.event("on_save")
        signals.save = False
        if signals.ended_by is not None:
            where = f"; {target} has all of it, and resume_from_checkpoint=True goes on from there" if target.is_dir() else ""
            message = f"{signals.ended_by.name} ended training after {step} updates{where}."
            get_logger(__name__).warning(message)
            signals.end(message)
