"""What a trainer is made of: its model, data and callbacks, and its passes over batches, which users override."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from transept.environment.logging import get_verbosity, set_verbosity
from transept.environment.packages import enable_full_determinism, set_seed
from transept.errors import ConfigError, InputError, InputTypeError, UnsupportedError, refuse
from transept.heads.task import loss_alone
from transept.kinds.text import unpadded
from transept.objectives.classification import LabelSmoother
from transept.objectives.terms import total
from transept.parallel.forms import Form
from transept.training.accelerator import Accelerator
from transept.training.adversarial import Perturbation
from transept.training.arguments.training import TrainingArguments
from transept.training.callbacks.base import CallbackHandler, TrainerCallback
from transept.training.checkpoint.saved_run import SavedRun
from transept.training.collate.padding import DataCollatorWithPadding, default_data_collator
from transept.training.devices import Devices
from transept.training.length_cuts import Ragged
from transept.training.loss import NumItems, PassShare, check_sums, loss_of, precision, smoothed, with_items
from transept.training.objective import Counts, Objective, task_of, to_device
from transept.training.optim.optimizers import WeightAverage
from transept.training.run import TrainingRun, all_callbacks
from transept.training.state import ExportableState, Prediction, SaveStrategy, TrainerControl, TrainerState
from transept.training.trainer_data import TrainerData
from transept.training.update import backward

# Methods of the reference's trainer for which there is no place here.
UNCALLED = (
    *("_inner_training_loop", "_run_epoch", "_prepare_for_training", "_init_training_state", "_finalize_training"),
    *("set_initial_training_values", "get_batch_samples", "_get_num_items_in_batch", "_get_dataloader"),
    *("_maybe_log_save_evaluate", "_evaluate", "_determine_best_metric", "_clip_grad_norm", "_get_grad_norm"),
    *("_save_optimizer_and_scheduler", "_load_optimizer_and_scheduler", "_save_rng_state", "_load_rng_state", "_save_scaler"),
    *("_load_scaler", "_get_output_dir", "_track_num_input_tokens", "_move_model_to_device", "_build_accelerator_args"),
    *("create_accelerator_and_postprocess", "_hp_search_setup", "_report_to_hp_search", "_tune_save_checkpoint"),
    *("_validate_args", "init_hf_repo"),
)


class TrainerBase(TrainerData):
    """A trainer's model, data, callbacks and passes; see :class:`transept.training.trainer.Trainer`."""

    loss_is_scaled_for_ga: ClassVar[bool | None] = None
    # No other library divides the model, or publishes it while training goes on.
    is_deepspeed_enabled = is_fsdp_enabled = False
    can_return_loss = False  # whether batches without labels and ``return_loss`` have a loss
    push_in_progress: Any = None
    hub_model_id = property(lambda self: self.args.hub_model_id)

    def __init__(
        self,
        model: nn.Module | None = None,
        args: TrainingArguments | None = None,
        data_collator: Callable[[list[Any]], Any] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        model_init: Callable[..., nn.Module] | None = None,
        compute_loss_func: Callable[..., Tensor] | None = None,
        compute_metrics: Callable[..., dict[str, Any]] | None = None,
        callbacks: list[Any] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        optimizer_cls_and_kwargs: tuple[type[torch.optim.Optimizer], dict[str, Any]] | None = None,
        preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None = None,
        tokenizer: Any = None,
    ) -> None:
        self.args = args = args or TrainingArguments("tmp_trainer")
        self.devices, self.accelerator = Devices(args), Accelerator(self)
        if (level := args.get_process_log_level()) != get_verbosity():
            set_verbosity(level)
        (enable_full_determinism if args.full_determinism else set_seed)(args.seed)
        refuse((model is None) == (model_init is None), "a trainer needs either a `model` or a `model_init`.")
        self.model_init, self.train_dataset, self.eval_dataset = model_init, train_dataset, eval_dataset
        self.processing_class = processing_class if processing_class is not None else tokenizer
        self.compute_loss_func, self.compute_metrics = compute_loss_func, compute_metrics
        self.preprocess_logits_for_metrics = preprocess_logits_for_metrics
        self.optimizer, self.lr_scheduler = self.passed_optimizers = optimizers
        self.optimizer_cls_and_kwargs = optimizer_cls_and_kwargs
        self.model: Any = self.devices.unwrap(model) if model is not None else self.call_model_init()
        self.data_collator = data_collator if data_collator is not None else self._default_collator()
        self.replaced_passes = self._replaced_passes()
        self.devices.check(self.replaced_passes)
        self._check_arguments()
        self.check_model()
        self._place_model()
        self.form = Form()  # that of the model that is being trained
        self.scaler: Any = torch.amp.GradScaler(args.device.type) if args.fp16 else None
        self.perturbation = None if args.adversarial is None else Perturbation(**args.adversarial)
        # Rows may be put together anew where the model alone sees the micro-batches.
        replaces_loss = not {"training_step", "compute_loss", "compute_loss_func"}.isdisjoint(self.replaced_passes)
        self.may_cut = not replaces_loss and (self.perturbation is None or self.perturbation.by_row)
        self.label_smoother = LabelSmoother(args.label_smoothing_factor) if args.label_smoothing_factor else None
        self.average: WeightAverage | None = None
        self.share = PassShare()  # of the pass that is being made
        self.training_weights: int | None = None  # of the whole model
        self.training: TrainingRun | None = None  # that of the last call of `train()`
        self.saved: SavedRun | None = None
        self.trial_name: str | None = None
        self.is_in_train, self.current_gradient_accumulation_steps = False, 1
        callbacks = all_callbacks(args, callbacks or [])
        self.callback_handler = CallbackHandler(callbacks, self.model, self.processing_class, *optimizers)
        self.control = TrainerControl()
        self.state = self._new_state()
        self.event("on_init_end")

    def _replaced_passes(self) -> list[str]:
        """What this trainer has in the place of a model's own loss, or of the passes of this class."""
        methods = ("compute_loss", "training_step", "prediction_step")
        names = [name for name in methods if getattr(type(self), name) is not getattr(TrainerBase, name)]
        names += [] if self.compute_loss_func is None else ["compute_loss_func"]
        return [*names, "predict_with_generate"] if getattr(self.args, "predict_with_generate", False) else names

    def _check_arguments(self) -> None:
        """Refuse arguments that contradict each other, before anything starts."""
        args, compute_metrics = self.args, self.compute_metrics
        what = f"`data_collator` is {type(self.data_collator).__name__}, which cannot be called."
        refuse(not callable(self.data_collator), what, kind=InputTypeError)
        is_missing = args.eval_strategy != "no" and self.eval_dataset is None
        refuse(is_missing, f"eval_strategy={str(args.eval_strategy)!r} needs an `eval_dataset`.")
        if args.batch_eval_metrics and compute_metrics is not None:
            takes_result = "compute_result" in inspect.signature(compute_metrics).parameters
            refuse(not takes_result, "with `batch_eval_metrics`, `compute_metrics` must take `compute_result`.")
        is_missing = args.save_strategy == SaveStrategy.BEST and args.metric_for_best_model is None
        refuse(is_missing, "save_strategy='best' needs `metric_for_best_model`.", kind=ConfigError)
        are_two = self.optimizer_cls_and_kwargs is not None and self.optimizer is not None
        refuse(are_two, "pass either `optimizers` or `optimizer_cls_and_kwargs`.")
        for name in UNCALLED:
            what = f"{type(self).__name__} overrides `{name}`, which is not called here."
            refuse(hasattr(type(self), name), what, "Use a callback, or a method of Trainer.", UnsupportedError)
        are_others = self.model_init is not None and self.passed_optimizers != (None, None)
        refuse(are_others, "`optimizers` hold another model's weights where `model_init` makes the model.")

    def check_model(self) -> None:
        """Refuse a model that has no loss."""
        task = task_of(self.model)
        if task is not None and task.body is task:
            what = f"{type(task).__name__} has no task, and so no loss."
            raise UnsupportedError(what, hint="Train a model with a head, such as one of AutoModelFor...")

    def call_model_init(self, trial: Any = None) -> nn.Module:
        """A new model, of the trial's settings where ``model_init`` takes them."""
        assert self.model_init is not None
        model = self.model_init(*([trial] if inspect.signature(self.model_init).parameters else []))
        if not isinstance(model, nn.Module):
            raise InputTypeError(f"`model_init` gave {type(model).__name__}, and no model.")
        return self.devices.unwrap(model)

    def _place_model(self) -> None:
        """Put the model where it is trained, and note the names of its inputs."""
        if not self.devices.is_staged:  # else each process moves its own layers
            self.model.to(self.args.device)
        self.model_wrapped = self.model
        if self.args.use_cache and hasattr(self.model, "config"):
            self.model.config.use_cache = True
        task: Any = task_of(self.model)
        inputs = inspect.signature((self.model if task is None else task).forward).parameters
        self._inputs, self._signature_columns = list(inputs), None
        self._takes_any = all(parameter.kind is parameter.VAR_KEYWORD for parameter in inputs.values())
        spans = ("start_positions", "end_positions")
        labels = getattr(task, "labels", None) or [name for name in inputs if "label" in name or name in spans]
        self.label_names: list[str] = self.args.label_names or list(labels)
        self.main_input_name: str = getattr(self.model, "main_input_name", "input_ids")
        self.objective = self.make_objective()

    def make_objective(self) -> Objective:
        """What the model learns: by default, by its own loss."""
        return Objective(self.model, self.label_names)

    def _default_collator(self) -> Callable[[list[Any]], Any]:
        pads = hasattr(self.processing_class, "pad")
        return DataCollatorWithPadding(self.processing_class) if pads else default_data_collator

    def _new_state(self) -> TrainerState:
        callbacks = [*self.callback_handler.callbacks, self.control]
        return TrainerState(
            stateful_callbacks=[callback for callback in callbacks if isinstance(callback, ExportableState)],
            train_batch_size=self.args.train_batch_size,
            is_local_process_zero=self.is_local_process_zero(),
            is_world_process_zero=self.is_world_process_zero(),
        )

    def is_world_process_zero(self) -> bool:
        """Whether this is the process that writes files."""
        return self.args.process_index == 0

    def is_local_process_zero(self) -> bool:
        return self.args.local_process_index == 0

    def event(self, name: str, **kwargs: Any) -> None:
        self.control = getattr(self.callback_handler, name)(self.args, self.state, self.control, **kwargs)

    def add_callback(self, callback: type[TrainerCallback] | TrainerCallback) -> None:
        self.callback_handler.add_callback(callback)

    def pop_callback(self, callback: type[TrainerCallback] | TrainerCallback) -> TrainerCallback | None:
        """Remove a callback, or the first of that class, and return it."""
        return self.callback_handler.pop_callback(callback)

    def remove_callback(self, callback: type[TrainerCallback] | TrainerCallback) -> None:
        self.callback_handler.pop_callback(callback)

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Counts | None = None) -> Tensor:
        """The forward and the backward pass of a micro-batch; returns its part of the update's loss."""
        if not model.training:
            model.train()
        if hasattr(self.optimizer, "train"):
            self.optimizer.train()
        without_padding = unpadded() if isinstance(inputs, Ragged) else contextlib.nullcontext()
        inputs = self._prepare_inputs(inputs)
        only_loss = loss_alone() if self.may_cut else contextlib.nullcontext()
        with without_padding, self.compute_loss_context_manager(), only_loss:
            again: Any = partial(self.compute_loss, **with_items(self.compute_loss, num_items_in_batch))
            answer = again(model, inputs)
            if self.loss_is_scaled_for_ga is not None:
                self.share.is_divided = self.loss_is_scaled_for_ga and num_items_in_batch is not None
            loss: Tensor = (answer[0] if isinstance(answer, tuple) else answer) * self.share.loss
            if self.perturbation is not None:
                weight = self.share.loss if self.perturbation.by_row else self.share.batch
                loss = loss + self.perturbation(model, inputs, again) * weight
        every = self.args.torch_empty_cache_steps
        if every is not None and self.state.global_step % every == 0 and torch.accelerator.is_available():
            torch.accelerator.empty_cache()
        backward(loss, self.devices.replicas.size, self.scaler)
        return loss.detach()

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The loss of a micro-batch, with the model's outputs where they are wanted.

        ``num_items_in_batch`` has the items of the whole update, by which a sum is divided; else the loss is a mean.
        """
        function, items, labels = self.compute_loss_func, num_items_in_batch, None
        if "labels" in inputs and (self.args.label_smoothing_factor or function is not None):
            inputs = {**inputs}
            labels = inputs.pop("labels")
            task: Any = task_of(model)
            if "decoder_input_ids" not in inputs and hasattr(task, "prepare_decoder_input_ids_from_labels"):
                inputs["decoder_input_ids"] = task.prepare_decoder_input_ids_from_labels(labels)
        is_ours = task_of(model) is not None
        with loss_alone() if is_ours and not return_outputs and labels is None else contextlib.nullcontext():
            outputs = model(**inputs)
        if not is_ours and getattr(outputs, "loss_terms", None) is not None:
            outputs.loss_terms = None  # a user's loss may be another than that of the task within
        if function is not None:
            loss = function(outputs, labels, **with_items(function, items))
        elif labels is not None:
            terms = smoothed(model, outputs, labels, self.args.label_smoothing_factor)
            loss = total(terms, self.share.counts(items), self.share.parts)
        else:
            if self.share.rows_are_divided:
                check_sums(getattr(outputs, "loss_terms", None) or {})
            loss = loss_of(outputs, inputs, items, self.share)
        return (loss, outputs) if return_outputs else loss

    def compute_loss_context_manager(self) -> contextlib.AbstractContextManager[Any]:
        """The mixed precision of a forward pass."""
        return self.autocast_smart_context_manager()

    def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> contextlib.AbstractContextManager[Any]:
        return precision(self.args)

    def _prepare_inputs(self, inputs: Any) -> Any:
        """A batch with its tensors on the model's device."""
        if not inputs:
            what = f"a batch is empty: the model takes {', '.join(self._signature_columns or self._inputs)}."
            raise InputError(what, hint="Rows need columns of these names; or pass remove_unused_columns=False.")
        return self._prepare_input(inputs)

    def _prepare_input(self, data: Any) -> Any:
        return to_device(data, self.args.device)

    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: Any = None) -> Any:
        return self.model_wrapped if training and model is self.model else self.accelerator.prepare(model)

    def floating_point_ops(self, inputs: Mapping[str, Any]) -> float:
        """About how many operations the passes over these inputs take: six for each weight and item."""
        ids = inputs.get(self.main_input_name)
        if not isinstance(ids, Tensor):
            return 0.0
        weights = self._count_weights() if self.training_weights is None else self.training_weights
        return float(6 * weights * ids.numel())

    def _count_weights(self) -> int:
        """How many weights compute: all but embeddings; none of a model that does not tell them."""
        count: int = getattr(self.model, "num_parameters", lambda **_: 0)(exclude_embeddings=True)
        return count

    def store_flos(self) -> None:
        """Add the operations since the last call to the state."""
        if self.training is not None:
            self.training.store_flops()

    def get_tp_size(self) -> int:
        """What code divides the number of processes by to scale a sum over ``num_items_in_batch``, which needs no scale."""
        return self.args.world_size

    def get_num_trainable_parameters(self) -> int:
        return sum(weight.numel() for weight in self.model.parameters() if weight.requires_grad)

    def get_learning_rates(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def get_optimizer_group(self, param: Any = None) -> Any:
        """The group of a parameter; without one, the parameters of all groups."""
        groups = self.optimizer.param_groups
        if param is None:
            return [group["params"] for group in groups]
        return next(group for group in groups if any(weight is param for weight in group["params"]))

    def _get_learning_rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def predict_batch(
        self, model: nn.Module, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> Prediction:
        """The loss of a batch where there are labels, and the model's outputs but for those that are ignored."""
        names, counts = self.label_names, self.objective.count(inputs)
        has_loss = all(inputs.get(name) is not None for name in names)
        if not names:  # some tasks learn without labels
            has_loss = bool(inputs.get("return_loss", self.can_return_loss)) or bool(counts)
        inputs = self._prepare_inputs(inputs)
        labels: Any = tuple(inputs[name] for name in names) if has_loss and names else None
        replaces_loss = not {"compute_loss", "compute_loss_func"}.isdisjoint(self.replaced_passes)
        is_other = replaces_loss or bool(self.args.label_smoothing_factor)  # than the loss of the model's own task
        loss = None
        is_alone = prediction_loss_only and not is_other and task_of(model) is not None
        only_loss = loss_alone() if is_alone else contextlib.nullcontext()
        with torch.no_grad(), self.compute_loss_context_manager(), only_loss:
            if has_loss:
                self.share.parts = 1
                items = NumItems.of(counts, self.share, self.args.device) if replaces_loss else None
                options = with_items(self.compute_loss, items)
                loss, outputs = self.compute_loss(model, inputs, return_outputs=True, **options)
            else:
                outputs = model(**inputs)
        terms = None if is_other or not isinstance(outputs, Mapping) else getattr(outputs, "loss_terms", None)
        if prediction_loss_only:
            return Prediction(loss, terms, None, None)
        if isinstance(outputs, Mapping):
            ignored = getattr(getattr(self.model, "config", None), "keys_to_ignore_at_inference", ["past_key_values"])
            left_out = {*(ignored if ignore_keys is None else ignore_keys), "loss", "loss_terms"}
            logits: Any = tuple(value for name, value in outputs.items() if name not in left_out)
        else:
            logits = tuple(outputs if loss is None else outputs[1:])
        single = [parts[0] if parts is not None and len(parts) == 1 else parts for parts in (logits, labels)]
        return Prediction(loss, terms, *single)

    def prediction_step(
        self, model: nn.Module, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None, **gen_kwargs: Any
    ) -> tuple[Tensor | None, Any, Any]:
        """The mean loss, the logits and the labels of a batch; an overriding method's loss is weighted by items."""
        prediction = self.predict_batch(model, inputs, prediction_loss_only, ignore_keys, **gen_kwargs)
        return None if prediction.loss is None else prediction.loss.detach(), prediction.logits, prediction.labels
