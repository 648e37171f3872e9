"""A run: its parts, its length, and how the model is while it lasts. Users override what it asks of the trainer."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from transept.adapt.freeze import freeze
from transept.adapt.neftune import add_embedding_noise
from transept.errors import ConfigError, UnsupportedError, refuse
from transept.parallel.forms import Form
from transept.parallel.processes import gather_numbers
from transept.training.arguments.training import TrainingArguments
from transept.training.callbacks.base import DefaultFlowCallback, length_of
from transept.training.callbacks.progress import PrinterCallback, ProgressCallback
from transept.training.data.loader import source_of
from transept.training.data.order import EpochBatches
from transept.training.devices import Devices
from transept.training.loss import PassShare
from transept.training.objective import Objective, own_task, task_of
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
        """The length of a run over a loader (``ConfigError``: it has no length, and ``max_steps`` is not set)."""
        length, rows = length_of(loader), length_of(source_of(loader))
        accumulation = args.gradient_accumulation_steps
        if length is None:
            what = "the length of `train_dataset` is not known, so `max_steps` must say how many updates to make."
            refuse(args.max_steps <= 0, what, "Pass max_steps=... in the arguments.", ConfigError)
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
        if self.batches is None:
            return self.max_steps * accumulation
        return self.batches[min(epoch, len(self.batches) - 1)]


@dataclass
class Tally:
    """What a run adds up between logs; checkpoints keep all of it but ``waiting``."""

    loss: float = 0.0  # the sum of the losses of the updates since the last log
    learned: int = 0  # the number of these updates
    total_loss: float = 0.0  # of the whole run, up to the last log
    all_learned: int = 0
    skipped: int = 0  # updates that were left out, since their gradients were not finite
    logged_step: int = 0  # the update of the last log
    grad_norm: float = 0.0  # of the last update
    learning_rate: float | None = None  # of the last update
    flops: float = 0.0  # operations since they were added to the state
    # This process's losses that were not added up yet: to do so waits for the device and other processes.
    waiting: list[Tensor] = field(default_factory=list)

    def mean_loss(self) -> float:
        """The mean loss of the updates since the last log, which begins anew."""
        mean = self.loss / max(1, self.learned)
        self.total_loss += self.loss
        self.all_learned += self.learned
        self.loss, self.learned = 0.0, 0
        return mean


class TrainingRun:
    """One call of ``train()``: what is trained, by what, on what, and how far it is."""

    def __init__(self, trainer: Any, loader: Any, length: RunLength, ignored: list[str] | None) -> None:
        self.args, self.state, self.average = trainer.args, trainer.state, trainer.average
        self.model: nn.Module = trainer.model  # as it is saved
        self.wrapped: nn.Module = trainer.model_wrapped  # as it is called in training
        self.form: Form = trainer.form
        self.devices: Devices = trainer.devices
        self.objective: Objective = trainer.objective
        self.share: PassShare = trainer.share
        self.optimizer, self.scheduler, self.scaler = trainer.optimizer, trainer.lr_scheduler, trainer.scaler
        self.follows_metric = isinstance(self.scheduler, ReduceLROnPlateau | GreedyLR)  # of evaluations, not updates
        self.loader, self.length = loader, length
        self.ignored = ignored  # outputs that evaluations leave out of the predictions
        self.place = Place()  # the next batch of the data after the last finished update, for a checkpoint
        self.tally, self.began = Tally(), time.time()
        self.first_step = self.first_tokens = 0

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


def all_callbacks(args: TrainingArguments, callbacks: list[Any]) -> list[Any]:
    """The trainer's own callbacks around those of the user; only the first process reports on the run."""
    if args.process_index:
        return [DefaultFlowCallback, *callbacks]
    reports: list[Any] = []
    if args.report_to:
        from transept.training.callbacks.reports import report_callbacks  # it asks for the programs that show runs

        reports = report_callbacks([*args.report_to])
    return [DefaultFlowCallback, *reports, *callbacks, PrinterCallback if args.disable_tqdm else ProgressCallback]


@contextlib.contextmanager
def prepared(model: nn.Module, args: TrainingArguments, *, recomputes: bool) -> Iterator[None]:
    """The model as the arguments say while it is trained; ``recomputes`` as ``activation_checkpointing`` does."""
    task = task_of(model)
    with contextlib.ExitStack() as undo:
        if args.freeze is not None and args.unfreeze_schedule is None:
            freeze(own_task(model, "freeze"), args.freeze)
        if args.activation_checkpointing or recomputes:
            checkpointed: Any = model
            what = f"{type(model).__name__} cannot recompute its activations."
            is_able = hasattr(model, "gradient_checkpointing_enable")
            refuse(not is_able, what, "Leave out `gradient_checkpointing`.", UnsupportedError)
            options = args.activation_checkpointing_kwargs or None
            checkpointed.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
            undo.callback(checkpointed.gradient_checkpointing_disable)
        for stack in () if args.use_cache or task is None else task.stacks:
            undo.callback(setattr, stack, "spares_cache", stack.spares_cache)
            stack.spares_cache = True
        if args.neftune_noise_alpha:
            undo.callback(add_embedding_noise(model, args.neftune_noise_alpha).remove)
        if args.torch_compile:
            # Each layer of a model of ours by itself, for any length; of another model, the whole.
            blocks = [model] if task is None else [layer for stack in task.stacks for layer in stack.layers]
            backend, mode = args.torch_compile_backend or "inductor", args.torch_compile_mode
            for block in blocks:
                block.compile(backend=backend, mode=mode, dynamic=True)
        yield
