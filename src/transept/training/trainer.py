"""The trainer: what people call and override. What happens when in a run, and in an update, is in ``loop``."""

from __future__ import annotations

import contextlib
import datetime
import math
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader
from tqdm.auto import tqdm

from transept.adapt.freeze import freeze, layer_groups, unfreeze_until
from transept.environment.packages import enable_full_determinism, set_seed
from transept.errors import UnsupportedError, refuse
from transept.parallel.processes import naming_lost_processes
from transept.parallel.streams import ModelFiles, written_together
from transept.storage.files import PathName, dump_json, load_object, make_directory, safe_join, write_text
from transept.training.arguments.training import TrainingArguments
from transept.training.checkpoint.contents import load_best, load_weights
from transept.training.checkpoint.resume import keep_update_size
from transept.training.checkpoint.saved_run import SavedRun
from transept.training.data.loader import computed_once, ending_workers
from transept.training.evaluation import Evaluation, speed_metrics
from transept.training.files import TrainedModel, whole_weights, write_model
from transept.training.loop import Loop
from transept.training.model_card import card_of, write_card
from transept.training.objective import own_task
from transept.training.optim import optimizers
from transept.training.optim.optimizers import WeightAverage
from transept.training.optim.schedules import get_scheduler
from transept.training.run import RunLength, TrainingRun, prepared
from transept.training.search import Space, search
from transept.training.state import STATE_NAME, BestRun, EvalLoopOutput, PredictionOutput, TrainOutput, json_value
from transept.training.trainer_base import TrainerBase


