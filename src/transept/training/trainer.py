"""The trainer: what people call and override. What an update does is in ``update``, what happens when in ``loop``."""

from __future__ import annotations

import contextlib
import math
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from transept.environment import set_seed
from transept.errors import UnsupportedError
from transept.files import PathName, make_directory, safe_join
from transept.parallel.processes import naming_the_lost
from transept.parallel.streams import ModelFiles, written_together
from transept.training import files, setup
from transept.training.checkpoint.contents import load_best
from transept.training.checkpoint.place import keep_rows_of_update
from transept.training.checkpoint.saved_run import SavedRun
from transept.training.data.loader import computed_once
from transept.training.evaluation import Evaluation, speed
from transept.training.loop import Loop
from transept.training.model_card import card_of, hub_matter, write_card
from transept.training.optim.average import WeightAverage
from transept.training.run import RunLength, TrainingRun
from transept.training.search import Space, search
from transept.training.state import (
    STATE_NAME,
    BestRun,
    EvalLoopOutput,
    HubStrategy,
    PredictionOutput,
    TrainOutput,
    json_value,
)
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
        compute_loss_func: outputs, labels (and ``num_items_in_batch``, which it then divides by) -> the loss.
        compute_metrics: :class:`EvalPrediction` -> metrics by name.
        callbacks: beside those that the trainer brings.
        optimizers: an optimizer and a schedule, where they are not those of the arguments.
        optimizer_cls_and_kwargs: the optimizer's class and its arguments, in place of ``args.optim``.
        preprocess_logits_for_metrics: logits, labels -> what is kept of the logits of a batch.
        tokenizer: an older name of ``processing_class``.

    An overridden ``compute_loss`` gives the mean over its micro-batch, and is passed ``num_items_in_batch=None``; its share of
    the update is taken here. One that divides by the items of the whole update itself sets ``loss_is_scaled_for_ga = True``,
    and is passed their number by term.

    Attributes:
        objective: what the model learns; see :meth:`make_objective`.
        share: what the pass that is being made counts for in its update.
        training: the run of the last call of ``train()``.
    """

    # --- training ------------------------------------------------------------------------------------------------

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train to the end.

        Args:
            resume_from_checkpoint: a checkpoint to go on from, or ``True`` for the last one in ``output_dir``. The run goes on
                as if nothing had happened; what changed meanwhile is a warning. See :class:`SavedRun`.
            trial: the settings of a search, which ``model_init`` is called with.
            ignore_keys_for_eval: outputs that evaluations leave out of the predictions.

        Returns:
            The number of updates, the mean loss, and the figures of the run.
        """
        self.is_in_train = True
        try:
            if self.model_init is not None:
                set_seed(self.args.seed, self.args.full_determinism)
                self.model = self.call_model_init(trial)
                self._place_model()
                self.optimizer = self.lr_scheduler = None
            elif self.given_optimizers[1] is None:
                self.lr_scheduler = None  # its length may be another now
            keep_rows_of_update(self.args, resume_from_checkpoint, self.devices.replicas.size)
            self.state = self._new_state()
            self.state.is_hyper_param_search, self.state.trial_params = trial is not None, trial
            self.state.trial_name = self.trial_name
            with setup.prepared(self.model, self.args, recomputes=self.devices.recomputes):
                run = self.training = self._make_run(self.get_train_dataloader(), ignore_keys_for_eval)
                return self._train(run, resume_from_checkpoint)
        finally:
            self.is_in_train = False

    def _make_run(self, loader: DataLoader[Any], ignored: list[str] | None) -> TrainingRun:
        """The parts of a run, put together; the model is set up."""
        args, length = self.args, RunLength.of(self.args, loader)
        self.state.compute_steps(args, length.max_steps)
        self.state.max_steps, self.state.num_train_epochs = length.max_steps, length.epochs
        if self.form.model is not self.model:  # which is held since an earlier call
            self.form, self.model_wrapped = self.devices.hold(self.model, self.train_dataset)
        self.create_optimizer_and_scheduler(length.max_steps)
        self.average = WeightAverage(self.model, args.ema_decay) if args.ema_decay else None
        if args.unfreeze_schedule is not None:  # the optimizer has all that will be trained
            setup.freeze_for_schedule(self.model, args)
        handler = self.callback_handler
        handler.model, handler.optimizer, handler.lr_scheduler = self.model, self.optimizer, self.lr_scheduler
        handler.train_dataloader = loader
        return TrainingRun(
            args=args,
            model=self.model,
            wrapped=self.model_wrapped,
            form=self.form,
            devices=self.devices,
            objective=self.objective,
            rules=self._loss_rules(),
            share=self.share,
            optimizer=self.optimizer,
            scheduler=self.lr_scheduler,
            scaler=self.scaler,
            average=self.average,
            loader=loader,
            length=length,
            state=self.state,
            main_input_name=self.main_input_name,
            padding_id=getattr(self.processing_class, "pad_token_id", None),
            ignored=ignored,
        )

    def _train(self, run: TrainingRun, resume: str | bool | None) -> TrainOutput:
        with SavedRun(run, self, resume) as saved:
            self.saved = saved
            if self.args.precompute:  # of the weights that the run goes on with
                run.loader, run.wrapped = computed_once(self, run.loader)
            with naming_the_lost():
                return Loop(run, self, saved).train()

    def store_flos(self) -> None:
        """Add the operations since the last call to the state."""
        if self.training is not None:
            self.training.store_flops()

    # --- evaluation ----------------------------------------------------------------------------------------------

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, Any]:
        """The loss and the metrics of a set, or of several by name, whose names follow the prefix of their metrics."""
        sets = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(sets, dict):
            metrics: dict[str, Any] = {}
            for name, rows in sets.items():
                metrics |= self.evaluate(name if eval_dataset is None else rows, ignore_keys, f"{metric_key_prefix}_{name}")
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

    def _speed(self, prefix: str, began: float, rows: int) -> Any:
        return speed(prefix, began, rows=rows, steps=math.ceil(rows / self.args.eval_batch_size))

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

    # --- logs ----------------------------------------------------------------------------------------------------

    def log(self, logs: dict[str, Any], start_time: float | None = None) -> None:
        """Keep figures in the history, and tell them to the callbacks."""
        logs["epoch"] = self.state.epoch
        if self.args.include_num_input_tokens_seen != "no":
            logs["num_input_tokens_seen"] = self.state.num_input_tokens_seen
            if start_time is not None and self.training is not None:
                seen = self.state.num_input_tokens_seen - self.training.first_tokens
                logs |= speed("train", start_time, tokens=seen)
        entry = {name: json_value(value, name) for name, value in logs.items()}
        self.state.log_history.append({**entry, "step": self.state.global_step})
        self.event("on_log", logs=logs)

    # --- files ---------------------------------------------------------------------------------------------------

    def save_model(self, output_dir: PathName | None = None, _internal_call: bool = False) -> None:
        """Save the model, its tokenizer or processor, and the arguments, so that ``from_pretrained`` opens the directory."""
        weights = files.whole_weights(self.model, self.form, self.average)
        with written_together(weights) if isinstance(weights, ModelFiles) else contextlib.nullcontext():
            if self.args.should_save:
                self._save(output_dir, weights)
        if self.args.should_save and self.args.push_to_hub and not _internal_call:
            self.push_to_hub("Model save")

    def _save(self, output_dir: PathName | None = None, state_dict: Any = None) -> None:
        """Write the model with these weights, or its own, and what belongs to it."""
        reader = self.processing_class or getattr(self.data_collator, "tokenizer", None)
        with contextlib.nullcontext() if state_dict is not None or self.average is None else self.average.applied(self.model):
            folder = output_dir or self.args.output_dir or "."
            files.write_model(folder, self.model, self.form, state_dict, reader, self.args.to_json_string())

    def _save_checkpoint(self, model: Any, trial: Any = None) -> None:
        """Save ``checkpoint-STEP``."""
        assert self.saved is not None
        self.saved.save()
        if self.args.push_to_hub and self.args.hub_strategy == HubStrategy.EVERY_SAVE:
            self.push_to_hub(f"Training in progress, step {self.state.global_step}")

    def _load_best_model(self) -> None:
        """Take the weights of the best checkpoint."""
        load_best(Path(str(self.state.best_model_checkpoint)), self.model, self.form, averaged=self.average is not None)

    def save_state(self) -> None:
        """Write ``trainer_state.json``."""
        if self.is_world_process_zero():
            self.state.save_to_json(safe_join(make_directory(self.args.output_dir or "."), STATE_NAME))

    def log_metrics(self, split: str, metrics: dict[str, Any]) -> None:
        """Print metrics as a table."""
        if self.is_world_process_zero():
            files.print_metrics(split, self.metrics_format(metrics))

    def metrics_format(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """Metrics for people: times as hours, minutes and seconds, operations in 2^30."""
        return files.readable(metrics)

    def save_metrics(self, split: str, metrics: dict[str, Any], combined: bool = True) -> None:
        """Write ``SPLIT_results.json``, and with ``combined`` add the metrics to ``all_results.json``."""
        if self.is_world_process_zero():
            files.write_metrics(self.args.output_dir or ".", split, metrics, combined=combined)

    def get_num_trainable_parameters(self) -> int:
        return sum(weight.numel() for weight in self.model.parameters() if weight.requires_grad)

    def get_learning_rates(self) -> list[float]:
        """The learning rate of each group of parameters."""
        return [group["lr"] for group in self.optimizer.param_groups]

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
        """Write ``README.md`` into the run's directory; the arguments are the hub's metadata, as far as they are known."""
        matter = hub_matter(language, license, tags, finetuned_from, tasks, dataset_tags or dataset, dataset_args)
        if self.is_world_process_zero():
            card = card_of(self.model, self.args.to_dict(), self.state.log_history, model_name, **matter)
            write_card(card, self.args.output_dir or ".")

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Publish the model, what prepares its inputs, the settings and a card as one commit; see ``Pushable``.

        Raises:
            UnsupportedError: ``blocking=False``: files are published while one waits.
        """
        if not blocking:
            raise UnsupportedError("`blocking=False` cannot be honoured: files are published while one waits.")
        if not self.is_world_process_zero():
            return None
        self.event("on_push_begin")
        card = card_of(self.model, self.args.to_dict(), self.state.log_history)
        return files.TrainedModel(partial(self.save_model, _internal_call=True), card.text()).push_to_hub(
            self.args.hub_model_id or Path(self.args.output_dir or ".").resolve().name,
            private=self.args.hub_private_repo,
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
    ) -> BestRun:
        """Train with different settings, each from ``model_init``, and give the best.

        Args:
            hp_space: settings and the values to try, or a function of a trial with Optuna's ``suggest_float``, ``suggest_int``
                and ``suggest_categorical`` that gives them; by default the reference's.
            compute_objective: metrics of the evaluation -> a number; by default the sum of metrics, or the loss.
            n_trials: how many are tried at random.
            direction: ``minimize`` or ``maximize``.
            backend: ``random``, or ``grid`` for all combinations of a mapping's values.
            hp_name: a trial -> the name of its directory, below ``output_dir``.

        Raises:
            InputError: there is no ``model_init``, or the space is none.
            UnsupportedError: another backend.
        """
        return search(self, hp_space, compute_objective, n_trials, direction, backend, hp_name)
