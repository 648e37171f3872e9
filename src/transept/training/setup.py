"""What is made and done before a model is trained: its optimizer and schedule, and what is undone afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from transept.adapt.freeze import freeze, layer_groups, unfreeze_until
from transept.adapt.neftune import add_embedding_noise
from transept.core.model import Model
from transept.errors import UnsupportedError
from transept.parallel.forms import Form
from transept.training.arguments.training import TrainingArguments
from transept.training.objective import task_of
from transept.training.optim.optimizers import layerwise_rates, make_optimizer, parameter_groups
from transept.training.optim.schedules import get_scheduler

_ALIGNMENT = 64  # of PyTorch's own memory, in bytes


def own_task(model: nn.Module, setting: str) -> Model:
    """The model of this library, which a setting needs (``UnsupportedError``: it is another's)."""
    task = task_of(model)
    if task is None:
        raise UnsupportedError(f"`{setting}` needs a model of this library, and {type(model).__name__} is none.")
    return task


def freeze_parts(model: nn.Module, what: Any, schedule: Any) -> None:
    """Freeze what the settings say; with a schedule all, but for what it begins with."""
    if what is not None or schedule is not None:
        task = own_task(model, "freeze")
        freeze(task, *([] if what is None else [what]))
        unfreeze_at(model, schedule, 0)


def unfreeze_at(model: nn.Module, schedule: Any, epoch: int) -> None:
    """Unfreeze what the schedule says for an epoch that begins."""
    if schedule is not None:
        unfreeze_until(own_task(model, "unfreeze_schedule"), schedule, epoch)


def make_optimizer_of(
    model: nn.Module, args: TrainingArguments, form: Form, kind: Any, options: dict[str, Any], decayed: list[str]
) -> Any:
    """The optimizer of a model's groups of parameters.

    Args:
        kind, options: its class, and what it is made with.
        decayed: names of the parameters that weight decay applies to.
    """
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
    """The model as the arguments say while it is trained.

    Args:
        recomputes: whether activations are recomputed whatever ``activation_checkpointing`` says.
    """
    with contextlib.ExitStack() as undo:
        _prepare(model, args, args.activation_checkpointing or recomputes, undo)
        yield


def _prepare(model: nn.Module, args: TrainingArguments, recomputes: bool, undo: contextlib.ExitStack) -> None:
    if args.unfreeze_schedule is None:
        freeze_parts(model, args.freeze, None)
    if recomputes:
        if not hasattr(model, "gradient_checkpointing_enable"):
            hint = "Leave out `gradient_checkpointing`."
            raise UnsupportedError(f"{type(model).__name__} cannot recompute its activations.", hint=hint)
        options = args.activation_checkpointing_kwargs or None
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)  # type: ignore[operator]  # a method
        undo.callback(model.gradient_checkpointing_disable)  # type: ignore[arg-type]  # a method too
    if not args.use_cache and (task := task_of(model)) is not None:
        for stack in task.stacks:
            undo.callback(setattr, stack, "spares_cache", stack.spares_cache)
            stack.spares_cache = True
    if args.neftune_noise_alpha:
        undo.callback(add_embedding_noise(model, args.neftune_noise_alpha).remove)
    if args.torch_compile:
        compile_blocks(model, args.torch_compile_backend or "inductor", args.torch_compile_mode)


def align(model: nn.Module) -> None:
    """Let weights of the CPU begin where new ones do, which those of a mapped file need not.

    On some processors the place of a matrix decides in which order products are summed, and so their last bits: a run that goes
    on would not be the run that was not interrupted.
    """
    for weight in model.parameters():
        if weight.device.type == "cpu" and type(weight.data) is Tensor and weight.data_ptr() % _ALIGNMENT:
            weight.data = weight.data.clone()


def compile_blocks(model: nn.Module, backend: str, mode: str | None) -> None:
    """Compile each layer of a model of ours by itself, for any length; of another model, the whole."""
    task: Any = task_of(model)
    blocks = [model] if task is None else [layer for stack in task.stacks for layer in stack.layers]
    for block in blocks:
        block.compile(backend=backend, mode=mode, dynamic=True)


def to_device(found: Any, device: torch.device) -> Any:
    """The same with its tensors on a device."""
    if isinstance(found, Tensor):
        return found.to(device, non_blocking=True)
    if isinstance(found, Mapping):
        return {name: to_device(each, device) for name, each in found.items()}
    if isinstance(found, tuple | list):
        return type(found)(to_device(each, device) for each in found)
    return found


@torch.no_grad()
def copy_weights(weights: Mapping[str, Tensor], model: nn.Module) -> None:
    """Put weights into the model's parameters of the same names."""
    own = dict(model.named_parameters())
    for name, weight in weights.items():
        own[name].copy_(weight)
