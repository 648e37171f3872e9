"""Epochs and updates: what happens in which order, and which callbacks hear of it."""

from __future__ import annotations

import warnings

from transept.errors import InputError, TranseptWarning
from transept.training.callbacks.base import metric_name
from transept.training.checkpoint.saved_run import SavedRun
from transept.training.data.loader import begin_epoch
from transept.training.evaluation import speed
from transept.training.optim.average import copy_weights
from transept.training.run import Hooks, Place, TrainingRun
from transept.training.setup import unfreeze_at
from transept.training.state import SaveStrategy, TrainOutput
from transept.training.update import Updates


class Loop:
    """Runs the epochs and the updates of a run; the trainer is asked for passes, evaluations and saves."""

    def __init__(self, run: TrainingRun, trainer: Hooks, saved: SavedRun) -> None:
        self.run, self.trainer, self.saved = run, trainer, saved
        self.updates = Updates(run, trainer, saved)

    def train(self) -> TrainOutput:
        """Train to the end."""
        run, trainer = self.run, self.trainer
        trainer.event("on_train_begin")
        if run.args.eval_on_start and not run.state.global_step:
            self.evaluate()
        start = Place(run.place.epoch, run.place.batch)
        for epoch in range(start.epoch, run.length.epochs):
            first = start.batch if epoch == start.epoch else 0
            if self.is_over and not first:
                break
            if not first:
                self.saved.restore_generators()
            unfreeze_at(run.model, run.args.unfreeze_schedule, epoch)
            trainer.event("on_epoch_begin")
            self.run_epoch(epoch, first)
            if trainer.control.should_training_stop:
                break
        return self.finish()

    @property
    def is_over(self) -> bool:
        """Whether no update is left to make, as where a finished run is gone on with."""
        return self.saved.ended or self.run.state.global_step >= self.run.length.max_steps

    def run_epoch(self, epoch: int, start: int) -> None:
        """Make the updates of an epoch from a batch on."""
        run, trainer, done = self.run, self.trainer, start
        length = run.length.batches_in(epoch, run.args.gradient_accumulation_steps)
        batches = begin_epoch(run.loader, epoch, start)
        if start:
            self.saved.restore_generators()
        is_known, ended = run.length.batches is not None, False
        while not self.is_over and not (is_known and done >= length):
            if (update := self.updates.take(batches, epoch)) is None:
                ended = True
                break
            done += len(update.batches)
            if not self.updates.make(update):
                break
            run.place = Place(epoch, done)
            run.state.global_step += 1
            run.state.epoch = epoch + min(1.0, done / length)
            trainer.event("on_step_end")
            self.report()
            self.saved.after()
            if trainer.control.should_epoch_stop or trainer.control.should_training_stop:
                break
        if done == start == 0:
            what = f"the data gave no batch in epoch {epoch}: training ends after {run.state.global_step} updates."
            warnings.warn(what, TranseptWarning, stacklevel=3)
            trainer.control.should_training_stop = True
        if ended or (is_known and done >= length) or not trainer.control.should_training_stop:
            run.place = Place(epoch + 1, 0)
        trainer.event("on_epoch_end")
        self.report()
        self.saved.after()

    # --- what is told --------------------------------------------------------------------------------------------

    def report(self) -> None:
        """Log, evaluate and save, as the flags say."""
        run, trainer, tally = self.run, self.trainer, self.run.tally
        if trainer.control.should_log and run.state.global_step > tally.logged_step:
            run.add_up_losses()
            logs = {"loss": tally.mean_loss(), "grad_norm": tally.grad_norm, "learning_rate": tally.learning_rate}
            if tally.skipped:
                logs["skipped_updates"] = tally.skipped
            tally.logged_step = run.state.global_step
            run.store_flops()
            trainer.log(logs, run.began)
        if trainer.control.should_evaluate:
            with run.averaged():
                self.evaluate(steers_schedule=True)
        if trainer.control.should_save:
            trainer._save_checkpoint(run.model, trial=None)
            if not self.saved.saver.failures:
                trainer.event("on_save")

    def evaluate(self, *, steers_schedule: bool = False) -> None:
        """Evaluate in the middle of training, note the best metric, and tell it to a schedule that follows one."""
        run, args, name = self.run, self.run.args, metric_name(self.run.args)
        metrics = self.trainer.evaluate(ignore_keys=run.ignored)
        wanted = args.metric_for_best_model is not None
        if wanted and name not in metrics:
            raise InputError(f"`metric_for_best_model` is {name!r}, which is not among the metrics: {', '.join(metrics)}.")
        if steers_schedule and run.follows_metric:
            run.scheduler.step(metrics[name])
        is_best = wanted and run.state.note_metric(metrics[name], greater_is_better=bool(args.greater_is_better))
        if args.save_strategy == SaveStrategy.BEST:
            self.trainer.control.should_save = is_best

    def finish(self) -> TrainOutput:
        """Log the figures of the whole run, and take the best model where that is wanted."""
        run, trainer, state, args = self.run, self.trainer, self.run.state, self.run.args
        run.add_up_losses()
        run.tally.mean_loss()
        steps = state.global_step - run.first_step
        rows = run.length.rows * args.num_train_epochs if args.max_steps <= 0 else None
        rows = rows or run.length.max_steps * run.rows_of_update
        metrics = speed("train", run.began, rows=rows * steps / max(1, run.length.max_steps), steps=steps)
        run.store_flops()
        train_loss = run.tally.total_loss / max(1, run.tally.all_learned)
        metrics |= {"total_flos": state.total_flos, "train_loss": train_loss}
        trainer.log(metrics)
        if run.average is not None:  # what is left is the mean
            copy_weights(run.average.weights, dict(run.model.named_parameters()))
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            trainer._load_best_model()
        trainer.event("on_train_end")
        return TrainOutput(state.global_step, train_loss, metrics)
