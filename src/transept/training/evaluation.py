"""Evaluation and prediction, batch by batch: losses as sums over the whole set, and arrays where they are wanted."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from transept.metrics.base import Gathered
from transept.parallel.processes import gather_numbers, gather_tensors
from transept.training.callbacks.base import length_of
from transept.training.data.loader import first_batch, source_of
from transept.training.data.order import EpochBatches
from transept.training.state import EvalLoopOutput, EvalPrediction, Prediction


def speed_metrics(
    split: str, start_time: float, num_samples: Any = None, num_steps: Any = None, num_tokens: Any = None
) -> dict[str, Any]:
    """The time since ``start_time``, and what was done in a second of it, under the reference's names."""
    seconds = time.time() - start_time
    figures = {f"{split}_runtime": round(seconds, 4)}
    for name, number in (("samples", num_samples), ("steps", num_steps), ("tokens", num_tokens)):
        if number is not None and seconds > 0:
            figures[f"{split}_{name}_per_second"] = round(number / seconds, 3)
    return figures


class Evaluation:
    """One pass over a loader: additive terms of the loss are summed over all items, others are means of batches."""

    def __init__(self, trainer: Any, loss_only: bool, ignored: list[str] | None, is_prediction: bool) -> None:
        self.trainer, self.args, self.loss_only, self.ignored = trainer, trainer.args, loss_only, ignored
        self.keeps = is_prediction or not self.args.batch_eval_metrics
        every = self.args.eval_accumulation_steps
        self.gathered = [Gathered(every) for _ in range(3)]  # logits, labels and main inputs
        self.sums, self.items = defaultdict[str, float](float), defaultdict[str, float](float)  # of each term
        self.losses: list[float] = []  # of every row, its batch's
        self.metrics, self.rows = dict[str, Any](), 0

    def run(self, loader: Any, prefix: str) -> EvalLoopOutput:
        self.trainer.model.eval()
        self.trainer.callback_handler.eval_dataloader = loader
        last: Prediction | None = None  # a batch is added after the next one came: then it is not the last
        for predictions in self._predictions(loader):
            for prediction in predictions:
                if last is not None:
                    self._add(last, is_last=False)
                last = prediction
            self.trainer.event("on_prediction_step")
        if last is not None:
            self._add(last, is_last=True)
        return self._result(loader, prefix)

    def _predictions(self, loader: Any) -> Iterator[list[Prediction]]:
        """What the next batch gave, and where several processes take batches in turn, what the next of each gave."""
        batches, spare = iter(loader), None
        while True:
            inputs = next(batches, None)
            if not any(has_batch for (has_batch,) in gather_numbers([float(inputs is not None)])):
                return
            fields = None if inputs is None else vars(self._predict(inputs))
            if inputs is None and self.trainer.form.same_passes:
                spare = first_batch(loader) if spare is None else spare
                self._predict(spare)
            # The tensors of others are on the CPU.
            predictions = self.trainer.devices.replicas.among(gather_tensors(fields))
            yield [Prediction(**fields) for fields in predictions if fields is not None]

    def _predict(self, inputs: Any) -> Prediction:
        trainer, counts = self.trainer, self.trainer.objective.count(inputs)
        if "prediction_step" in trainer.replaced_passes:
            step = trainer.prediction_step
            loss, logits, labels = step(trainer.model, inputs, self.loss_only, ignore_keys=self.ignored)
            prediction = Prediction(loss, None, logits, labels)
        else:
            model = trainer.form.for_evaluation(trainer.model)
            prediction = trainer.predict_batch(model, inputs, self.loss_only, self.ignored)
        if prediction.logits is not None and trainer.preprocess_logits_for_metrics is not None:
            prediction.logits = trainer.preprocess_logits_for_metrics(prediction.logits, prediction.labels)
        if "inputs" in self.args.include_for_metrics:
            prediction.main = inputs.get(trainer.main_input_name)
        prediction.rows = max(1, trainer.objective.rows(inputs))
        prediction.items = sum(counts.values()) if counts else float(prediction.rows)
        return prediction

    def _add(self, batch: Prediction, *, is_last: bool) -> None:
        compute_metrics = self.trainer.compute_metrics
        self.rows += batch.rows
        if batch.loss is not None:
            means = {"loss": (float(batch.loss), batch.items)} if batch.terms is None else {}
            for name, term in (batch.terms or {}).items():
                count = float(term.count) if term.additive else 1.0
                means[name] = (float(term.mean) * term.weight if count else 0.0), count
            for name, (mean, count) in means.items():
                self.sums[name] += mean * count
                self.items[name] += count
            self.losses += [float(batch.loss)] * batch.rows
        if self.keeps:
            for gathered, value in zip(self.gathered, (batch.logits, batch.labels, batch.main)):
                gathered.add(value)
        elif compute_metrics is not None and batch.logits is not None and batch.labels is not None:
            loss = batch.loss if "loss" in self.args.include_for_metrics else None
            prediction = EvalPrediction(batch.logits, batch.labels, batch.main, loss)
            self.metrics = compute_metrics(prediction, compute_result=is_last) or {}

    def _result(self, loader: Any, prefix: str) -> EvalLoopOutput:
        """Metrics of all batches, and the arrays, with the rows in the order of the data set."""
        compute_metrics, whole = self.trainer.compute_metrics, self.args.eval_do_concat_batches
        batches, places = getattr(loader, "batch_sampler", None), None
        if isinstance(batches, EpochBatches):
            places = np.array([row for batch in batches.all() for row in batch])
        logits, labels, inputs = (gathered.result(places, whole) for gathered in self.gathered)
        if compute_metrics is not None and self.keeps and logits is not None and labels is not None:
            losses = np.array(self.losses) if "loss" in self.args.include_for_metrics else None
            if losses is not None and places is not None and whole:
                losses[places] = losses.copy()
            self.metrics = compute_metrics(EvalPrediction(logits, labels, inputs, losses)) or {}
        metrics = dict(self.metrics)
        for name, value in metrics.items():
            if hasattr(value, "item") and math.prod(getattr(value, "shape", ())) == 1:
                metrics[name] = value.item()
        if means := [self.sums[name] / items for name, items in self.items.items() if items]:
            metrics[f"{prefix}_loss"] = math.fsum(means)
        named = {f"{prefix}_{name.removeprefix(f'{prefix}_')}": value for name, value in metrics.items()}
        return EvalLoopOutput(logits, labels, named, length_of(source_of(loader)) or self.rows)
