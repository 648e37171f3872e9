"""A run: the parts that the loop and its checkpoints share, how long it is, and what it adds up."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from transept.errors import ConfigError
from transept.parallel.forms import Form
from transept.parallel.processes import gather_numbers
from transept.training.arguments.training import TrainingArguments
from transept.training.callbacks.base import length_of
from transept.training.data.loader import source_of
from transept.training.data.order import EpochBatches
from transept.training.devices import Devices
from transept.training.objective import LossRules, Objective, PassShare
from transept.training.optim.average import WeightAverage
from transept.training.optim.greedy import GreedyLR
from transept.training.state import TrainerState


@dataclass
class Place:
    """Where in the data a run stands: the epoch, and the number of its next batch."""

    epoch: int = 0
    batch: int = 0


@dataclass(frozen=True)
class RunLength:
    """How long a run is: updates in all, epochs, and micro-batches of each epoch (``None``: they are not known)."""

    max_steps: int
    epochs: int
    batches: list[int] | None
    rows: int

    @classmethod
    def of(cls, args: TrainingArguments, loader: Any) -> RunLength:
        """How long a run over a loader is (``ConfigError``: the loader has no length, and ``max_steps`` is not set)."""
        length, rows = length_of(loader), length_of(source_of(loader))
        accumulation = args.gradient_accumulation_steps
        if length is None:
            if args.max_steps <= 0:
                what = "the length of `train_dataset` is not known, so `max_steps` must say how many updates to make."
                raise ConfigError(what, hint="Pass max_steps=... in the arguments.")
            return cls(args.max_steps, sys.maxsize, None, args.max_steps * accumulation * args.train_batch_size)
        if args.max_steps > 0:
            epochs = math.ceil(args.max_steps / max(1, math.ceil(length / accumulation)))
            return cls(args.max_steps, epochs, [length], rows or length)
        epochs, batches = math.ceil(args.num_train_epochs), [length]
        sampler = getattr(loader, "batch_sampler", None)
        if isinstance(sampler, EpochBatches) and sampler.varies:
            batches = []
            for epoch in range(epochs):
                sampler.set_epoch(epoch)
                batches.append(len(sampler.all()))
        updates = [max(1, math.ceil(number / accumulation)) for number in batches]
        whole = sum(updates) if len(updates) > 1 else updates[0] * epochs
        unused_share = epochs - args.num_train_epochs
        return cls(math.ceil(whole - unused_share * updates[-1]), epochs, batches, rows or length)

    def batches_in(self, epoch: int, accumulation: int) -> int:
        """The micro-batches of an epoch."""
        if self.batches is None:
            return self.max_steps * accumulation
        return self.batches[min(epoch, len(self.batches) - 1)]


@dataclass
class Tally:
    """What a run adds up between logs; checkpoints keep all of it but ``waiting``.

    Args:
        loss: the sum of the losses of the updates since the last log.
        learned: the number of these updates.
        total_loss, all_learned: the same of the whole run, up to the last log.
        skipped: updates that were left out, since their gradients were not finite.
        logged_step: the update of the last log.
        grad_norm, learning_rate: those of the last update.
        flops: operations since they were added to the state.
        waiting: this process's part of the losses of updates that were not added up yet. They stay where they were
            computed: adding them up waits for the device, and for the other processes.
    """

    loss: float = 0.0
    learned: int = 0
    total_loss: float = 0.0
    all_learned: int = 0
    skipped: int = 0
    logged_step: int = 0
    grad_norm: float = 0.0
    learning_rate: float | None = None
    flops: float = 0.0
    waiting: list[Tensor] = field(default_factory=list)

    def mean_loss(self) -> float:
        """The mean loss of the updates since the last log, which begins anew."""
        mean = self.loss / max(1, self.learned)
        self.total_loss += self.loss
        self.all_learned += self.learned
        self.loss, self.learned = 0.0, 0
        return mean


class TrainingRun:
    """One call of ``train()``: what is trained, by what, on what, and how far it is.

    Attributes:
        model: the model, as it is saved.
        wrapped: the module that is called in training.
        form: how the processes hold the model.
        objective: what the model learns.
        rules: what may be done to its micro-batches.
        share: what the pass that is being made counts for.
        ignored: outputs that evaluations leave out of the predictions.
        place: the next batch of the data, for a checkpoint; that of the last finished update.
    """

    def __init__(self, trainer: Any, loader: Any, length: RunLength, ignored: list[str] | None) -> None:
        self.args: TrainingArguments = trainer.args
        self.model: nn.Module = trainer.model
        self.wrapped: nn.Module = trainer.model_wrapped
        self.form: Form = trainer.form
        self.devices: Devices = trainer.devices
        self.objective: Objective = trainer.objective
        self.rules: LossRules = trainer._loss_rules()
        self.share: PassShare = trainer.share
        self.optimizer, self.scheduler, self.scaler = trainer.optimizer, trainer.lr_scheduler, trainer.scaler
        self.average: WeightAverage | None = trainer.average
        self.state: TrainerState = trainer.state
        self.loader, self.length, self.ignored = loader, length, ignored
        self.place, self.tally, self.began = Place(), Tally(), time.time()
        self.first_step = self.first_tokens = 0

    @property
    def follows_metric(self) -> bool:
        """Whether the schedule is told a metric after evaluations, and nothing after updates."""
        return isinstance(self.scheduler, ReduceLROnPlateau | GreedyLR)

    def continue_from(self, state: TrainerState) -> None:
        """Take over the state of a run that this one goes on with."""
        self.state = state
        self.first_step = self.tally.logged_step = state.global_step
        self.first_tokens = state.num_input_tokens_seen

    def add_up_losses(self) -> None:
        """Add up the waiting losses, each over the processes; all of these call it together."""
        tally = self.tally
        losses = torch.stack(tally.waiting).tolist() if tally.waiting else []
        tally.waiting.clear()
        for losses_of_update in zip(*self.devices.replicas.among(gather_numbers(losses))):
            loss = sum(losses_of_update)
            if math.isfinite(loss) or not self.args.logging_nan_inf_filter:
                tally.loss += loss
                tally.learned += 1

    def store_flops(self) -> None:
        """Add the operations since the last call to the state."""
        self.state.total_flos += self.tally.flops
        self.tally.flops = 0.0
