"""Evaluation and prediction, batch by batch: losses as sums over the whole set, and arrays where somebody asks for them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from transept.heads.task import loss_alone
from transept.metrics.base import Gathered
from transept.objectives.terms import LossTerm
from transept.parallel.forms import Form
from transept.parallel.processes import gather_numbers, gather_tensors
from transept.training.arguments.training import TrainingArguments
from transept.training.callbacks.base import CallbackHandler, length_of
from transept.training.data.loader import first_batch, source_of
from transept.training.data.order import EpochBatches
from transept.training.devices import Devices
from transept.training.objective import Objective
from transept.training.state import EvalLoopOutput, EvalPrediction

IGNORED_OUTPUTS = ("loss", "loss_terms")


def speed(split: str, began: float, *, rows: float | None = None, steps: float | None = None, tokens: int | None = None) -> Any:
    """The time since ``began``, and what was done in a second of it, under the reference's names."""
    seconds = time.time() - began
    figures = {f"{split}_runtime": round(seconds, 4)}
    for name, number in (("samples", rows), ("steps", steps), ("tokens", tokens)):
        if number is not None and seconds > 0:
            figures[f"{split}_{name}_per_second"] = round(number / seconds, 3)
    return figures


class Hooks(Protocol):
    """What an evaluation asks of the trainer that it belongs to: its model, metrics and callbacks, and its passes."""

    args: TrainingArguments
    model: Any
    form: Form
    devices: Devices
    objective: Objective
    callback_handler: CallbackHandler
    compute_metrics: Callable[..., dict[str, Any]] | None
    preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None
    main_input_name: str
    label_names: list[str]
    own_passes: list[str]

    def event(self, name: str, **kwargs: Any) -> None: ...
    def compute_loss_context_manager(self) -> AbstractContextManager[Any]: ...
    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False) -> Any: ...
    def _prepare_inputs(self, inputs: Any) -> Any: ...
    def predict_batch(
        self, model: nn.Module, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> Prediction: ...
    def prediction_step(
        self, model: nn.Module, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Tensor | None, Any, Any]: ...


@dataclass
class Prediction:
    """What a batch gave: its mean loss, the terms of it where the model tells them, logits and labels.

    ``items`` are those of its loss; ``main`` are its main inputs, where a metric reads them.
    """

    loss: Tensor | None
    terms: Mapping[str, LossTerm] | None
    logits: Any
    labels: Any
    items: float = 0.0
    rows: int = 0
    main: Any = None


def predict_batch(trainer: Hooks, model: nn.Module, inputs: Any, loss_only: bool, ignored: Iterable[str] | None) -> Prediction:
    """What the model gives for a batch: its loss where there are labels, and its outputs but for those that are ignored."""
    names = trainer.label_names
    has_loss = all(inputs.get(name) is not None for name in names)
    if not names:  # some tasks learn without labels
        has_loss = bool(inputs.get("return_loss")) or bool(trainer.objective.count(inputs))
    inputs = trainer._prepare_inputs(inputs)
    own_loss = trainer.args.label_smoothing_factor or {"compute_loss", "compute_loss_func"} & {*trainer.own_passes}
    only_loss = loss_only and not own_loss
    loss = None
    with torch.no_grad(), trainer.compute_loss_context_manager(), loss_alone() if only_loss else nullcontext():
        if has_loss:
            loss, outputs = trainer.compute_loss(model, inputs, return_outputs=True)
        else:
            outputs = model(**inputs)
    terms = None if own_loss or not isinstance(outputs, Mapping) else getattr(outputs, "loss_terms", None)
    if loss_only:
        return Prediction(loss, terms, None, None)
    if isinstance(outputs, Mapping):
        if ignored is None:
            ignored = getattr(getattr(trainer.model, "config", None), "keys_to_ignore_at_inference", ["past_key_values"])
        left_out = {*ignored, *IGNORED_OUTPUTS}
        logits: Any = tuple(value for name, value in outputs.items() if name not in left_out)
    else:
        logits = tuple(outputs if loss is None else outputs[1:])
    labels = [inputs[name] for name in names] if has_loss else []
    return Prediction(loss, terms, _only(logits), _only(tuple(labels)) if labels else None)


def _only(values: tuple[Any, ...]) -> Any:
    return values[0] if len(values) == 1 else values


@dataclass
class Losses:
    """The loss over a whole set: each term's sum divided by its items, and means of parts for what is not additive."""

    sums: dict[str, float] = field(default_factory=dict)
    items: dict[str, float] = field(default_factory=dict)
    by_row: list[float] = field(default_factory=list)  # of every row, its batch's

    def add(self, batch: Prediction) -> None:
        """Add the loss of a batch."""
        if batch.loss is None:
            return
        for name, term in (batch.terms or {}).items():
            count = float(term.count) if term.additive else 1.0
            self._add(name, float(term.mean) * term.weight if count else 0.0, count)
        if batch.terms is None:
            self._add("loss", float(batch.loss), batch.items)
        self.by_row += [float(batch.loss)] * batch.rows

    def _add(self, name: str, mean: float, items: float) -> None:
        self.sums[name] = self.sums.get(name, 0.0) + mean * items
        self.items[name] = self.items.get(name, 0.0) + items

    @property
    def mean(self) -> float | None:
        """The loss of the set; ``None`` where nothing was added."""
        means = [self.sums[name] / items for name, items in self.items.items() if items]
        return math.fsum(means) if means else None


class Evaluation:
    """One pass over a loader by a trainer.

    Args:
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
        before: Prediction | None = None  # a batch is added when the next one came, and so is known not to be the last
        for predictions in self._predictions(loader):
            for prediction in predictions:
                if before is not None:
                    self._add(before, is_last=False)
                before = prediction
            self.trainer.event("on_prediction_step")
        if before is not None:
            self._add(before, is_last=True)
        return self._result(loader, prefix)

    def _predictions(self, loader: Any) -> Iterator[list[Prediction]]:
        """What the next batch gave, and where several processes take batches in turn, what the next of each gave."""
        devices, form = self.trainer.devices, self.trainer.form
        if devices.alone:
            yield from ([self._predict(inputs)] for inputs in loader)
            return
        batches, spare = iter(loader), None
        while True:
            inputs = next(batches, None)
            if not any(is_there for (is_there,) in gather_numbers([float(inputs is not None)])):
                return
            own = None if inputs is None else vars(self._predict(inputs))
            if inputs is None and form.same_passes:
                spare = first_batch(loader) if spare is None else spare
                self._predict(spare)
            everywhere = devices.replicas.among(gather_tensors(own))  # the tensors of others are on the CPU
            yield [Prediction(**fields) for fields in everywhere if fields is not None]

    def _predict(self, inputs: Any) -> Prediction:
        """What the model gives for a batch, and what that counts for."""
        trainer, counts = self.trainer, self.trainer.objective.count(inputs)
        if "prediction_step" in trainer.own_passes:
            loss, logits, labels = trainer.prediction_step(trainer.model, inputs, self.loss_only, ignore_keys=self.ignored)
            found = Prediction(loss, None, logits, labels)
        else:
            found = trainer.predict_batch(trainer.form.answering(trainer.model), inputs, self.loss_only, self.ignored)
        if found.logits is not None and trainer.preprocess_logits_for_metrics is not None:
            found.logits = trainer.preprocess_logits_for_metrics(found.logits, found.labels)
        if "inputs" in self.args.include_for_metrics:
            found.main = inputs.get(trainer.main_input_name)
        found.rows = max(1, trainer.objective.rows(inputs))
        found.items = sum(counts.values()) if counts else float(found.rows)
        return found

    def _add(self, batch: Prediction, *, is_last: bool) -> None:
        """Add what a batch gave."""
        trainer = self.trainer
        self.rows += batch.rows
        self.losses.add(batch)
        if self.keeps:
            self.logits.add(batch.logits)
            self.labels.add(batch.labels)
            self.inputs.add(batch.main)
        elif trainer.compute_metrics is not None and batch.logits is not None and batch.labels is not None:
            loss = batch.loss if "loss" in self.args.include_for_metrics else None
            prediction = EvalPrediction(batch.logits, batch.labels, batch.main, loss)
            self.metrics = trainer.compute_metrics(prediction, compute_result=is_last) or {}

    def _result(self, loader: Any, prefix: str) -> EvalLoopOutput:
        """Metrics of all batches, and the arrays."""
        trainer, whole, places = self.trainer, self.args.eval_do_concat_batches, places_of(loader)
        logits, labels, inputs = (parts.result(places, whole) for parts in (self.logits, self.labels, self.inputs))
        if trainer.compute_metrics is not None and self.keeps and logits is not None and labels is not None:
            losses = np.array(self.losses.by_row) if "loss" in self.args.include_for_metrics else None
            if losses is not None and places is not None and whole:
                losses[places] = losses.copy()
            self.metrics = trainer.compute_metrics(EvalPrediction(logits, labels, inputs, losses)) or {}
        metrics = dict(self.metrics)
        for name, value in metrics.items():
            if hasattr(value, "item") and math.prod(getattr(value, "shape", ())) == 1:
                metrics[name] = value.item()
        if (loss := self.losses.mean) is not None:
            metrics[f"{prefix}_loss"] = loss
        named = {name if name.startswith(f"{prefix}_") else f"{prefix}_{name}": value for name, value in metrics.items()}
        return EvalLoopOutput(logits, labels, named, length_of(source_of(loader)) or self.rows)


def places_of(loader: Any) -> np.ndarray[Any, Any] | None:
    """The rows of a loader's data set in the order in which its batches have them."""
    batches = getattr(loader, "batch_sampler", None)
    return np.array([row for batch in batches.all() for row in batch]) if isinstance(batches, EpochBatches) else None
