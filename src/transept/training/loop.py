"""Epochs and updates: what happens in which order, and which callbacks hear of it."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Protocol

from torch import Tensor, nn

from transept.errors import TranseptWarning
from transept.training.adversarial import Perturbation
from transept.training.checkpoint.saved_run import SavedRun
from transept.training.data.loader import begin_epoch, first_batch
from transept.training.evaluation import speed
from transept.training.length_cuts import cost_of_pass, cut
from transept.training.not_finite import not_finite
from transept.training.objective import Batch, Counts
from transept.training.out_of_memory import Halving
from transept.training.run import Place, TrainingRun
from transept.training.setup import copy_weights, unfreeze_at
from transept.training.state import TrainerControl, TrainOutput
from transept.training.update import Agreeing, Agreement, Backward, Gradients, Passes, PassShare, Update

MOST_WAITING = 1024  # losses that are not added up yet


class Hooks(Protocol):
    """What a run asks of the trainer that it belongs to: methods that users override, and callbacks."""

    control: TrainerControl
    own_passes: list[str]
    perturbation: Perturbation | None
    share: PassShare
    rows_are_divided: bool
    current_gradient_accumulation_steps: int

    def event(self, name: str, **kwargs: Any) -> None: ...
    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor: ...
    def items_for(self, agreement: Agreement) -> Counts | None: ...
    def compute_loss_context_manager(self) -> contextlib.AbstractContextManager[Any]: ...
    def tally(self, inputs: Any) -> tuple[float, int]: ...
    def averaged(self) -> contextlib.AbstractContextManager[Any]: ...
    def evaluate_now(self, schedule: bool = False) -> None: ...
    def log(self, logs: dict[str, Any], start_time: float | None = None) -> None: ...
    def store_flos(self) -> None: ...
    def _prepare_inputs(self, inputs: Any) -> Any: ...
    def _get_learning_rate(self) -> float: ...
    def _save_checkpoint(self, model: Any, trial: Any = None) -> None: ...
    def _load_best_model(self) -> None: ...

    @property
    def may_cut(self) -> bool: ...
    @property
    def follows_metric(self) -> bool: ...


class Loop:
    """Runs the epochs and the updates of a run.

    Args:
        run: what is trained.
        trainer: what is asked for passes, evaluations and saves, and told what happens.
        saved: what of the run is on the disk.
    """

    def __init__(self, run: TrainingRun, trainer: Hooks, saved: SavedRun) -> None:
        self.run, self.trainer, self.saved = run, trainer, saved
        args, devices = run.args, run.devices
        backward = Backward(devices.replicas.size, run.scaler)
        self.passes = Passes(
            run.wrapped,
            run.form,
            run.objective,
            trainer.training_step,
            trainer._prepare_inputs,
            trainer.compute_loss_context_manager,
            backward,
        )
        self.agreeing = Agreeing(run.objective, devices.replicas, trainer.tally)
        self.gradients = Gradients(run.optimizer, args.max_grad_norm, run.scaler, run.form)
        self.cost = cost_of_pass(run.wrapped)
        # Rows may stand one behind the other where nothing looks at embeddings by row, or is compiled for their lengths.
        self.ragged = trainer.perturbation is None and not (args.neftune_noise_alpha or args.torch_compile)
        halves = args.device.type == "cuda" if args.find_batch_size is None else args.find_batch_size
        halves = halves and devices.alone  # halving in one process would leave the others waiting
        self.halving = Halving(self.divide, run.objective.rows) if halves else None
        self.items: Counts | None = None  # of the update that is being made, where its losses are divided by them
        self.spare: Any = None  # a batch that stands in where others have one more
        self.substeps = 0  # the micro-batches of this update that callbacks have heard of; it may be made again

    def train(self) -> TrainOutput:
        """Train to the end."""
        run, trainer = self.run, self.trainer
        trainer.event("on_train_begin")
        if run.args.eval_on_start and not run.state.global_step:
            trainer.evaluate_now()
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
            if (update := self.take(batches, epoch)) is None:
                ended = True
                break
            done += len(update.batches)
            if not self.update(update):
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

    # --- an update ----------------------------------------------------------------------------------------------------------

    def take(self, batches: Iterator[Any], epoch: int) -> Update | None:
        """The micro-batches of the next update, and what the other processes have; ``None`` where nobody has one left."""
        own = list(islice(batches, self.run.args.gradient_accumulation_steps))
        agreement = self.agreeing.on(own, self.saved.signals.numbers)
        self.saved.heed(agreement.signals)
        if not agreement.most:
            return None
        real = len(own)
        if real < agreement.most:
            if self.spare is None:
                self.spare = first_batch(self.run.loader, epoch)
            own += [self.spare] * (agreement.most - real)
        if not self.run.devices.alone:
            self.spare = own[0]
        return Update(own, real, agreement)

    def update(self, update: Update) -> bool:
        """Make one update of these micro-batches; ``False`` where a callback ended it before."""
        run, trainer, batches = self.run, self.trainer, update.batches
        self.saved.begin()
        parts = self.cut(update)
        self.items, self.substeps = trainer.items_for(update.agreement), 0
        trainer.current_gradient_accumulation_steps = len(batches)
        self.saved.between()
        trainer.event("on_step_begin")
        make = partial(self.make_gradients, update)
        loss = make(parts) if self.halving is None else self.halving.run(make, parts, run.optimizer.zero_grad)
        if loss is None:
            run.optimizer.zero_grad()
            return False
        run.tally.flops += update.agreement.flops
        run.state.num_input_tokens_seen += update.agreement.tokens
        run.form.finish_gradients()
        run.tally.grad_norm = self.gradients.limit()
        is_finite = math.isfinite(run.tally.grad_norm) or run.scaler is not None
        if not is_finite and run.args.nan_policy == "error":
            where, generators = self.saved.keep(), self.saved.rewind.generators
            raise not_finite(run, self.step_alone, parts, generators, where)
        self.apply(loss, update.agreement, is_finite=is_finite or run.args.nan_policy == "ignore")
        return True

    def cut(self, update: Update) -> Sequence[Batch]:
        """The rows of an update in parts of like length, where nobody but the model sees its micro-batches."""
        free = self.trainer.may_cut and self.run.objective.rows_apart and not self.run.form.same_passes
        if not free or update.real < len(update.batches):
            return update.batches
        return cut(self.run.wrapped, update.batches, self.cost, ragged=self.ragged)

    def make_gradients(self, update: Update, parts: Sequence[Any]) -> Tensor | None:
        """The passes of an update's micro-batches, which are in parts, and their loss; ``None`` where a callback ended it."""
        trainer, agreement, number, loss = self.trainer, update.agreement, len(update.batches), None
        for index in range(number):
            self.saved.between()
            share = agreement.share(index) if index < update.real else 0.0
            loss_share = share if self.items is None or not index < update.real else 1.0
            trainer.share = PassShare(agreement.parts, loss_share, share)
            for place in range(index * len(parts) // number, (index + 1) * len(parts) // number):
                is_last = place == len(parts) - 1
                part = self.passes.make(parts[place], self.items, trainer.share, agreement.passes, is_last=is_last)
                loss = part if loss is None else loss + part
            if self.substeps <= index < number - 1:
                self.substeps = index + 1
                trainer.event("on_substep_end")
                if trainer.control.should_epoch_stop or trainer.control.should_training_stop:
                    return None
        return loss

    def divide(self, batch: Batch) -> tuple[Batch, Batch] | str:
        """The two halves of a micro-batch's rows, whose losses add up to its own; or why there are none."""
        trainer = self.trainer
        reason = None
        if "training_step" in trainer.own_passes:
            reason = "`training_step` is overridden, which may need all of them"
        elif self.items is None:
            reason = "its loss is not known to be a sum over rows"
        elif trainer.perturbation is not None and not trainer.perturbation.by_row:
            reason = f"the loss of {trainer.perturbation.kind!r} adversarial training is no sum over rows"
        divided = self.run.objective.divide(batch) if reason is None else reason
        trainer.rows_are_divided |= not isinstance(divided, str)
        return divided

    def step_alone(self, batch: Batch) -> Tensor:
        """The passes of a micro-batch by this process alone."""
        return self.trainer.training_step(self.run.model, batch, self.items)

    def apply(self, loss: Tensor, agreement: Agreement, *, is_finite: bool) -> None:
        """Change the weights by the gradients of an update, and the learning rate after it."""
        run, trainer = self.run, self.trainer
        trainer.event("on_pre_optimizer_step")
        applied = is_finite and self.gradients.apply()
        trainer.event("on_optimizer_step")
        run.tally.learning_rate = trainer._get_learning_rate()
        run.tally.skipped += not applied
        if applied and not trainer.follows_metric:
            run.scheduler.step()
        if applied and run.average is not None:
            run.average.update(run.model)
        run.optimizer.zero_grad()
        if not agreement.is_empty:
            run.tally.waiting.append(loss)
            if len(run.tally.waiting) >= MOST_WAITING:
                run.add_up_losses()

    # --- what is told -------------------------------------------------------------------------------------------------------

    def report(self) -> None:
        """Log, evaluate and save, as the flags say."""
        run, trainer, tally = self.run, self.trainer, self.run.tally
        if trainer.control.should_log and run.state.global_step > tally.logged_step:
            run.add_up_losses()
            logs = {"loss": tally.mean_loss(), "grad_norm": tally.grad_norm, "learning_rate": tally.learning_rate}
            if tally.skipped:
                logs["skipped_updates"] = tally.skipped
            tally.logged_step = run.state.global_step
            trainer.store_flos()
            trainer.log(logs, run.began)
        if trainer.control.should_evaluate:
            with trainer.averaged():
                trainer.evaluate_now(schedule=True)
        if trainer.control.should_save:
            trainer._save_checkpoint(run.model, trial=None)
            if not self.saved.saver.failures:
                trainer.event("on_save")

    def finish(self) -> TrainOutput:
        """Log the figures of the whole run, and take the best model where that is wanted."""
        run, trainer, state, args = self.run, self.trainer, self.run.state, self.run.args
        run.add_up_losses()
        run.tally.mean_loss()
        steps = state.global_step - run.first_step
        rows = run.length.rows * args.num_train_epochs if args.max_steps <= 0 else None
        rows = rows or run.length.max_steps * run.rows_of_update
        metrics = speed("train", run.began, rows=rows * steps / max(1, run.length.max_steps), steps=steps)
        trainer.store_flos()
        train_loss = run.tally.total_loss / max(1, run.tally.all_learned)
        metrics |= {"total_flos": state.total_flos, "train_loss": train_loss}
        trainer.log(metrics)
        if run.average is not None:  # what is left is the mean
            copy_weights(run.average.state_dict(), run.model)
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            trainer._load_best_model()
        trainer.event("on_train_end")
        return TrainOutput(state.global_step, train_loss, metrics)
