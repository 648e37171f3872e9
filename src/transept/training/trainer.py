"""The trainer: what people call and override. What an update does is in ``step``, what happens when in ``loop``."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from transept.core.text import unpadded
from transept.environment import set_seed
from transept.errors import ConfigError, InputError, InputTypeError, UnsupportedError
from transept.heads.task import loss_alone
from transept.objectives.terms import total
from transept.parallel.forms import Form
from transept.parallel.launch import naming_the_lost
from transept.training.arguments import TrainingArguments
from transept.training.builders import Builders
from transept.training.callbacks import (
    CallbackHandler,
    DefaultFlowCallback,
    PrinterCallback,
    ProgressCallback,
    TrainerCallback,
)
from transept.training.counts import task_of
from transept.training.cuts import Ragged
from transept.training.data.precomputed import computed_once
from transept.training.devices import Devices
from transept.training.evaluate import Evaluates, check_metrics, speed
from transept.training.faults.halving import check_sums
from transept.training.files import RunFiles
from transept.training.loop import Loop, plan
from transept.training.methods.perturbation import Perturbation
from transept.training.optimizers import WeightAverage
from transept.training.persist.publishing import Publishes
from transept.training.persist.restart import keep_rows_of_update
from transept.training.persist.run import SavedRun
from transept.training.prepare import freeze_parts, own_passes, prepare, to_device
from transept.training.state import (
    ExportableState,
    IntervalStrategy,
    SaveStrategy,
    TrainerControl,
    TrainerState,
    TrainOutput,
)
from transept.training.step import Counts, Shares, count_items, loss_of, precision, smoothed, takes_items


class Trainer(Builders, Evaluates, RunFiles, Publishes):
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
    """

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
        self.form = Form()  # that of the model that is being trained
        set_seed(args.seed, args.full_determinism)
        self.model_init = model_init
        if (model is None) == (model_init is None):
            raise InputError("a trainer needs either a `model` or a `model_init`.")
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        self.processing_class = processing_class if processing_class is not None else tokenizer
        self.compute_loss_func, self.compute_metrics = compute_loss_func, compute_metrics
        self.preprocess_logits_for_metrics = preprocess_logits_for_metrics
        self.optimizer, self.lr_scheduler = optimizers
        self.given_optimizers, self.optimizer_cls_and_kwargs = optimizers, optimizer_cls_and_kwargs
        self.model: Any = self.devices.taken(model) if model is not None else self.call_model_init()
        self.data_collator = data_collator if data_collator is not None else self._default_collator()
        self.own_passes = own_passes(self, Trainer)
        self._check()
        self._place_model()
        self.scaler: Any = torch.amp.GradScaler(args.device.type) if args.fp16 else None
        self.average: WeightAverage | None = None
        self.perturbation = None if args.adversarial is None else Perturbation(**args.adversarial)
        self.trial_name: str | None = None
        self.loop: Loop | None = None
        self._ignored: list[str] | None = None
        self.is_in_train, self.flops, self.current_gradient_accumulation_steps = False, 0.0, 1
        self.loss_share = self.batch_share = 1.0
        self.parts = 1  # the micro-batches of the update, of all processes
        own: list[Any] = [DefaultFlowCallback]
        shown: list[Any] = [PrinterCallback if args.disable_tqdm else ProgressCallback]
        if args.process_index == 0:  # the one that tells people how it goes
            own += self._report_callbacks()
        else:
            shown = []
        self.callback_handler = CallbackHandler(
            [*own, *(callbacks or []), *shown], self.model, self.processing_class, self.optimizer, self.lr_scheduler
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

    def check_model(self) -> None:
        """Refuse a model that has no loss."""
        task = task_of(self.model)
        if task is not None and task.backbone is task:
            what = f"{type(task).__name__} has no task, and so no loss."
            raise UnsupportedError(what, hint="Train a model with a head, such as one of AutoModelFor...")

    def _place_model(self) -> None:
        """Put the model where it is trained, and learn what it takes."""
        self.model.to(self.args.device)
        self.model_wrapped = self.model
        if self.args.use_cache and hasattr(self.model, "config"):
            self.model.config.use_cache = True
        forward = inspect.signature(getattr(task_of(self.model), "forward", self.model.forward)).parameters
        self._signature_columns = list(forward)
        self._takes_any = not any(each.kind is not each.VAR_KEYWORD for each in forward.values())
        spans = ("start_positions", "end_positions")
        found = [name for name in forward if "label" in name or name in spans]
        own = getattr(task_of(self.model), "labels", None)
        self.label_names: list[str] = self.args.label_names or list(own or found)
        self.main_input_name: str = getattr(self.model, "main_input_name", "input_ids")

    def _new_state(self) -> TrainerState:
        kept = [each for each in [*self.callback_handler.callbacks, self.control] if isinstance(each, ExportableState)]
        return TrainerState(
            stateful_callbacks=kept,
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

    # --- training -----------------------------------------------------------------------------------------------------------

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
        self.is_in_train, self._ignored = True, ignore_keys_for_eval
        if self.model_init is not None:
            set_seed(self.args.seed, self.args.full_determinism)
            self.model = self.call_model_init(trial)
            self._place_model()
            self.optimizer = self.lr_scheduler = None
        elif self.given_optimizers[1] is None:
            self.lr_scheduler = None  # its length may be another now
        keep_rows_of_update(self.args, resume_from_checkpoint, self.devices.replicas.size)
        loader = self.get_train_dataloader()
        length = plan(self.args, loader)
        self.state = self._new_state()
        self.state.is_hyper_param_search, self.state.trial_params = trial is not None, trial
        self.state.trial_name = self.trial_name
        self.state.compute_steps(self.args, length.max_steps)
        self.state.max_steps, self.state.num_train_epochs = length.max_steps, length.epochs
        self._flops_per_item = 6 * getattr(self.model, "num_parameters", lambda **_: 0)(exclude_embeddings=True)
        with contextlib.ExitStack() as undo:
            prepare(self, undo)
            if self.form.model is not self.model:  # which is held since an earlier call
                self.devices.begin(self.model, self.train_dataset)
                self.form = self.devices.form(self.model)
                self.model_wrapped = self.form.hold(self.model)
            if self.args.precompute:
                loader = computed_once(self, loader, undo)
            self.create_optimizer_and_scheduler(length.max_steps)
            self.average = WeightAverage(self.model, self.args.ema_decay) if self.args.ema_decay else None
            if self.args.unfreeze_schedule is not None:  # the optimizer has all that will be trained
                freeze_parts(self.model, self.args.freeze, self.args.unfreeze_schedule)
            self.loop = Loop(self, loader, length)
            handler = self.callback_handler
            handler.model, handler.optimizer, handler.lr_scheduler = self.model, self.optimizer, self.lr_scheduler
            handler.train_dataloader = loader
            self.loop.saved = undo.enter_context(SavedRun(self, resume_from_checkpoint))
            with naming_the_lost():
                result = self.loop.run()
        self.is_in_train = False
        return result

    def count_items(self, inputs: dict[str, Any]) -> Counts | None:
        """The items of each term of the loss in a batch; ``None`` where nobody can count them."""
        return count_items(self.model, inputs, self.label_names)

    def items_for(self, shares: Shares) -> Counts | None:
        """The items of the update, where the loss divides by them; ``None`` where it is the mean of its micro-batch."""
        divides = self.loss_is_scaled_for_ga
        if divides is None:
            function, is_ours = self.compute_loss_func, task_of(self.model) is not None
            divides = "compute_loss" not in self.own_passes and (is_ours if function is None else takes_items(function))
        return shares.items if divides else None

    @property
    def may_cut(self) -> bool:
        """Whether the rows of an update may be put together anew: nobody but the model sees its micro-batches."""
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
            shared: Tensor = loss * self.loss_share
            if self.perturbation is not None:
                again = partial(self.compute_loss, num_items_in_batch=num_items_in_batch)
                further = self.perturbation(model, inputs, again)
                shared = shared + further * (self.loss_share if self.perturbation.by_row else self.batch_share)
        whole = shared * self.devices.replicas.size  # PyTorch divides the sum over processes by their number
        (whole if self.scaler is None else self.scaler.scale(whole)).backward()
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
            terms = smoothed(model, outputs, labels, smoothing)
            loss = total(terms, num_items_in_batch, self.parts)
        else:
            if self.loop is not None and self.loop.divided:
                check_sums(getattr(outputs, "loss_terms", None) or {})
            loss = loss_of(outputs, inputs, num_items_in_batch, self.parts)
        return (loss, outputs) if return_outputs else loss

    def _items_argument(self, items: Counts | None) -> dict[str, Any]:
        """What a function of the loss is passed: the number of items as the reference gives it, one for the whole update."""
        assert self.compute_loss_func is not None
        if not takes_items(self.compute_loss_func):
            return {}
        return {
            "num_items_in_batch": None
            if items is None
            else torch.tensor(max(1.0, sum(items.values())), device=self.args.device)
        }

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
        return float(self._flops_per_item * ids.numel()) if isinstance(ids, Tensor) else 0.0

    def store_flos(self) -> None:
        """Add the operations since the last call to the state."""
        self.state.total_flos, self.flops = self.state.total_flos + self.flops, 0.0

    def averaged(self) -> contextlib.AbstractContextManager[Any]:
        """The model with the mean of its weights, where there is one."""
        return contextlib.nullcontext() if self.average is None else self.average.applied(self.model)

    # --- logs ---------------------------------------------------------------------------------------------------------------

    def log(self, logs: dict[str, Any], start_time: float | None = None) -> None:
        """Keep figures in the history, and tell them to the callbacks."""
        logs["epoch"] = self.state.epoch
        if self.args.include_num_input_tokens_seen != "no":
            logs["num_input_tokens_seen"] = self.state.num_input_tokens_seen
            if start_time is not None and self.loop is not None:
                seen = self.state.num_input_tokens_seen - self.loop.first_tokens
                logs |= speed("train", start_time, tokens=seen)
        self.state.log_history.append({**logs, "step": self.state.global_step})
        self.event("on_log", logs=logs)
