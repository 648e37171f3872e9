"""Evaluation and prediction, batch by batch: losses as sums over the whole set, and arrays where somebody asks for them."""

from __future__ import annotations

import contextlib
import inspect
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from transept.errors import InputError
from transept.heads.task import loss_alone
from transept.objectives.terms import LossTerm
from transept.training.arguments import TrainingArguments
from transept.training.callbacks import length_of, metric_name
from transept.training.loader import first_batch, source_of
from transept.training.metrics.arrays import Gathered
from transept.training.order import EpochBatches
from transept.training.prepare import to_device
from transept.training.state import EvalLoopOutput, EvalPrediction, PredictionOutput, SaveStrategy, TrainerControl, TrainerState

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


class Evaluation:
    """One pass over a loader by a trainer.

    Args:
        trainer: whose model, metrics and callbacks.
        loss_only: whether neither logits nor labels are wanted.
        ignored: names of outputs that are left out of the predictions.
        is_prediction: whether predictions are returned, and not metrics alone.
    """

    def __init__(self, trainer: Any, loss_only: bool, ignored: list[str] | None, is_prediction: bool) -> None:
        self.trainer, self.args, self.loss_only, self.ignored = trainer, trainer.args, loss_only, ignored
        self.keeps = is_prediction or not self.args.batch_eval_metrics
        every = self.args.eval_accumulation_steps
        self.logits, self.labels, self.inputs = Gathered(every), Gathered(every), Gathered(every)
        self.losses, self.rows, self.metrics = Losses(), 0, dict[str, Any]()

    def run(self, loader: Any, prefix: str) -> EvalLoopOutput:
        """Evaluate all batches."""
        trainer, total = self.trainer, length_of(loader)
        trainer.model.eval()
        trainer.callback_handler.eval_dataloader = loader
        for number, each in enumerate(self.measured(loader), 1):
            for place, measured in enumerate(each, 1):
                self.add(measured, number == total and place == len(each))
            trainer.event("on_prediction_step")
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
            is_there = devices.replicas.gathered(inputs is not None)
            if not any(is_there):
                return
            found = None if inputs is None else moved(self.measure(inputs))
            if inputs is None and form.same_passes:
                spare = first_batch(loader) if spare is None else spare
                self.measure(spare)
            yield [each for each in devices.replicas.gathered(found) if each is not None]

    def measure(self, inputs: Any) -> Measured:
        """What the model gives for a batch."""
        trainer, counts = self.trainer, self.trainer.count_items(inputs)
        if type(trainer).prediction_step is not Evaluates.prediction_step:
            loss, logits, labels = trainer.prediction_step(trainer.model, inputs, self.loss_only, ignore_keys=self.ignored)
            found = Prediction(loss, None, logits, labels)
        else:
            found = trainer.predict_batch(trainer.form.answering(trainer.model), inputs, self.loss_only, self.ignored)
        if found.logits is not None and trainer.preprocess_logits_for_metrics is not None:
            found.logits = trainer.preprocess_logits_for_metrics(found.logits, found.labels)
        main = inputs.get(trainer.main_input_name) if "inputs" in self.args.include_for_metrics else None
        items = sum(counts.values()) if counts else float(rows_of(inputs))
        return Measured(found, items, rows_of(inputs), main)

    def add(self, measured: Measured, is_last: bool) -> None:
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


def moved(measured: Measured) -> Measured:
    """The same on the processor, for other processes."""
    found, host = measured.found, torch.device("cpu")
    terms = None
    if found.terms is not None:
        terms = {name: replace(term, sum=term.sum.cpu(), count=term.count.cpu()) for name, term in found.terms.items()}
    prediction = Prediction(*(to_device(each, host) for each in (found.loss, terms, found.logits, found.labels)))
    return Measured(prediction, measured.items, measured.rows, to_device(measured.main, host))


def _is_one(value: Any) -> bool:
    return int(np.prod(getattr(value, "shape", ()))) == 1


def places_of(loader: Any) -> np.ndarray[Any, Any] | None:
    """The rows of a loader's data set in the order in which its batches have them."""
    batches = getattr(loader, "batch_sampler", None)
    return np.array([row for batch in batches.all() for row in batch]) if isinstance(batches, EpochBatches) else None


def check_metrics(args: Any, compute_metrics: Any) -> bool:
    """Whether a function of metrics takes what ``batch_eval_metrics`` calls it with."""
    return not args.batch_eval_metrics or "compute_result" in inspect.signature(compute_metrics).parameters


