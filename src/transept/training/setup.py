"""What is made and done before a model is trained: its optimizer and schedule, and what is undone afterwards."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from transept.adapt.freeze import freeze, layer_groups, unfreeze_until
from transept.adapt.neftune import add_embedding_noise
from transept.core.model import Model
from transept.errors import ConfigError, InputError, InputTypeError, UnsupportedError
from transept.parallel.forms import Form
from transept.training.arguments.training import TrainingArguments
from transept.training.callbacks.base import DefaultFlowCallback
from transept.training.callbacks.progress import PrinterCallback, ProgressCallback
from transept.training.objective import task_of
from transept.training.optim.optimizers import layerwise_rates, make_optimizer, parameter_groups
from transept.training.optim.schedules import get_scheduler
from transept.training.state import ExportableState, IntervalStrategy, SaveStrategy, TrainerState


def own_task(model: nn.Module, setting: str) -> Model:
    """The model of this library, which a setting needs (``UnsupportedError``: it is another's)."""
    task = task_of(model)
    if task is None:
        raise UnsupportedError(f"`{setting}` needs a model of this library, and {type(model).__name__} is none.")
    return task


def check_arguments(args: TrainingArguments, data_collator: Any, eval_dataset: Any, compute_metrics: Any) -> None:
    """Refuse what contradicts itself, before anything starts."""
    if not callable(data_collator):
        raise InputTypeError(f"`data_collator` is {type(data_collator).__name__}, which cannot be called.")
    if args.eval_strategy != IntervalStrategy.NO and eval_dataset is None:
        raise InputError(f"eval_strategy={str(args.eval_strategy)!r} needs an `eval_dataset`.")
    is_stepwise = args.batch_eval_metrics and compute_metrics is not None
    if is_stepwise and "compute_result" not in inspect.signature(compute_metrics).parameters:
        raise InputError("with `batch_eval_metrics`, `compute_metrics` must take `compute_result`.")
    if args.save_strategy == SaveStrategy.BEST and args.metric_for_best_model is None:
        raise ConfigError("save_strategy='best' needs `metric_for_best_model`.")


def check_optimizers(optimizers: tuple[Any, Any], kind_and_options: Any, model_init: Any) -> None:
    """Refuse optimizers that contradict each other, or the model that they are of."""
    if kind_and_options is not None and optimizers[0] is not None:
        raise InputError("pass either `optimizers` or `optimizer_cls_and_kwargs`.")
    if model_init is not None and optimizers != (None, None):
        raise InputError("`optimizers` hold another model's weights where `model_init` makes the model.")


def inputs_of(model: Any) -> tuple[list[str], bool, list[str]]:
    """The names of a model's inputs, whether it takes any others too, and the names of its labels."""
    task: Any = task_of(model)
    inputs = inspect.signature(model.forward if task is None else task.forward).parameters
    takes_any = all(parameter.kind is parameter.VAR_KEYWORD for parameter in inputs.values())
    spans = ("start_positions", "end_positions")
    labels = getattr(task, "labels", None) or [name for name in inputs if "label" in name or name in spans]
    return list(inputs), takes_any, list(labels)


def all_callbacks(args: TrainingArguments, given: list[Any]) -> list[Any]:
    """The trainer's own callbacks around those that were given; one process alone tells people how it goes."""
    if args.process_index:
        return [DefaultFlowCallback, *given]
    reports: list[Any] = []
    if args.report_to:
        from transept.training.callbacks.reports import report_callbacks  # it asks for the programs that show runs

        reports = report_callbacks([*args.report_to])
    return [DefaultFlowCallback, *reports, *given, PrinterCallback if args.disable_tqdm else ProgressCallback]


def new_state(args: TrainingArguments, callbacks: list[Any]) -> TrainerState:
    """The state of a run that begins, whose checkpoints keep what these callbacks note."""
    return TrainerState(
        stateful_callbacks=[callback for callback in callbacks if isinstance(callback, ExportableState)],
        train_batch_size=args.train_batch_size,
        is_local_process_zero=args.local_process_index == 0,
        is_world_process_zero=args.process_index == 0,
    )


def freeze_for_schedule(model: nn.Module, args: TrainingArguments) -> None:
    """Freeze what ``freeze`` says and all that ``unfreeze_schedule`` does not begin with."""
    freeze(own_task(model, "freeze"), *([] if args.freeze is None else [args.freeze]))
    unfreeze_at(model, args.unfreeze_schedule, 0)


def unfreeze_at(model: nn.Module, schedule: Any, epoch: int) -> None:
    """Unfreeze what the schedule says for an epoch that begins."""
    if schedule is not None:
        unfreeze_until(own_task(model, "unfreeze_schedule"), schedule, epoch)


def make_optimizer_of(
    model: nn.Module, args: TrainingArguments, form: Form, kind: Any, options: dict[str, Any], decayed: list[str]
) -> Any:
    """The optimizer of a model's groups of parameters, of which weight decay applies to those that are ``decayed``."""
    rates = None
    if args.layerwise_lr_decay is not None:
        rates = layerwise_rates(layer_groups(own_task(model, "layerwise_lr_decay")), args.layerwise_lr_decay)
    groups = parameter_groups(model, options.get("lr", args.learning_rate), args.weight_decay, decayed, rates)
    return make_optimizer(kind, groups, options, form.optimizer)


def make_schedule(args: TrainingArguments, optimizer: Any, updates: int) -> Any:
    """The schedule of the learning rate over so many updates."""
    options = cast("dict[str, Any] | None", args.lr_scheduler_kwargs)
    return get_scheduler(args.lr_scheduler_type, optimizer, args.get_warmup_steps(updates), updates, options)


@contextlib.contextmanager
def prepared(model: nn.Module, args: TrainingArguments, *, recomputes: bool) -> Iterator[None]:
    """The model as the arguments say while it is trained; ``recomputes`` as ``activation_checkpointing`` does."""
    task = task_of(model)
    with contextlib.ExitStack() as undo:
        if args.freeze is not None and args.unfreeze_schedule is None:
            freeze(own_task(model, "freeze"), args.freeze)
        if args.activation_checkpointing or recomputes:
            if not hasattr(model, "gradient_checkpointing_enable"):
                hint = "Leave out `gradient_checkpointing`."
                raise UnsupportedError(f"{type(model).__name__} cannot recompute its activations.", hint=hint)
            own: Any = model
            own.gradient_checkpointing_enable(gradient_checkpointing_kwargs=args.activation_checkpointing_kwargs or None)
            undo.callback(own.gradient_checkpointing_disable)
        for stack in () if args.use_cache or task is None else task.stacks:
            undo.callback(setattr, stack, "spares_cache", stack.spares_cache)
            stack.spares_cache = True
        if args.neftune_noise_alpha:
            undo.callback(add_embedding_noise(model, args.neftune_noise_alpha).remove)
        if args.torch_compile:
            # Each layer of a model of ours by itself, for any length; of another model, the whole.
            blocks = [model] if task is None else [layer for stack in task.stacks for layer in stack.layers]
            for block in blocks:
                block.compile(backend=args.torch_compile_backend or "inductor", mode=args.torch_compile_mode, dynamic=True)
        yield


def to_device(value: Any, device: torch.device) -> Any:
    """The same with its tensors on a device."""
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, Mapping):
        return {name: to_device(inner, device) for name, inner in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(to_device(inner, device) for inner in value)
    return value
