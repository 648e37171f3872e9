"""What is set up around a model before it is trained, and undone afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from transept.adapt.freeze import freeze, unfreeze_until
from transept.adapt.neftune import add_embedding_noise
from transept.errors import UnsupportedError
from transept.training.arguments.training import TrainingArguments
from transept.training.callbacks.base import DefaultFlowCallback
from transept.training.callbacks.progress import PrinterCallback, ProgressCallback
from transept.training.objective import own_task, task_of


def all_callbacks(args: TrainingArguments, callbacks: list[Any]) -> list[Any]:
    """The trainer's own callbacks around those of the user; only the first process reports on the run."""
    if args.process_index:
        return [DefaultFlowCallback, *callbacks]
    reports: list[Any] = []
    if args.report_to:
        from transept.training.callbacks.reports import report_callbacks  # it asks for the programs that show runs

        reports = report_callbacks([*args.report_to])
    return [DefaultFlowCallback, *reports, *callbacks, PrinterCallback if args.disable_tqdm else ProgressCallback]


def unfreeze_at(model: nn.Module, schedule: Any, epoch: int) -> None:
    """Unfreeze what the schedule says for an epoch that begins."""
    if schedule is not None:
        unfreeze_until(own_task(model, "unfreeze_schedule"), schedule, epoch)


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
            checkpointed: Any = model
            options = args.activation_checkpointing_kwargs or None
            checkpointed.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
            undo.callback(checkpointed.gradient_checkpointing_disable)
        for stack in () if args.use_cache or task is None else task.stacks:
            undo.callback(setattr, stack, "spares_cache", stack.spares_cache)
            stack.spares_cache = True
        if args.neftune_noise_alpha:
            undo.callback(add_embedding_noise(model, args.neftune_noise_alpha).remove)
        if args.torch_compile:
            # Each layer of a model of ours by itself, for any length; of another model, the whole.
            blocks = [model] if task is None else [layer for stack in task.stacks for layer in stack.layers]
            backend, mode = args.torch_compile_backend or "inductor", args.torch_compile_mode
            for block in blocks:
                block.compile(backend=backend, mode=mode, dynamic=True)
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