class Evaluates:
    """Methods of the trainer that evaluate and predict."""

    args: TrainingArguments
    model: Any
    state: TrainerState
    control: TrainerControl
    eval_dataset: Any
    compute_metrics: Any
    compute_loss_func: Any
    lr_scheduler: Any
    label_names: list[str]
    is_in_train: bool
    own_passes: list[str]
    _ignored: list[str] | None

    if TYPE_CHECKING:
        # Methods of the trainer's other parts.
        @property
        def follows_metric(self) -> bool: ...

        event: Callable[..., None]
        log: Callable[..., None]
        compute_loss: Callable[..., Any]
        count_items: Callable[[Any], Any]
        compute_loss_context_manager: Callable[[], Any]
        get_eval_dataloader: Callable[..., DataLoader[Any]]
        get_test_dataloader: Callable[..., DataLoader[Any]]
        _prepare_inputs: Callable[[Any], Any]

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, Any]:
        """The loss and the metrics of a set, or of several by name, whose names follow the prefix of their metrics."""
        sets = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(sets, dict):
            found: dict[str, Any] = {}
            for name, each in sets.items():
                found |= self.evaluate(name if eval_dataset is None else each, ignore_keys, f"{metric_key_prefix}_{name}")
            return found
        loader, began = self.get_eval_dataloader(eval_dataset), time.time()
        loss_only = True if self.compute_metrics is None else None
        output = self.evaluation_loop(loader, "Evaluation", loss_only, ignore_keys, metric_key_prefix)
        metrics = output.metrics | self._speed(metric_key_prefix, began, output.num_samples)
        self.log(metrics)
        self.event("on_evaluate", metrics=metrics)
        return metrics

    def predict(
        self, test_dataset: Any, ignore_keys: list[str] | None = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """Predictions and labels of a set as arrays, and its metrics."""
        loader, began = self.get_test_dataloader(test_dataset), time.time()
        output = self.evaluation_loop(loader, "Prediction", None, ignore_keys, metric_key_prefix)
        metrics = output.metrics | self._speed(metric_key_prefix, began, output.num_samples)
        self.event("on_predict", metrics=metrics)
        return PredictionOutput(output.predictions, output.label_ids, metrics)

    def _speed(self, prefix: str, began: float, rows: int) -> dict[str, Any]:
        found: dict[str, Any] = speed(prefix, began, rows=rows, steps=math.ceil(rows / self.args.eval_batch_size))
        return found

    def evaluation_loop(
        self,
        dataloader: DataLoader[Any],
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Go through a loader once."""
        loss_only = self.args.prediction_loss_only if prediction_loss_only is None else prediction_loss_only
        kind = torch.bfloat16 if self.args.bf16_full_eval else torch.float16 if self.args.fp16_full_eval else None
        if kind is not None and not self.is_in_train:
            self.model.to(kind)
        return Evaluation(self, loss_only, ignore_keys, description == "Prediction").run(dataloader, metric_key_prefix)

    def predict_batch(
        self, model: nn.Module, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> Prediction:
        """The loss, the logits and the labels of a batch."""
        names = self.label_names
        has_loss = all(inputs.get(name) is not None for name in names)
        if not names:  # some tasks learn without labels
            has_loss = bool(inputs.get("return_loss")) or bool(self.count_items(inputs))
        inputs = self._prepare_inputs(inputs)
        labels = tuple(inputs[name] for name in names) if has_loss and names else None
        loss = None
        changed = self.args.label_smoothing_factor or {"compute_loss", "compute_loss_func"} & {*self.own_passes}
        alone = loss_alone() if prediction_loss_only and not changed else contextlib.nullcontext()
        with torch.no_grad(), self.compute_loss_context_manager(), alone:
            if has_loss:
                loss, outputs = self.compute_loss(model, inputs, return_outputs=True)
            else:
                outputs = model(**inputs)
        terms = None if changed or not isinstance(outputs, Mapping) else getattr(outputs, "loss_terms", None)
        if prediction_loss_only:
            return Prediction(loss, terms, None, None)
        if ignore_keys is None:
            ignore_keys = getattr(getattr(self.model, "config", None), "keys_to_ignore_at_inference", ["past_key_values"])
        left_out = {*ignore_keys, *IGNORED_OUTPUTS}
        if isinstance(outputs, Mapping):
            logits: Any = tuple(value for name, value in outputs.items() if name not in left_out)
        else:
            logits = tuple(outputs[1:] if has_loss else outputs)
        only = labels[0] if labels is not None and len(labels) == 1 else labels
        return Prediction(loss, terms, logits[0] if len(logits) == 1 else logits, only)

    def prediction_step(
        self, model: nn.Module, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Tensor | None, Any, Any]:
        """The mean loss, the logits and the labels of a batch; where it is overridden, the loss is weighted by the items."""
        found = self.predict_batch(model, inputs, prediction_loss_only, ignore_keys)
        return None if found.loss is None else found.loss.detach(), found.logits, found.labels

    def evaluate_now(self, schedule: bool = False) -> None:
        """Evaluate in the middle of training, note the best metric, and tell it to a schedule that follows one."""
        metrics = self.evaluate(ignore_keys=self._ignored)
        name = metric_name(self.args)
        wanted = self.args.metric_for_best_model is not None
        if wanted and name not in metrics:
            raise InputError(f"`metric_for_best_model` is {name!r}, which is not among the metrics: {', '.join(metrics)}.")
        if schedule and self.follows_metric:
            self.lr_scheduler.step(metrics[name])
        is_best = wanted and self._note_best(metrics[name])
        if self.args.save_strategy == SaveStrategy.BEST:
            self.control.should_save = is_best

    def _note_best(self, value: float) -> bool:
        """Whether a metric is the best so far; it is noted then."""
        best, greater = self.state.best_metric, self.args.greater_is_better
        is_best = best is None or (value > best if greater else value < best)
        if is_best:
            self.state.best_metric, self.state.best_global_step = value, self.state.global_step
        return is_best
