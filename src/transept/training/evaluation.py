"""Evaluation and prediction, batch by batch: losses as sums over the whole set, and arrays where somebody asks for them."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

from transept.objectives.terms import LossTerm
from transept.parallel.forms import Form
from transept.parallel.processes import gather_numbers, gather_tensors
from transept.training.arguments.training import TrainingArguments
from transept.training.callbacks.base import CallbackHandler, length_of
from transept.training.data.loader import first_batch, source_of
from transept.training.data.order import EpochBatches
from transept.training.devices import Devices
from transept.training.metrics.arrays import Gathered
from transept.training.objective import Objective
from transept.training.state import EvalLoopOutput, EvalPrediction

IGNORED_OUTPUTS = ("loss", "loss_terms")


def speed(split: str, began: float, *, rows: float | None = None, steps: float | None = None, tokens: int | None = None) -> Any:
    """The time since ``began``, and what was done in a second of it, under the reference's names."""
    seconds = time.time() - began
    found = {f"{split}_runtime": round(seconds, 4)}
    for name, number in (("samples", rows), ("steps", steps), ("tokens", tokens)):
        if number is not None and seconds > 0:
            found[f"{split}_{name}_per_second"] = round(number / seconds, 3)
    return found


@dataclass
class Prediction:
    """What a batch gave: its mean loss, the terms of it where the model tells them, logits and labels."""

    loss: Tensor | None
    terms: Mapping[str, LossTerm] | None
    logits: Any
    labels: Any


@dataclass
class Losses:
    """The loss over a whole set: each term's sum divided by its items, and means of parts for what is not additive."""

    sums: dict[str, float] = field(default_factory=dict)
    items: dict[str, float] = field(default_factory=dict)
    each: list[float] = field(default_factory=list)  # of every row, its batch's

    def add(self, found: Prediction, items: float, rows: int) -> None:
        """Add a batch with so many items that its mean loss is of."""
        if found.loss is None:
            return
        for name, term in (found.terms or {}).items():
            mean = float(term.mean) * term.weight
            count = float(term.count) if term.additive else 1.0
            self._add(name, mean if count else 0.0, count)
        if found.terms is None:
            self._add("loss", float(found.loss), items)
        self.each += [float(found.loss)] * rows

    def _add(self, name: str, mean: float, items: float) -> None:
        self.sums[name] = self.sums.get(name, 0.0) + mean * items
        self.items[name] = self.items.get(name, 0.0) + items

    @property
    def mean(self) -> float | None:
        """The loss of the set; ``None`` where nothing was added."""
        found = [self.sums[name] / items for name, items in self.items.items() if items]
        return math.fsum(found) if found else None


def rows_of(inputs: Any) -> int:
    """The number of rows in a batch."""
    sizes = (each.shape[0] for each in inputs.values() if isinstance(each, Tensor) and each.ndim)
    return next(sizes, 1)


@dataclass
class Measured:
    """What a batch gave, and what it counts for: so many items of its loss, and rows; ``main`` are its main inputs."""

    found: Prediction
    items: float
    rows: int
    main: Any = None


