"""What a trainer is made of, and its passes over batches, which users override."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from transept.core.text import unpadded
from transept.environment import set_seed
from transept.errors import ConfigError, InputError, InputTypeError, UnsupportedError
from transept.heads.task import loss_alone
from transept.logging import get_verbosity, set_verbosity
from transept.objectives.terms import total
from transept.parallel.forms import Form
from transept.training.adversarial import Perturbation
from transept.training.arguments.training import TrainingArguments
from transept.training.callbacks.base import (
    CallbackHandler,
    DefaultFlowCallback,
    TrainerCallback,
)
from transept.training.callbacks.progress import PrinterCallback, ProgressCallback
from transept.training.checkpoint.saved_run import SavedRun
from transept.training.collate.padding import DataCollatorWithPadding, default_data_collator
from transept.training.devices import Devices
from transept.training.evaluation import Prediction, check_metrics, prediction_of
from transept.training.length_cuts import Ragged
from transept.training.objective import Counts, Objective, task_of
from transept.training.optim.average import WeightAverage
from transept.training.optim.greedy import GreedyLR
from transept.training.optim.optimizers import get_decay_parameter_names, get_optimizer_cls_and_kwargs
from transept.training.out_of_memory import check_sums
from transept.training.run import TrainingRun
from transept.training.setup import make_optimizer_of, make_schedule, to_device
from transept.training.state import (
    ExportableState,
    IntervalStrategy,
    SaveStrategy,
    TrainerControl,
    TrainerState,
)
from transept.training.update import Agreement, Backward, PassShare, loss_of, precision, smoothed, takes_items


class TrainerBase:
    """The parts of a trainer, and its passes; see :class:`transept.training.trainer.Trainer` for the arguments."""

    loss_is_scaled_for_ga: ClassVar[bool | None] = None

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
        self.devices = Devices(args)
        if (level := args.get_process_log_level()) != get_verbosity():
            set_verbosity(level)
        self.form = Form()  # that of the model that is being trained
        set_seed(args.seed, args.full_determinism)
        if (model is None) == (model_init is None):
            raise InputError("a trainer needs either a `model` or a `model_init`.")
        self.model_init = model_init
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        self.processing_class = processing_class if processing_class is not None else tokenizer
        self.compute_loss_func, self.compute_metrics = compute_loss_func, compute_metrics
        self.preprocess_logits_for_metrics = preprocess_logits_for_metrics
        self.optimizer, self.lr_scheduler = optimizers
        self.given_optimizers, self.optimizer_cls_and_kwargs = optimizers, optimizer_cls_and_kwargs
        self.model: Any = self.devices.taken(model) if model is not None else self.call_model_init()
        self.data_collator = data_collator if data_collator is not None else self._default_collator()
        self.own_passes = self._own_passes()
        self._check()
        self._place_model()
        self.scaler: Any = torch.amp.GradScaler(args.device.type) if args.fp16 else None
        self.average: WeightAverage | None = None
        self.perturbation = None if args.adversarial is None else Perturbation(**args.adversarial)
        self.trial_name: str | None = None
        self.training: TrainingRun | None = None
        self.saved: SavedRun | None = None
        self._ignored: list[str] | None = None
        self.is_in_train, self.rows_are_divided, self.current_gradient_accumulation_steps = False, False, 1
        self.share = PassShare()
        self.callback_handler = CallbackHandler(
            self._all_callbacks(callbacks or []), self.model, self.processing_class, self.optimizer, self.lr_scheduler
        )
        self.control = TrainerControl()
        self.state = self._new_state()
        self.event("on_init_end")

    # --- what is checked and set up -----------------------------------------------------------------------------------------

    def _check(self) -> None:
        """Refuse what contradicts itself, before anything starts."""
        args = self.args
        self.devices.check(self.own_passes)
        if not callable(self.data_collator):
            raise InputTypeError(f"`data_collator` is {type(self.data_collator).__name__}, which cannot be called.")
        if args.eval_strategy != IntervalStrategy.NO and self.eval_dataset is None:
            raise InputError(f"eval_strategy={str(args.eval_strategy)!r} needs an `eval_dataset`.")
        if self.compute_metrics is not None and not check_metrics(args, self.compute_metrics):
            raise InputError("with `batch_eval_metrics`, `compute_metrics` must take `compute_result`.")
        if args.save_strategy == SaveStrategy.BEST and args.metric_for_best_model is None:
            raise ConfigError("save_strategy='best' needs `metric_for_best_model`.")
        if self.optimizer_cls_and_kwargs is not None and self.optimizer is not None:
            raise InputError("pass either `optimizers` or `optimizer_cls_and_kwargs`.")
        if self.model_init is not None and self.given_optimizers != (None, None):
            raise InputError("`optimizers` hold another model's weights where `model_init` makes the model.")
        self.check_model()

    def _own_passes(self) -> list[str]:
        """What this trainer has in the place of a model's own loss, or of the passes of this class."""
        methods = ("compute_loss", "training_step", "prediction_step")
        own = [name for name in methods if getattr(type(self), name) is not getattr(TrainerBase, name)]
        own += [] if self.compute_loss_func is None else ["compute_loss_func"]
        return [*own, "predict_with_generate"] if getattr(self.args, "predict_with_generate", False) else own

    def _default_collator(self) -> Callable[[list[Any]], Any]:
        pads = hasattr(self.processing_class, "pad")
        return DataCollatorWithPadding(self.processing_class) if pads else default_data_collator

    def is_world_process_zero(self) -> bool:
        """Whether this is the process that writes files."""
        return self.args.process_index == 0

    def is_local_process_zero(self) -> bool:
        return self.args.local_process_index == 0

    def check_model(self) -> None:
        """Refuse a model that has no loss."""
        task = task_of(self.model)
        if task is not None and task.backbone is task:
            what = f"{type(task).__name__} has no task, and so no loss."
            raise UnsupportedError(what, hint="Train a model with a head, such as one of AutoModelFor...")

    def _place_model(self) -> None:
        """Put the model where it is trained, and learn what it takes."""
        if not self.devices.is_staged:  # else each process moves its own layers
            self.model.to(self.args.device)
        self.model_wrapped = self.model
        if self.args.use_cache and hasattr(self.model, "config"):
            self.model.config.use_cache = True
        forward = inspect.signature(getattr(task_of(self.model), "forward", self.model.forward)).parameters
        self._signature_columns = list(forward)
        self._takes_any = all(parameter.kind is parameter.VAR_KEYWORD for parameter in forward.values())
        spans = ("start_positions", "end_positions")
        named = [name for name in forward if "label" in name or name in spans]
        own = getattr(task_of(self.model), "labels", None)
        self.label_names: list[str] = self.args.label_names or list(own or named)
        self.main_input_name: str = getattr(self.model, "main_input_name", "input_ids")
        self.objective = self.make_objective()

    def make_objective(self) -> Objective:
        """What the model learns: by default, by its own loss."""
        return Objective(self.model, self.label_names)

    def _all_callbacks(self, given: list[Any]) -> list[Any]:
        """The trainer's own callbacks around those that were given; one process alone tells people how it goes."""
        if self.args.process_index:
            return [DefaultFlowCallback, *given]
        shown = PrinterCallback if self.args.disable_tqdm else ProgressCallback
        reports: list[Any] = []
        if self.args.report_to:
            from transept.training.callbacks.reports import report_callbacks  # it asks for the programs that show runs

            reports += report_callbacks([*self.args.report_to])
        return [DefaultFlowCallback, *reports, *given, shown]

    def _new_state(self) -> TrainerState:
        callbacks = [*self.callback_handler.callbacks, self.control]
        return TrainerState(
            stateful_callbacks=[callback for callback in callbacks if isinstance(callback, ExportableState)],
            train_batch_size=self.args.train_batch_size,
            is_local_process_zero=self.is_local_process_zero(),
            is_world_process_zero=self.is_world_process_zero(),
        )

    def call_model_init(self, trial: Any = None) -> nn.Module:
        """A new model, of the trial's settings where ``model_init`` takes them."""
        assert self.model_init is not None
        model = self.model_init(*([trial] if inspect.signature(self.model_init).parameters else []))
        if not isinstance(model, nn.Module):
            raise InputTypeError(f"`model_init` gave {type(model).__name__}, and no model.")
        return self.devices.taken(model)

    # --- callbacks ----------------------------------------------------------------------------------------------------------

    def event(self, name: str, **kwargs: Any) -> None:
        """Tell all callbacks."""
        self.control = getattr(self.callback_handler, name)(self.args, self.state, self.control, **kwargs)

    def add_callback(self, callback: type[TrainerCallback] | TrainerCallback) -> None:
        self.callback_handler.add_callback(callback)

    def pop_callback(self, callback: type[TrainerCallback] | TrainerCallback) -> TrainerCallback | None:
        """Remove a callback, or the first of that class, and return it."""
        return self.callback_handler.pop_callback(callback)

    def remove_callback(self, callback: type[TrainerCallback] | TrainerCallback) -> None:
        self.callback_handler.pop_callback(callback)

    # --- optimizer and schedule ---------------------------------------------------------------------------------------------

    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        """Make the optimizer and the schedule, where there are none."""
        self.create_optimizer()
        self.create_scheduler(num_training_steps)

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Names of the parameters that weight decay applies to."""
        return get_decay_parameter_names(model)

    @staticmethod
    def get_optimizer_cls_and_kwargs(args: TrainingArguments, model: nn.Module | None = None) -> tuple[Any, dict[str, Any]]:
        """The optimizer that the arguments name, and what it is made with."""
        return get_optimizer_cls_and_kwargs(args)

    def create_optimizer(self, model: nn.Module | None = None) -> Any:
        """The optimizer, made where there is none."""
        if self.optimizer is None:
            model = self.model if model is None else model
            kind, options = self.optimizer_cls_and_kwargs or self.get_optimizer_cls_and_kwargs(self.args, model)
            decayed = self.get_decay_parameter_names(model)
            self.optimizer = make_optimizer_of(model, self.args, self.form, kind, options, decayed)
        elif self.given_optimizers[0] is not None:
            self.devices.check_given(self.optimizer, self.model)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The schedule, made where there is none."""
        if self.lr_scheduler is None:
            self.lr_scheduler = make_schedule(self.args, optimizer or self.optimizer, num_training_steps)
        return self.lr_scheduler

    @property
    def follows_metric(self) -> bool:
        """Whether the schedule is told a metric after evaluations, and nothing after updates."""
        return isinstance(self.lr_scheduler, ReduceLROnPlateau | GreedyLR)

    def _get_learning_rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    # --- passes in training -------------------------------------------------------------------------------------------------

    def items_for(self, agreement: Agreement) -> Counts | None:
        """The items of the update, where the loss divides by them; ``None`` where it is the mean of its micro-batch."""
        divides = self.loss_is_scaled_for_ga
        if divides is None:
            function, is_ours = self.compute_loss_func, task_of(self.model) is not None
            divides = "compute_loss" not in self.own_passes and (is_ours if function is None else takes_items(function))
        return agreement.items if divides else None

    @property
    def may_cut(self) -> bool:
        """Whether nobody but the model sees the micro-batches of an update."""
        apart = self.perturbation is None or self.perturbation.by_row
        return apart and not {"training_step", "compute_loss", "compute_loss_func"} & {*self.own_passes}

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Counts | None = None) -> Tensor:
        """The forward and the backward pass of a micro-batch; returns its part of the update's loss."""
        if not model.training:
            model.train()
        if hasattr(self.optimizer, "train"):
            self.optimizer.train()
        real_alone = unpadded() if isinstance(inputs, Ragged) else contextlib.nullcontext()
        inputs = self._prepare_inputs(inputs)
        with real_alone, self.compute_loss_context_manager(), loss_alone() if self.may_cut else contextlib.nullcontext():
            loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
            if isinstance(loss, tuple):
                loss = loss[0]
            shared: Tensor = loss * self.share.loss
            if self.perturbation is not None:
                again = partial(self.compute_loss, num_items_in_batch=num_items_in_batch)
                further = self.perturbation(model, inputs, again)
                shared = shared + further * (self.share.loss if self.perturbation.by_row else self.share.batch)
        Backward(self.devices.replicas.size, self.scaler)(shared)
        return shared.detach()

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """The loss of a micro-batch, with the model's outputs where they are wanted.

        ``num_items_in_batch`` has the items of each term in the whole update, where the loss is divided by them.
        """
        labels, smoothing = None, self.args.label_smoothing_factor
        if "labels" in inputs and (smoothing or self.compute_loss_func is not None):
            inputs = {**inputs}
            labels = inputs.pop("labels")
            task: Any = task_of(model)
            if "decoder_input_ids" not in inputs and hasattr(task, "prepare_decoder_input_ids_from_labels"):
                inputs["decoder_input_ids"] = task.prepare_decoder_input_ids_from_labels(labels)
        seen = return_outputs or labels is not None  # by somebody beside the model's own loss
        with contextlib.nullcontext() if seen else loss_alone():
            outputs = model(**inputs)
        if self.compute_loss_func is not None:
            loss = self.compute_loss_func(outputs, labels, **self._items_argument(num_items_in_batch))
        elif labels is not None:
            loss = total(smoothed(model, outputs, labels, smoothing), num_items_in_batch, self.share.parts)
        else:
            if self.rows_are_divided:
                check_sums(getattr(outputs, "loss_terms", None) or {})
            loss = loss_of(outputs, inputs, num_items_in_batch, self.share.parts)
        return (loss, outputs) if return_outputs else loss

    def _items_argument(self, items: Counts | None) -> dict[str, Any]:
        """What a function of the loss is passed: the number of items as the reference gives it, one for the whole update."""
        if self.compute_loss_func is None or not takes_items(self.compute_loss_func):
            return {}
        number = None if items is None else torch.tensor(max(1.0, sum(items.values())), device=self.args.device)
        return {"num_items_in_batch": number}

    def compute_loss_context_manager(self) -> contextlib.AbstractContextManager[Any]:
        """The mixed precision of a forward pass."""
        return precision(self.args)

    def _prepare_inputs(self, inputs: Any) -> Any:
        """A batch with its tensors on the model's device."""
        if not inputs:
            what = f"a batch is empty: the model takes {', '.join(self._signature_columns)}."
            raise InputError(what, hint="Rows need columns of these names; or pass remove_unused_columns=False.")
        return to_device(inputs, self.args.device)

    def tally(self, inputs: Mapping[str, Any]) -> tuple[float, int]:
        """The operations, and the tokens where they are wanted, of a micro-batch."""
        number = 0
        wanted, ids = self.args.include_num_input_tokens_seen, inputs.get(self.main_input_name)
        if wanted != "no" and isinstance(ids, Tensor):
            mask = inputs.get("attention_mask")
            padding = getattr(self.processing_class, "pad_token_id", None)
            real = ids != padding if mask is None and padding is not None else mask
            number = int(real.sum()) if wanted == "non_padding" and real is not None else ids.numel()
        return self.floating_point_ops(inputs), number

    def floating_point_ops(self, inputs: Mapping[str, Any]) -> float:
        """About how many operations the passes over these inputs take: six for each weight and item."""
        ids = inputs.get(self.main_input_name)
        if not isinstance(ids, Tensor):
            return 0.0
        weights = getattr(self.model, "num_parameters", lambda **_: 0)(exclude_embeddings=True)
        return float(6 * weights * ids.numel())

    # --- passes in evaluations ----------------------------------------------------------------------------------------------

    def predict_batch(
        self, model: nn.Module, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> Prediction:
        """The loss, the logits and the labels of a batch."""
        names = self.label_names
        has_loss = all(inputs.get(name) is not None for name in names)
        if not names:  # some tasks learn without labels
            has_loss = bool(inputs.get("return_loss")) or bool(self.objective.count(inputs))
        inputs = self._prepare_inputs(inputs)
        labels = tuple(inputs[name] for name in names) if has_loss and names else None
        loss = None
        changed = bool(self.args.label_smoothing_factor or {"compute_loss", "compute_loss_func"} & {*self.own_passes})
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
        return prediction_of(outputs, loss, terms, labels, ignore_keys)

    def prediction_step(
        self, model: nn.Module, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Tensor | None, Any, Any]:
        """The mean loss, the logits and the labels of a batch; where it is overridden, the loss is weighted by the items."""
        prediction = self.predict_batch(model, inputs, prediction_loss_only, ignore_keys)
        return None if prediction.loss is None else prediction.loss.detach(), prediction.logits, prediction.labels
