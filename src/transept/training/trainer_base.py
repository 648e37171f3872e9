"""What a trainer is made of, and its passes over batches, which users override."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Sampler

from transept.core.text import unpadded
from transept.environment import set_seed
from transept.errors import InputError, InputTypeError, UnsupportedError
from transept.heads.task import loss_alone
from transept.logging import get_verbosity, set_verbosity
from transept.parallel.forms import Form
from transept.training import loaders, setup
from transept.training.adversarial import Perturbation
from transept.training.arguments.training import TrainingArguments
from transept.training.callbacks.base import CallbackHandler, TrainerCallback, length_of
from transept.training.checkpoint.saved_run import SavedRun
from transept.training.collate.padding import DataCollatorWithPadding, default_data_collator
from transept.training.data.loader import check_rows, reads_by_number, source_of
from transept.training.devices import Devices
from transept.training.evaluation import Prediction, predict_batch
from transept.training.length_cuts import Ragged
from transept.training.loss import LossRules, PassShare, backward, micro_batch_loss, precision
from transept.training.objective import Counts, Objective, task_of
from transept.training.optim.average import WeightAverage
from transept.training.optim.optimizers import get_decay_parameter_names, get_optimizer_cls_and_kwargs
from transept.training.run import TrainingRun
from transept.training.state import TrainerControl, TrainerState


class TrainerBase:
    """A trainer's model, data, optimizer, callbacks and passes; see :class:`transept.training.trainer.Trainer`."""

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
        set_seed(args.seed, args.full_determinism)
        if (model is None) == (model_init is None):
            raise InputError("a trainer needs either a `model` or a `model_init`.")
        self.model_init, self.train_dataset, self.eval_dataset = model_init, train_dataset, eval_dataset
        self.processing_class = processing_class if processing_class is not None else tokenizer
        self.compute_loss_func, self.compute_metrics = compute_loss_func, compute_metrics
        self.preprocess_logits_for_metrics = preprocess_logits_for_metrics
        self.optimizer, self.lr_scheduler = self.given_optimizers = optimizers
        self.optimizer_cls_and_kwargs = optimizer_cls_and_kwargs
        self.model: Any = self.devices.taken(model) if model is not None else self.call_model_init()
        self.data_collator = data_collator if data_collator is not None else self._default_collator()
        self.own_passes = self._own_passes()
        self.devices.check(self.own_passes)
        setup.check_arguments(args, self.data_collator, eval_dataset, compute_metrics)
        setup.check_optimizers(optimizers, optimizer_cls_and_kwargs, model_init)
        self.check_model()
        self._place_model()
        self.form = Form()  # that of the model that is being trained
        self.scaler: Any = torch.amp.GradScaler(args.device.type) if args.fp16 else None
        self.perturbation = None if args.adversarial is None else Perturbation(**args.adversarial)
        self.average: WeightAverage | None = None
        self.share = PassShare()
        self.training: TrainingRun | None = None
        self.saved: SavedRun | None = None
        self.trial_name: str | None = None
        self.is_in_train, self.current_gradient_accumulation_steps = False, 1
        told = setup.all_callbacks(args, callbacks or [])
        self.callback_handler = CallbackHandler(told, self.model, self.processing_class, *optimizers)
        self.control = TrainerControl()
        self.state = self._new_state()
        self.event("on_init_end")

    # --- what is checked and set up ------------------------------------------------------------------------------

    def _own_passes(self) -> list[str]:
        """What this trainer has in the place of a model's own loss, or of the passes of this class."""
        methods = ("compute_loss", "training_step", "prediction_step")
        own = [name for name in methods if getattr(type(self), name) is not getattr(TrainerBase, name)]
        own += [] if self.compute_loss_func is None else ["compute_loss_func"]
        return [*own, "predict_with_generate"] if getattr(self.args, "predict_with_generate", False) else own

    def check_model(self) -> None:
        """Refuse a model that has no loss."""
        task = task_of(self.model)
        if task is not None and task.backbone is task:
            what = f"{type(task).__name__} has no task, and so no loss."
            raise UnsupportedError(what, hint="Train a model with a head, such as one of AutoModelFor...")

    def call_model_init(self, trial: Any = None) -> nn.Module:
        """A new model, of the trial's settings where ``model_init`` takes them."""
        assert self.model_init is not None
        model = self.model_init(*([trial] if inspect.signature(self.model_init).parameters else []))
        if not isinstance(model, nn.Module):
            raise InputTypeError(f"`model_init` gave {type(model).__name__}, and no model.")
        return self.devices.taken(model)

    def _place_model(self) -> None:
        """Put the model where it is trained, and learn what it takes."""
        if not self.devices.is_staged:  # else each process moves its own layers
            self.model.to(self.args.device)
        self.model_wrapped = self.model
        if self.args.use_cache and hasattr(self.model, "config"):
            self.model.config.use_cache = True
        self._signature_columns, self._takes_any, labels = setup.inputs_of(self.model)
        self.label_names: list[str] = self.args.label_names or labels
        self.main_input_name: str = getattr(self.model, "main_input_name", "input_ids")
        self.objective = self.make_objective()

    def make_objective(self) -> Objective:
        """What the model learns: by default, by its own loss."""
        return Objective(self.model, self.label_names)

    def _default_collator(self) -> Callable[[list[Any]], Any]:
        pads = hasattr(self.processing_class, "pad")
        return DataCollatorWithPadding(self.processing_class) if pads else default_data_collator

    def _new_state(self) -> TrainerState:
        return setup.new_state(self.args, [*self.callback_handler.callbacks, self.control])

    def is_world_process_zero(self) -> bool:
        """Whether this is the process that writes files."""
        return self.args.process_index == 0

    def is_local_process_zero(self) -> bool:
        return self.args.local_process_index == 0

    # --- callbacks -----------------------------------------------------------------------------------------------

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

    # --- data ----------------------------------------------------------------------------------------------------

    def get_train_dataloader(self) -> DataLoader[Any]:
        check_rows(self.train_dataset, "train_dataset")
        sampler = self._get_train_sampler(self.train_dataset) if reads_by_number(self.train_dataset) else None
        return self._loader(self.train_dataset, sampler, self.args.train_batch_size, self.args.dataloader_drop_last)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """The loader of a set, of the one of that name, or of ``eval_dataset``."""
        if eval_dataset is None or isinstance(eval_dataset, str):
            eval_dataset = self.eval_dataset if eval_dataset is None else self.eval_dataset[eval_dataset]
        return self.get_test_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader[Any]:
        check_rows(test_dataset, "eval_dataset")
        sampler = self._get_eval_sampler(test_dataset) if reads_by_number(test_dataset) else None
        return self._loader(test_dataset, sampler, self.args.eval_batch_size, False)

    def _loader(self, dataset: Any, sampler: Any, batch_size: int, drop_last: bool) -> DataLoader[Any]:
        keeps_all = self._takes_any or not self.args.remove_unused_columns
        columns = None if keeps_all else frozenset([*self._signature_columns, *self.label_names, "label", "label_ids"])
        replicas = self.devices.replicas
        return loaders.loader_of(dataset, sampler, self.data_collator, columns, self.args, replicas, batch_size, drop_last)

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int] | None:
        """The order of the rows in training, by ``train_sampling_strategy``."""
        dataset = self.train_dataset if train_dataset is None else train_dataset
        return loaders.train_sampler(dataset, self.args, self.main_input_name, self.devices.replicas.size)

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler[int] | None:
        return loaders.eval_sampler(eval_dataset, self.args, self.main_input_name)

    def num_examples(self, dataloader: DataLoader[Any]) -> int:
        """The number of rows behind a loader, as far as it is known."""
        return length_of(source_of(dataloader)) or (length_of(dataloader) or 0) * self.args.train_batch_size

    # --- optimizer and schedule ----------------------------------------------------------------------------------

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
            self.optimizer = setup.make_optimizer_of(model, self.args, self.form, kind, options, decayed)
        elif self.given_optimizers[0] is not None:
            self.devices.check_given(self.optimizer, self.model)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The schedule, made where there is none."""
        if self.lr_scheduler is None:
            self.lr_scheduler = setup.make_schedule(self.args, optimizer or self.optimizer, num_training_steps)
        return self.lr_scheduler

    def _get_learning_rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    # --- passes --------------------------------------------------------------------------------------------------

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Counts | None = None) -> Tensor:
        """The forward and the backward pass of a micro-batch; returns its part of the update's loss."""
        if not model.training:
            model.train()
        if hasattr(self.optimizer, "train"):
            self.optimizer.train()
        real_alone = unpadded() if isinstance(inputs, Ragged) else contextlib.nullcontext()
        inputs = self._prepare_inputs(inputs)
        only_loss = loss_alone() if self._loss_rules().may_cut else contextlib.nullcontext()
        with real_alone, self.compute_loss_context_manager(), only_loss:
            answer = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
            loss: Tensor = (answer[0] if isinstance(answer, tuple) else answer) * self.share.loss
            if self.perturbation is not None:
                again = partial(self.compute_loss, num_items_in_batch=num_items_in_batch)
                weight = self.share.loss if self.perturbation.by_row else self.share.batch
                loss = loss + self.perturbation(model, inputs, again) * weight
        backward(loss, self.devices.replicas.size, self.scaler)
        return loss.detach()

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The loss of a micro-batch, with the model's outputs where they are wanted.

        ``num_items_in_batch`` has the items of each term in the whole update, where the loss is divided by them.
        """
        function, share = self.compute_loss_func, self.share
        both = micro_batch_loss(model, inputs, num_items_in_batch, share, self.args, function, with_outputs=return_outputs)
        return both if return_outputs else both[0]

    def _loss_rules(self) -> LossRules:
        own, function, by_items = self.own_passes, self.compute_loss_func, self.loss_is_scaled_for_ga
        return LossRules.of(self.model, own, function, self.perturbation, by_items)

    def compute_loss_context_manager(self) -> contextlib.AbstractContextManager[Any]:
        """The mixed precision of a forward pass."""
        return precision(self.args)

    def _prepare_inputs(self, inputs: Any) -> Any:
        """A batch with its tensors on the model's device."""
        if not inputs:
            what = f"a batch is empty: the model takes {', '.join(self._signature_columns)}."
            raise InputError(what, hint="Rows need columns of these names; or pass remove_unused_columns=False.")
        return setup.to_device(inputs, self.args.device)

    def floating_point_ops(self, inputs: Mapping[str, Any]) -> float:
        """About how many operations the passes over these inputs take: six for each weight and item."""
        ids = inputs.get(self.main_input_name)
        if not isinstance(ids, Tensor):
            return 0.0
        weights = getattr(self.model, "num_parameters", lambda **_: 0)(exclude_embeddings=True)
        return float(6 * weights * ids.numel())

    def predict_batch(
        self, model: nn.Module, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> Prediction:
        """The loss, the logits and the labels of a batch."""
        return predict_batch(self, model, inputs, prediction_loss_only, ignore_keys)

    def prediction_step(
        self, model: nn.Module, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Tensor | None, Any, Any]:
        """The mean loss, the logits and the labels of a batch; where it is overridden, the loss is weighted by the items."""
        prediction = self.predict_batch(model, inputs, prediction_loss_only, ignore_keys)
        return None if prediction.loss is None else prediction.loss.detach(), prediction.logits, prediction.labels