class Hooks(Protocol):
    """What an evaluation asks of the trainer that it belongs to: its model, metrics and callbacks."""

    args: TrainingArguments
    model: Any
    form: Form
    devices: Devices
    objective: Objective
    callback_handler: CallbackHandler
    compute_metrics: Callable[..., dict[str, Any]] | None
    preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None
    main_input_name: str
    own_passes: list[str]

    def event(self, name: str, **kwargs: Any) -> None: ...
    def predict_batch(
        self, model: nn.Module, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> Prediction: ...
    def prediction_step(
        self, model: nn.Module, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Tensor | None, Any, Any]: ...


class Evaluation:
    """One pass over a loader by a trainer.

    Args:
        trainer: whose model, metrics and callbacks.
        loss_only: whether neither logits nor labels are wanted.
        ignored: names of outputs that are left out of the predictions.
        is_prediction: whether predictions are returned, and not metrics alone.
    """

    def __init__(self, trainer: Hooks, loss_only: bool, ignored: list[str] | None, is_prediction: bool) -> None:
        self.trainer, self.args, self.loss_only, self.ignored = trainer, trainer.args, loss_only, ignored
        self.keeps = is_prediction or not self.args.batch_eval_metrics
        every = self.args.eval_accumulation_steps
        self.logits, self.labels, self.inputs = Gathered(every), Gathered(every), Gathered(every)
        self.losses, self.rows, self.metrics = Losses(), 0, dict[str, Any]()

    def run(self, loader: Any, prefix: str) -> EvalLoopOutput:
        """Evaluate all batches."""
        self.trainer.model.eval()
        self.trainer.callback_handler.eval_dataloader = loader
        before: Measured | None = None  # a batch is added when the next one came, and so is known not to be the last
        for batches in self.measured(loader):
            for measured in batches:
                if before is not None:
                    self.add(before, is_last=False)
                before = measured
            self.trainer.event("on_prediction_step")
        if before is not None:
            self.add(before, is_last=True)
        return self.result(loader, prefix)

    def measured(self, loader: Any) -> Iterator[list[Measured]]:
        """What the next batch gave, and where several processes take batches in turn, what the next of each gave."""
        devices, form = self.trainer.devices, self.trainer.form
        if devices.alone:
            yield from ([self.measure(inputs)] for inputs in loader)
            return
        batches, spare = iter(loader), None
        while True:
            inputs = next(batches, None)
            if not any(there for (there,) in gather_numbers([float(inputs is not None)])):
                return
            own = None if inputs is None else self.measure(inputs)
            if inputs is None and form.same_passes:
                spare = first_batch(loader) if spare is None else spare
                self.measure(spare)
            yield [measured for measured in devices.replicas.among(_gathered(own)) if measured is not None]

    def measure(self, inputs: Any) -> Measured:
        """What the model gives for a batch."""
        trainer, counts = self.trainer, self.trainer.objective.count(inputs)
        if "prediction_step" in trainer.own_passes:
            loss, logits, labels = trainer.prediction_step(trainer.model, inputs, self.loss_only, ignore_keys=self.ignored)
            found = Prediction(loss, None, logits, labels)
        else:
            found = trainer.predict_batch(trainer.form.answering(trainer.model), inputs, self.loss_only, self.ignored)
        if found.logits is not None and trainer.preprocess_logits_for_metrics is not None:
            found.logits = trainer.preprocess_logits_for_metrics(found.logits, found.labels)
        main = inputs.get(trainer.main_input_name) if "inputs" in self.args.include_for_metrics else None
        items = sum(counts.values()) if counts else float(rows_of(inputs))
        return Measured(found, items, rows_of(inputs), main)

    def add(self, measured: Measured, *, is_last: bool) -> None:
        """Add what a batch gave."""
        trainer, found, main = self.trainer, measured.found, measured.main
        self.rows += measured.rows
        self.losses.add(found, measured.items, measured.rows)
        if self.keeps:
            self.logits.add(found.logits)
            self.labels.add(found.labels)
            self.inputs.add(main)
        elif trainer.compute_metrics is not None and found.logits is not None and found.labels is not None:
            loss = found.loss if "loss" in self.args.include_for_metrics else None
            prediction = EvalPrediction(found.logits, found.labels, main, loss)
            self.metrics = trainer.compute_metrics(prediction, compute_result=is_last) or {}

    def result(self, loader: Any, prefix: str) -> EvalLoopOutput:
        """Metrics of all batches, and the arrays."""
        trainer, whole = self.trainer, self.args.eval_do_concat_batches
        places = places_of(loader)
        logits, labels, inputs = (each.result(places, whole) for each in (self.logits, self.labels, self.inputs))
        if trainer.compute_metrics is not None and self.keeps and logits is not None and labels is not None:
            wanted = self.args.include_for_metrics
            losses = np.array(self.losses.each) if "loss" in wanted else None
            if losses is not None and places is not None and whole:
                losses[places] = losses.copy()
            self.metrics = trainer.compute_metrics(EvalPrediction(logits, labels, inputs, losses)) or {}
        metrics = {
            name: value.item() if hasattr(value, "item") and _is_one(value) else value for name, value in self.metrics.items()
        }
        if (loss := self.losses.mean) is not None:
            metrics[f"{prefix}_loss"] = loss
        named = {name if name.startswith(f"{prefix}_") else f"{prefix}_{name}": value for name, value in metrics.items()}
        return EvalLoopOutput(logits, labels, named, length_of(source_of(loader)) or self.rows)


def prediction_of(
    outputs: Any, loss: Tensor | None, terms: Any, labels: tuple[Any, ...] | None, ignored: Iterable[str]
) -> Prediction:
    """What a model gave for a batch: all outputs but the loss and those that are ignored."""
    if isinstance(outputs, Mapping):
        left_out = {*ignored, *IGNORED_OUTPUTS}
        logits: Any = tuple(value for name, value in outputs.items() if name not in left_out)
    else:
        logits = tuple(outputs if loss is None else outputs[1:])
    only = labels[0] if labels is not None and len(labels) == 1 else labels
    return Prediction(loss, terms, logits[0] if len(logits) == 1 else logits, only)


def _gathered(own: Measured | None) -> list[Measured | None]:
    """What each process measured; the tensors of others are on the CPU."""
    told = None
    if own is not None:
        found = own.found
        told = (found.loss, found.terms, found.logits, found.labels, own.items, own.rows, own.main)
    return [None if each is None else Measured(Prediction(*each[:4]), *each[4:]) for each in gather_tensors(told)]


def _is_one(value: Any) -> bool:
    return int(np.prod(getattr(value, "shape", ()))) == 1


def places_of(loader: Any) -> np.ndarray[Any, Any] | None:
    """The rows of a loader's data set in the order in which its batches have them."""
    batches = getattr(loader, "batch_sampler", None)
    return np.array([row for batch in batches.all() for row in batch]) if isinstance(batches, EpochBatches) else None


def check_metrics(args: Any, compute_metrics: Any) -> bool:
    """Whether a function of metrics takes what ``batch_eval_metrics`` calls it with."""
    return not args.batch_eval_metrics or "compute_result" in inspect.signature(compute_metrics).parameters
