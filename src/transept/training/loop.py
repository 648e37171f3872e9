"""The epochs of a run: what happens in which order, and which callbacks hear of it."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import Any

from transept.adapt.freeze import unfreeze_until
from transept.errors import TranseptWarning, refuse
from transept.training.callbacks.base import metric_name
from transept.training.checkpoint.saved_run import SavedRun
from transept.training.data.loader import begin_epoch
from transept.training.evaluation import speed_metrics
from transept.training.objective import own_task
from transept.training.optim.optimizers import copy_weights
from transept.training.run import Place, TrainingRun
from transept.training.state import SaveStrategy, TrainOutput
from transept.training.update import Updates


class Loop:
    """Runs the epochs and the updates of a run; the trainer is asked for passes, evaluations and saves."""

    def __init__(self, run: TrainingRun, trainer: Any, saved: SavedRun) -> None:
        self.run, self.trainer, self.saved = run, trainer, saved
        self.updates = Updates(run, trainer, saved)

    def train(self) -> TrainOutput:
        run, trainer = self.run, self.trainer
        trainer.event("on_train_begin")
        if run.args.eval_on_start and not run.state.global_step:
            self.evaluate()
        first_epoch, first_batch = run.place.epoch, run.place.batch
        for epoch in range(first_epoch, run.length.epochs):
            start = first_batch if epoch == first_epoch else 0
            if self.is_over and not start:
                break
            if not start:
                self.saved.restore_generators()
            if run.args.unfreeze_schedule is not None:
                unfreeze_until(own_task(run.model, "unfreeze_schedule"), run.args.unfreeze_schedule, epoch)
            trainer.event("on_epoch_begin")
            self.run_epoch(epoch, start)
            if trainer.control.should_training_stop:
                break
        return self.finish()

    @property
    def is_over(self) -> bool:
        """Whether no update is left to make, as where a finished run is resumed."""
        return self.saved.ended or self.run.state.global_step >= self.run.length.max_steps

    def run_epoch(self, epoch: int, start: int) -> None:
        run, trainer, done, ended = self.run, self.trainer, start, False
        length = run.length.batches_in(epoch, run.args.gradient_accumulation_steps)
        batches = begin_epoch(run.loader, epoch, start)
        if start:
            self.saved.restore_generators()
        while not self.is_over and (run.length.batches is None or done < length):
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
            self.saved.end_update()
            if trainer.control.should_epoch_stop or trainer.control.should_training_stop:
                break
        if done == start == 0:
            what = f"the data gave no batch in epoch {epoch}: training ends after {run.state.global_step} updates."
            warnings.warn(what, TranseptWarning, stacklevel=3)
            trainer.control.should_training_stop = True
        ended |= run.length.batches is not None and done >= length
        if ended or not trainer.control.should_training_stop:
            run.place = Place(epoch + 1, 0)
        trainer.event("on_epoch_end")
        self.report()
        self.saved.end_update()

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
            with nullcontext() if run.average is None else run.average.applied(run.model):
                self.evaluate(steers_schedule=True)
        if trainer.control.should_save:
            trainer._save_checkpoint(run.model, trial=None)
            if not self.saved.failures:
                trainer.event("on_save")

    def evaluate(self, *, steers_schedule: bool = False) -> None:
        """Evaluate in the middle of training, note the best metric, and tell it to a schedule that follows one."""
        run, args, name = self.run, self.run.args, metric_name(self.run.args)
        metrics = self.trainer.evaluate(ignore_keys=run.ignored)
        has_best = args.metric_for_best_model is not None
        what = f"`metric_for_best_model` is {name!r}, which is not among the metrics: {', '.join(metrics)}."
        refuse(has_best and name not in metrics, what)
        if steers_schedule and run.follows_metric:
            run.scheduler.step(metrics[name])
        is_best = has_best and run.state.note_metric(metrics[name], greater_is_better=bool(args.greater_is_better))
        if args.save_strategy == SaveStrategy.BEST:
            self.trainer.control.should_save = is_best

    def finish(self) -> TrainOutput:
        """Log the figures of the whole run, and load the best model where the arguments say so."""
        run, trainer, state, args = self.run, self.trainer, self.run.state, self.run.args
        run.add_up_losses()
        run.tally.mean_loss()
        run.store_flops()
        steps, max_steps = state.global_step - run.first_step, run.length.max_steps
        rows = run.length.rows * args.num_train_epochs if args.max_steps <= 0 else 0
        rows_of_update = args.train_batch_size * args.gradient_accumulation_steps * run.devices.replicas.size
        rows = rows or max_steps * rows_of_update
        metrics = speed_metrics("train", run.began, rows * steps / max(1, max_steps), steps)
        train_loss = run.tally.total_loss / max(1, run.tally.all_learned)
        metrics |= {"total_flos": state.total_flos, "train_loss": train_loss}
        trainer.log(metrics)
        if run.average is not None:  # what is left is the mean
            copy_weights(run.average.weights, dict(run.model.named_parameters()))
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            trainer._load_best_model()
        trainer.event("on_train_end")
        return TrainOutput(state.global_step, train_loss, metrics)
