"""What is done to a model before it is trained, and undone afterwards; and moving batches to its device."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from transept.adapt.freeze import freeze, unfreeze_until
from transept.adapt.neftune import add_embedding_noise
from transept.core.model import Model
from transept.errors import UnsupportedError
from transept.training.counts import task_of

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


def own_passes(trainer: Any, base: type) -> list[str]:
    """What a trainer has in the place of a model's own loss, or of the passes of the class ``base``."""
    methods = ("compute_loss", "training_step", "prediction_step")
    own = [name for name in methods if getattr(type(trainer), name) is not getattr(base, name)]
    own += [] if trainer.compute_loss_func is None else ["compute_loss_func"]
    return [*own, "predict_with_generate"] if getattr(trainer.args, "predict_with_generate", False) else own


def prepare(trainer: Any, undo: contextlib.ExitStack) -> None:
    """Set up the model as the arguments say; ``undo`` gets what puts it back."""
    args, model = trainer.args, trainer.model
    align(model)
    if args.unfreeze_schedule is None:
        freeze_parts(model, args.freeze, None)
    if args.activation_checkpointing or trainer.devices.recomputes:
        if not hasattr(model, "gradient_checkpointing_enable"):
            hint = "Leave out `gradient_checkpointing`."
            raise UnsupportedError(f"{type(model).__name__} cannot recompute its activations.", hint=hint)
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=args.activation_checkpointing_kwargs or None)
        undo.callback(model.gradient_checkpointing_disable)
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
