"""Epochs and updates: what happens in which order, and which callbacks hear of it."""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch

from transept.errors import ConfigError, TranseptWarning
from transept.parallel.launch import everywhere
from transept.training.callbacks import length_of
from transept.training.cuts import cost_of_pass, cut
from transept.training.evaluate import speed
from transept.training.faults.diagnose import not_finite
from transept.training.faults.halving import Halving, reads_all_rows
from transept.training.loader import begin_epoch, first_batch, source_of
from transept.training.order import EpochBatches, TokenBudgetSampler
from transept.training.persist.run import SavedRun
from transept.training.persist.snapshot import carriers
from transept.training.prepare import copy_weights, unfreeze_at
from transept.training.state import TrainOutput
from transept.training.step import Gradients, Shares


@dataclass
class Place:
    """Where in the data a run stands: the epoch, and the number of its next batch."""

    epoch: int = 0
    batch: int = 0


@dataclass(frozen=True)
class Plan:
    """How long a run is: updates in all, epochs, and micro-batches of each epoch (``None``: they are not known)."""

    max_steps: int
    epochs: int
    batches: list[int] | None
    rows: int

    def steps_in(self, epoch: int, accumulation: int) -> int:
        """The micro-batches of an epoch."""
        if self.batches is None:
            return self.max_steps * accumulation
        return self.batches[min(epoch, len(self.batches) - 1)]


def plan(args: Any, loader: Any) -> Plan:
    """How long a run over a loader is.

    Raises:
        ConfigError: the loader has no length, and ``max_steps`` is not set.
    """
    length, every, rows = length_of(loader), args.gradient_accumulation_steps, length_of(source_of(loader))
    if length is None:
        if args.max_steps <= 0:
            what = "the length of `train_dataset` is not known, so `max_steps` must say how many updates to make."
            raise ConfigError(what, hint="Pass max_steps=... in the arguments.")
        return Plan(args.max_steps, sys.maxsize, None, args.max_steps * every * args.train_batch_size)
    epochs, batches = math.ceil(args.num_train_epochs), [length]
    sampler = getattr(loader, "batch_sampler", None)
    if args.max_steps <= 0 and isinstance(sampler, EpochBatches) and isinstance(sampler.sampler, TokenBudgetSampler):
        batches = []
        for epoch in range(epochs):  # their number differs from epoch to epoch
            sampler.set_epoch(epoch)
            batches.append(len(sampler.all()))
    updates = [max(1, math.ceil(number / every)) for number in batches]
    if args.max_steps > 0:
        return Plan(args.max_steps, math.ceil(args.max_steps / updates[0]), batches, rows or length)
    share = epochs - args.num_train_epochs
    whole = sum(updates) if len(updates) > 1 else updates[0] * epochs
    return Plan(math.ceil(whole - share * updates[-1]), epochs, batches, rows or length)


@dataclass
class Update:
    """What goes into one update in this process.

    Args:
        batches: the micro-batches; as many in every process.
        real: how many of them count; the others are run again so that the processes stay in step, and change nothing.
        shares: the items of all processes' micro-batches.
    """

    batches: list[Any]
    real: int
    shares: Shares


