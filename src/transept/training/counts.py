"""The numbers of items in a batch, which every micro-batch of an update is divided by, before any forward pass."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from transept.core.model import Model


def task_of(model: nn.Module) -> Model | None:
    """The model of this library inside wrappers of it, such as peft's or ``DistributedDataParallel``; none in others."""
    inner: Any = model
    while isinstance(inner, nn.Module) and not isinstance(inner, Model):
        inner = _wrapped(inner)
    return inner if isinstance(inner, Model) else None


def _wrapped(model: nn.Module) -> Any:
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return model.module
    names = ("_orig_mod", *(("base_model", "model") if hasattr(model, "peft_config") else ()))  # torch.compile's, and peft's
    return next((model._modules[name] for name in names if name in model._modules), None)


def counts_of(model: nn.Module, inputs: dict[str, Any]) -> dict[str, Tensor] | None:
    """How many items each additive term of a model's loss has in these inputs, by the term's name.

    They are what the model's method ``count`` says. ``None`` says that nobody knows: the model is not one of this library.

    Args:
        model: a model, or a wrapper around one.
        inputs: those of a forward pass, by name.
    """
    task = task_of(model)
    return None if task is None else task.count(inputs)