class Trainer(TrainerBase):
    """Trains, evaluates and predicts; the arguments are the reference's.

    Args:
        model: a model of this library, or any module whose outputs have a ``loss``.
        args: the settings; by default those of ``TrainingArguments("tmp_trainer")``.
        data_collator: makes a batch of a list of rows; by default one that pads, where ``processing_class`` can.
        train_dataset: rows by number, or an iterable.
        eval_dataset: rows that are evaluated, or several sets by name.
        processing_class: a tokenizer or processor, which is saved with the model.
        model_init: makes the model at the beginning of each ``train()``, in place of ``model``.
        compute_loss_func: outputs, labels (and ``num_items_in_batch``) -> the loss.
        compute_metrics: :class:`EvalPrediction` -> metrics by name.
        callbacks: beside those that the trainer brings.
        optimizers: an optimizer and a schedule, where they are not those of the arguments.
        optimizer_cls_and_kwargs: the optimizer's class and its arguments, in place of ``args.optim``.
        preprocess_logits_for_metrics: logits, labels -> what is kept of the logits of a batch.
        tokenizer: an older name of ``processing_class``.

    An overridden ``compute_loss`` gives the mean over its micro-batch, of which the trainer takes the micro-batch's share
    of the update; or it divides a sum by ``num_items_in_batch``, where it takes it, and is added up as it is. The trainer
    sees whether the number was read; ``loss_is_scaled_for_ga`` says it in its place.
    """

    def train(
        self, resume_from_checkpoint: str | bool | None = None, trial: Any = None, ignore_keys_for_eval: list[str] | None = None
    ) -> TrainOutput:
        """Train to the end; returns the number of updates, the mean loss, and the figures of the run.

        Args:
            resume_from_checkpoint: a checkpoint to go on from, or ``True`` for the last one in ``output_dir``. The
                run goes on as if nothing had happened; warnings tell what changed. See :class:`SavedRun`.
            trial: the settings of a search, which ``model_init`` is called with.
            ignore_keys_for_eval: outputs that evaluations leave out of the predictions.
        """
        self.is_in_train = True
        try:
            if self.model_init is not None:
                (enable_full_determinism if self.args.full_determinism else set_seed)(self.args.seed)
                self.model = self.call_model_init(trial)
                self._place_model()
                self.optimizer = self.lr_scheduler = None
            elif self.passed_optimizers[1] is None:
                self.lr_scheduler = None  # its length may be another now
            keep_update_size(self.args, resume_from_checkpoint, self.devices.replicas.size)
            self.state = self._new_state()
            self.state.is_hyper_param_search = trial is not None
            self.state.trial_name, self.state.trial_params = self.trial_name, getattr(trial, "params", trial)
            with prepared(self.model, self.args, recomputes=self.devices.recomputes):
                run = self.training = self._make_run(self.get_train_dataloader(), ignore_keys_for_eval)
                with SavedRun(run, self, resume_from_checkpoint) as saved:
                    self.saved = saved
                    if self.args.precompute:  # of the weights that the run goes on with
                        run.loader, run.wrapped = computed_once(self, run.loader)
                    with naming_lost_processes(), ending_workers(run.loader):
                        return Loop(run, self, saved).train()
        finally:
            self.is_in_train = False

    def _make_run(self, loader: DataLoader[Any], ignored: list[str] | None) -> TrainingRun:
        args, length = self.args, RunLength.of(self.args, loader)
        self.state.compute_steps(args, length.max_steps)
        self.state.max_steps, self.state.num_train_epochs = length.max_steps, length.epochs
        if self.form.model is not self.model:  # which is held since an earlier call
            self.training_weights = self._count_weights()  # before processes share them
            self.form, self.model_wrapped = self.devices.prepare(self.model, self.train_dataset)
        self.create_optimizer_and_scheduler(length.max_steps)
        self.average = WeightAverage(self.model, args.ema_decay) if args.ema_decay else None
        if args.unfreeze_schedule is not None:  # the optimizer has all that will be trained
            freeze(own_task(self.model, "freeze"), *([] if args.freeze is None else [args.freeze]))
            unfreeze_until(own_task(self.model, "unfreeze_schedule"), args.unfreeze_schedule, 0)
        handler = self.callback_handler
        handler.model, handler.optimizer, handler.lr_scheduler = self.model, self.optimizer, self.lr_scheduler
        handler.train_dataloader = loader
        return TrainingRun(self, loader, length, ignored)

    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        """Make the optimizer and the schedule, where there are none."""
        self.create_optimizer()
        self.create_scheduler(num_training_steps)

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Names of the parameters that weight decay applies to."""
        return optimizers.get_decay_parameter_names(model)

    @staticmethod
    def get_optimizer_cls_and_kwargs(args: TrainingArguments, model: nn.Module | None = None) -> tuple[Any, Any]:
        """The class of the optimizer that the arguments name, and what it is made with."""
        return optimizers.get_optimizer_cls_and_kwargs(args)

    def create_optimizer(self, model: nn.Module | None = None) -> Any:
        """The optimizer, made where there is none."""
        if self.optimizer is not None:
            if self.passed_optimizers[0] is not None:
                self.devices.check_optimizer(self.optimizer, self.model)
            return self.optimizer
        model, args = self.model if model is None else model, self.args
        kind, options = self.optimizer_cls_and_kwargs or self.get_optimizer_cls_and_kwargs(args, model)
        decayed, rates = self.get_decay_parameter_names(model), None
        if args.layerwise_lr_decay is not None:
            layers = layer_groups(own_task(model, "layerwise_lr_decay"))
            rates = optimizers.layerwise_rates(layers, args.layerwise_lr_decay)
        options = dict(options)
        groups = options.pop("optimizer_dict", None) or options.pop("params", None)  # those of an overriding method
        refuse(groups and rates, "`layerwise_lr_decay` makes groups of parameters, but the optimizer comes with others.")
        rate = options.get("lr", args.learning_rate)
        groups = groups or optimizers.parameter_groups(model, rate, args.weight_decay, decayed, rates)
        self.optimizer = optimizers.make_optimizer(kind, groups, options, self.form.optimizer)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The schedule, made where there is none."""
        if self.lr_scheduler is None:
            args, optimizer = self.args, optimizer or self.optimizer
            options: Any = args.lr_scheduler_kwargs
            warmup = args.get_warmup_steps(num_training_steps)
            self.lr_scheduler = get_scheduler(args.lr_scheduler_type, optimizer, warmup, num_training_steps, options)
        return self.lr_scheduler

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, Any]:
        """The loss and the metrics of a set, or of several by name; then the names follow the prefix."""
        sets = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(sets, dict):
            metrics: dict[str, Any] = {}
            for name, rows in sets.items():
                dataset = name if eval_dataset is None else rows
                metrics |= self.evaluate(dataset, ignore_keys, f"{metric_key_prefix}_{name}")
            return metrics
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
        return speed_metrics(prefix, began, rows, math.ceil(rows / self.args.eval_batch_size))

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
        dtype = torch.bfloat16 if self.args.bf16_full_eval else torch.float16 if self.args.fp16_full_eval else None
        if dtype is not None and not self.is_in_train:
            self.model.to(dtype)
        evaluation = Evaluation(self, loss_only, ignore_keys, is_prediction=description == "Prediction")
        with ending_workers(dataloader):
            return evaluation.run(dataloader, metric_key_prefix)

    def log(self, logs: dict[str, Any], start_time: float | None = None) -> None:
        """Add figures to the history, and pass them to the callbacks."""
        logs["epoch"] = self.state.epoch
        if self.args.include_num_input_tokens_seen != "no":
            logs["num_input_tokens_seen"] = self.state.num_input_tokens_seen
            if start_time is not None and self.training is not None:
                seen = self.state.num_input_tokens_seen - self.training.first_tokens
                logs |= speed_metrics("train", start_time, num_tokens=seen)
        entry = {name: json_value(value, name) for name, value in logs.items()}
        self.state.log_history.append({**entry, "step": self.state.global_step})
        self.event("on_log", logs=logs)

    def save_model(self, output_dir: PathName | None = None, _internal_call: bool = False) -> None:
        """Save the model, its tokenizer or processor, and the arguments, for ``from_pretrained`` to open."""
        weights = whole_weights(self.model, self.form, self.average)
        with written_together(weights) if isinstance(weights, ModelFiles) else contextlib.nullcontext():
            if self.args.should_save:
                self._save(output_dir, weights)
        if self.args.should_save and self.args.push_to_hub and not _internal_call:
            self.push_to_hub("Model save")

    def _save(self, output_dir: PathName | None = None, state_dict: Any = None) -> None:
        """Write the model with these weights, or its own, and what belongs to it."""
        reader = self.processing_class or getattr(self.data_collator, "tokenizer", None)
        folder, arguments = make_directory(output_dir or self.args.output_dir or "."), self.args
        average = self.average if state_dict is None else None
        with contextlib.nullcontext() if average is None else average.applied(self.model):
            write_model(folder, self.model, self.form, state_dict, reader, arguments)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        assert self.saved is not None
        checkpoint = self.saved.save()
        if self.args.push_to_hub and checkpoint is not None:
            self._push_from_checkpoint(str(checkpoint))

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if self.args.hub_strategy == "every_save":
            self.push_to_hub(f"Training in progress, step {self.state.global_step}")

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        load_weights(Path(resume_from_checkpoint), self.model if model is None else model, self.form, self.average)

    def _load_best_model(self) -> None:
        best = Path(str(self.state.best_model_checkpoint))
        load_best(best, self.model, self.form, averaged=self.average is not None)

    def save_state(self) -> None:
        """Write ``trainer_state.json``."""
        if self.is_world_process_zero():
            self.state.save_to_json(safe_join(make_directory(self.args.output_dir or "."), STATE_NAME))

    def log_metrics(self, split: str, metrics: dict[str, Any]) -> None:
        """Print metrics as a table."""
        if self.is_world_process_zero():
            texts = {name: str(value) for name, value in self.metrics_format(metrics).items()}
            width, right = max(map(len, texts), default=0), max(map(len, texts.values()), default=0)
            lines = [f"  {name: <{width}} = {texts[name]:>{right}}" for name in sorted(texts)]
            tqdm.write("\n".join([f"***** {split} metrics *****", *lines]))

    @staticmethod
    def metrics_format(metrics: dict[str, Any]) -> dict[str, Any]:
        """Metrics for people: times as hours, minutes and seconds, operations in 2^30."""
        formatted = dict(metrics)
        for name, value in metrics.items():
            if "_runtime" in name:
                hundredths = int(abs(value - int(value)) * 100)
                formatted[name] = f"{datetime.timedelta(seconds=int(value))}.{hundredths:02d}"
            elif name == "total_flos":
                formatted[name] = f"{int(value) >> 30}GF"
            elif isinstance(value, float):
                formatted[name] = round(value, 4)
        return formatted

    def save_metrics(self, split: str, metrics: dict[str, Any], combined: bool = True) -> None:
        """Write ``SPLIT_results.json``, and with ``combined`` add the metrics to ``all_results.json``."""
        if not self.is_world_process_zero():
            return
        folder, metrics = make_directory(self.args.output_dir or "."), json_value(metrics, split)
        write_text(safe_join(folder, f"{split}_results.json"), dump_json(metrics))
        if combined:
            path = folder / "all_results.json"
            earlier = load_object(path, finite=False) if path.exists() else {}
            write_text(path, dump_json(earlier | metrics))

    def create_model_card(
        self,
        language: str | None = None,
        license: str | None = None,
        tags: str | list[str] | None = None,
        model_name: str | None = None,
        finetuned_from: str | None = None,
        tasks: str | list[str] | None = None,
        dataset_tags: str | list[str] | None = None,
        dataset: str | list[str] | None = None,
        dataset_args: str | list[str] | None = None,
    ) -> None:
        """Write ``README.md`` into the run's directory; the arguments are the hub's metadata, as far as known."""
        if not self.is_world_process_zero():
            return
        texts = (tags, tasks, dataset_tags or dataset, dataset_args)
        tags, tasks, datasets, arguments = ([text] if isinstance(text, str) else text for text in texts)
        if datasets and arguments:
            datasets = [f"{name} ({argument})" for name, argument in zip(datasets, arguments)]
        matter: dict[str, Any] = {"language": language, "license": license, "tags": tags, "datasets": datasets}
        matter |= {"base_model": finetuned_from, "pipeline_tag": tasks[0] if tasks else None}
        card = card_of(self.model, self.args.to_dict(), self.state.log_history, model_name, **matter)
        write_card(card, self.args.output_dir or ".")

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Publish the model, what prepares its inputs, the settings and a card as one commit; see ``Pushable``."""
        what = "`blocking=False` cannot be honoured: files are published while one waits."
        refuse(not blocking, what, kind=UnsupportedError)
        if not self.is_world_process_zero():
            return None
        self.event("on_push_begin")
        card = card_of(self.model, self.args.to_dict(), self.state.log_history)
        return TrainedModel(partial(self.save_model, _internal_call=True), card.text()).push_to_hub(
            self.args.hub_model_id or Path(self.args.output_dir or ".").resolve().name,
            private=self.args.hub_private_repo if private is None else private,
            commit_message=commit_message,
            token=token or self.args.hub_token,
            revision=revision or self.args.hub_revision,
            **kwargs,
        )

    def hyperparameter_search(
        self,
        hp_space: Space | None = None,
        compute_objective: Any = None,
        n_trials: int = 20,
        direction: str = "minimize",
        backend: str | None = None,
        hp_name: Any = None,
        **kwargs: Any,
    ) -> BestRun:
        """Train with different settings, each from ``model_init``, and give the best.

        Args:
            hp_space: settings and the values to try, or a function of a trial with Optuna's ``suggest_float``,
                ``suggest_int`` and ``suggest_categorical`` that gives them; by default the reference's.
            compute_objective: metrics of the evaluation -> a number; by default the sum of metrics, or the loss.
            n_trials: how many are tried at random.
            direction: ``minimize`` or ``maximize``.
            backend: ``random``, ``grid`` for all combinations of a mapping's values, or ``optuna``, if it is installed.
            hp_name: a trial -> the name of its directory, below ``output_dir``.
            kwargs: those of Optuna's ``create_study`` and ``Study.optimize``.

        ``InputError``: there is no ``model_init``, or the space is none; ``UnsupportedError``: another backend.
        """
        return search(self, hp_space, compute_objective, n_trials, direction, backend, hp_name, kwargs)