class Loop:
    """One call of ``train()``: runs the epochs of a trainer and keeps what is added up on the way.

    Attributes:
        place: the next batch of the data, for a checkpoint; that of the last finished update.
    """

    saved: SavedRun  # what is on the disk

    def __init__(self, trainer: Any, loader: Any, plan: Plan) -> None:
        self.trainer, self.loader, self.plan, self.args = trainer, loader, plan, trainer.args
        self.state = trainer.state
        self.place = Place()
        self.replicas, self.form = trainer.devices.replicas, trainer.form
        self.gradients = Gradients(trainer.optimizer, self.args.max_grad_norm, trainer.scaler, self.form)
        self.spare: Any = None  # a batch that stands in where others have one more
        self.cost = cost_of_pass(trainer.model_wrapped)
        # Rows may stand one behind the other where nothing looks at embeddings by row, or is compiled for their lengths.
        self.ragged = trainer.perturbation is None and not (self.args.neftune_noise_alpha or self.args.torch_compile)
        wanted = self.args.device.type == "cuda" if self.args.find_batch_size is None else self.args.find_batch_size
        wanted = wanted and trainer.devices.alone  # halving in one process would leave the others waiting
        self.halving = Halving(trainer.model) if wanted else None
        self.told = 0  # the micro-batches of this update that callbacks have heard of; it may be made again
        self.grad_norm = 0.0
        self.rate: float | None = None
        self.loss = torch.zeros((), dtype=torch.float64, device="cpu")
        self.total_loss, self.learned, self.all_learned, self.skipped = 0.0, 0, 0, 0
        self.logged_step = self.first_step = self.state.global_step
        self.began, self.first_tokens = time.time(), self.state.num_input_tokens_seen

    def run(self) -> TrainOutput:
        """Train to the end."""
        trainer = self.trainer
        trainer.event("on_train_begin")
        if self.args.eval_on_start and not self.state.global_step:
            trainer.evaluate_now()
        start = Place(self.place.epoch, self.place.batch)
        for epoch in range(start.epoch, self.plan.epochs):
            first = start.batch if epoch == start.epoch else 0
            if self.is_over and not first:
                break
            if not first:
                self.saved.restore_generators()
            unfreeze_at(trainer.model, self.args.unfreeze_schedule, epoch)
            trainer.event("on_epoch_begin")
            self.run_epoch(epoch, first)
            if trainer.control.should_training_stop:
                break
        return self.finish()

    @property
    def is_over(self) -> bool:
        """Whether no update is left to make, as where a finished run is gone on with."""
        return self.saved.ended or self.state.global_step >= self.plan.max_steps

    def run_epoch(self, epoch: int, start: int) -> None:
        """Make the updates of an epoch from a batch on."""
        trainer, done, steps = self.trainer, start, self.plan.steps_in(epoch, self.args.gradient_accumulation_steps)
        batches = begin_epoch(self.loader, epoch, start)
        if start:
            self.saved.restore_generators()
        while done < steps and not self.is_over and (update := self.take(batches, epoch)) is not None:
            done += len(update.batches)
            if not self.update(update):
                break
            self.place = Place(epoch, done)
            self.state.global_step += 1
            self.state.epoch = epoch + done / steps
            trainer.event("on_step_end")
            self.report()
            self.saved.after()
            if trainer.control.should_epoch_stop or trainer.control.should_training_stop:
                break
        if done == start == 0:
            what = f"the data gave no batch in epoch {epoch}: training ends after {self.state.global_step} updates."
            warnings.warn(what, TranseptWarning, stacklevel=3)
            trainer.control.should_training_stop = True
        if done >= steps or not trainer.control.should_training_stop:
            self.place = Place(epoch + 1, 0)
        trainer.event("on_epoch_end")
        self.report()
        self.saved.after()

    def take(self, batches: Iterator[Any], epoch: int) -> Update | None:
        """The micro-batches of the next update, and what the other processes have; ``None`` where nobody has one left."""
        found = list(islice(batches, self.args.gradient_accumulation_steps))
        counts: list[Any] = [self.trainer.count_items(batch) for batch in found]
        told = everywhere((counts, self.saved.signals.told))
        self.saved.heed([signals for _, signals in told])
        numbers = self.replicas.among([each for each, _ in told])
        if not (most := max(map(len, numbers))):
            return None
        shares = Shares([count for each in numbers for count in each], own=sum(map(len, numbers[: self.replicas.rank])))
        real = len(found)
        if real < most:
            if self.spare is None:
                self.spare = first_batch(self.loader, epoch)
            found += [self.spare] * (most - real)
        if not self.trainer.devices.alone:
            self.spare = found[0]
        return Update(found, real, shares)

    def update(self, update: Update) -> bool:
        """Make one update of these micro-batches; ``False`` where a callback ended it before."""
        trainer, batches, shares, number = self.trainer, update.batches, update.shares, len(update.batches)
        self.saved.begin()
        may_cut = trainer.may_cut and not self.form.same_passes and update.real == number
        parts = cut(trainer.model_wrapped, batches, self.cost, ragged=self.ragged) if may_cut else batches
        trainer.current_gradient_accumulation_steps, trainer.parts, self.told = number, shares.parts, 0
        self.saved.between()
        trainer.event("on_step_begin")
        make = partial(self.make_gradients, update)
        if self.halving is None:
            loss = make(parts)
        else:
            loss = self.halving.run(make, parts, trainer.optimizer.zero_grad, whole=self.undivided(shares))
        if loss is None:
            trainer.optimizer.zero_grad()
            return False
        tallies = [trainer.tally(batch) for batch in batches[: update.real]]
        told = self.replicas.gathered((loss, sum(each for each, _ in tallies), sum(each for _, each in tallies)))
        loss, operations, tokens = (sum(each) for each in zip(*told))
        trainer.flops += operations
        self.state.num_input_tokens_seen += tokens
        self.form.finish_gradients()
        self.grad_norm = self.gradients.limit()
        if not math.isfinite(self.grad_norm) and self.args.nan_policy == "error" and self.gradients.scaler is None:
            raise not_finite(trainer, self.grad_norm, parts, trainer.items_for(shares), self.saved.rewind.generators)
        self.apply(loss, shares)
        return True

    def make_gradients(self, update: Update, parts: Sequence[Any]) -> float | None:
        """The passes of an update's micro-batches, which are in parts, and their loss; ``None`` where a callback ended it."""
        trainer, items, loss = self.trainer, self.trainer.items_for(update.shares), 0.0
        number, model = len(update.batches), trainer.model_wrapped
        for index in range(number):
            self.saved.between()
            counts = index < update.real
            trainer.batch_share = update.shares.share(index) if counts else 0.0
            trainer.loss_share = 0.0 if not counts else 1.0 if items is not None else trainer.batch_share
            found: Any = 0.0
            first, stop = index * len(parts) // number, (index + 1) * len(parts) // number
            for place in range(first, stop):
                with self.form.added_up(model, place == len(parts) - 1):
                    usual = partial(trainer.training_step, model, parts[place], items)
                    found = found + self.form.passes(usual, parts[place], items, trainer.parts, trainer.loss_share).double()
            loss += float(found)
            if self.told <= index < number - 1:
                self.told = index + 1
                trainer.event("on_substep_end")
                if trainer.control.should_epoch_stop or trainer.control.should_training_stop:
                    return None
        return loss

    def undivided(self, shares: Shares) -> str | None:
        """Why the rows of a micro-batch cannot be run in parts, if they cannot."""
        trainer, own = self.trainer, "`training_step` is overridden"
        if "training_step" in trainer.own_passes:
            return f"{own}, which may need all of them"
        if trainer.items_for(shares) is None:
            return "its loss is not known to be a sum over rows"
        if trainer.perturbation is not None and not trainer.perturbation.by_row:
            return f"the loss of {trainer.perturbation.kind!r} adversarial training is no sum over rows"
        if any(getattr(getattr(each, "config", None), "stateful", True) for each in carriers(trainer.model).values()):
            return "its rows go on where those of the last batch ended"
        path = reads_all_rows(trainer.model)
        return None if path is None else f"the batch normalisation {path!r} reads all of them"

    @property
    def divided(self) -> bool:
        """Whether rows of micro-batches are run in parts, after too little memory for all."""
        return self.halving is not None and self.halving.limit is not None

    def apply(self, loss: float, shares: Shares) -> None:
        """Change the weights by the gradients of an update, and the learning rate after it."""
        trainer, gradients = self.trainer, self.gradients
        finite = math.isfinite(self.grad_norm) or gradients.scaler is not None or self.args.nan_policy == "ignore"
        trainer.event("on_pre_optimizer_step")
        applied = finite and gradients.apply()
        trainer.event("on_optimizer_step")
        self.rate = trainer._get_learning_rate()
        self.skipped += not applied
        if applied and not trainer.follows_metric:
            trainer.lr_scheduler.step()
        if applied and trainer.average is not None:
            trainer.average.update(trainer.model)
        trainer.optimizer.zero_grad()
        if not shares.empty and (math.isfinite(loss) or not self.args.logging_nan_inf_filter):
            self.loss += loss
            self.learned += 1

    def report(self) -> None:
        """Log, evaluate and save, as the flags say."""
        trainer, state = self.trainer, self.state
        if trainer.control.should_log and state.global_step > self.logged_step:
            logs = {"loss": self.mean_loss(), "grad_norm": self.grad_norm, "learning_rate": self.rate}
            if self.skipped:
                logs["skipped_updates"] = self.skipped
            self.logged_step = state.global_step
            trainer.store_flos()
            trainer.log(logs, self.began)
        if trainer.control.should_evaluate:
            with trainer.averaged():
                trainer.evaluate_now(schedule=True)
        if trainer.control.should_save:
            trainer._save_checkpoint(trainer.model, trial=None)
            if not self.saved.saver.failures:
                trainer.event("on_save")

    def mean_loss(self) -> float:
        """The mean loss of the updates since the last log, which begins anew."""
        found = float(self.loss)
        self.total_loss += found
        mean = found / max(1, self.learned)
        self.loss.zero_()
        self.all_learned += self.learned
        self.learned = 0
        return mean

    def finish(self) -> TrainOutput:
        """Log the figures of the whole run, and take the best model where that is wanted."""
        trainer, state, steps = self.trainer, self.state, self.state.global_step - self.first_step
        self.mean_loss()
        rows = self.plan.rows * self.args.num_train_epochs if self.args.max_steps <= 0 else None
        rows = rows or self.plan.max_steps * trainer._rows_of_update
        metrics = speed("train", self.began, rows=rows * steps / max(1, self.plan.max_steps), steps=steps)
        trainer.store_flos()
        metrics |= {"total_flos": state.total_flos, "train_loss": self.total_loss / max(1, self.all_learned)}
        trainer.log(metrics)
        if trainer.average is not None:  # what is left is the mean
            copy_weights(trainer.average.state_dict(), trainer.model)
        if self.args.load_best_model_at_end and state.best_model_checkpoint is not None:
            trainer._load_best_model()
        trainer.event("on_train_end")
        return TrainOutput(state.global_step, metrics["train_loss"], metrics)
