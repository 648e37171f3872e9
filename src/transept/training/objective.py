"""What a run learns: the items of a batch, the terms of its loss, and how its rows can be divided."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from transept.core.model import Model
from transept.errors import InputError, UnsupportedError
from transept.objectives.classification import IGNORED
from transept.objectives.terms import LossTerm

Batch = Mapping[str, Any]
Counts = dict[str, float]

LABELS_NEEDED = "Rows need labels, under the names that the model takes."


def task_of(model: nn.Module) -> Model | None:
    """The model of this library inside wrappers such as peft's or ``DistributedDataParallel``; ``None`` in others.

    One whose forward pass a user wrote is another.
    """
    inner: Any = model
    while isinstance(inner, nn.Module) and not isinstance(inner, Model):
        parallel = isinstance(inner, nn.DataParallel | nn.parallel.DistributedDataParallel)
        peft = hasattr(inner, "peft_config")
        names = (*(("module",) if parallel else ()), "_orig_mod", *(("base_model", "model") if peft else ()))
        inner = next((inner._modules[name] for name in names if name in inner._modules), None)
    return inner if isinstance(inner, Model) and not inner.computes_otherwise() else None


def own_task(model: nn.Module, setting: str) -> Model:
    """The model of this library, which a setting needs (``UnsupportedError``: it is another's)."""
    task = task_of(model)
    if task is None:
        raise UnsupportedError(f"`{setting}` needs a model of this library, and {type(model).__name__} is none.")
    return task


def counts_of(model: nn.Module, inputs: dict[str, Any]) -> dict[str, Tensor] | None:
    """The items of each additive term of a model's loss; ``None`` where the model is not one of this library."""
    task = task_of(model)
    return None if task is None else task.count(inputs)


class Objective:
    """What a model learns of a batch; here, by its own loss.

    Args:
        model: the model that is trained, without wrappers that processes put around it.
        label_names: the inputs that are labels, of a model that is not of this library.
    """

    rows_apart: ClassVar[bool] = True  # rows of several batches may be put together anew: the loss is a sum over rows

    def __init__(self, model: nn.Module, label_names: Iterable[str] = ()) -> None:
        self.model, self.label_names = model, list(label_names)

    def count(self, batch: Batch) -> Counts | None:
        """The items of each term of the loss, before any forward pass; ``None`` where they cannot be counted."""
        counts = counts_of(self.model, dict(batch))
        if counts is not None:
            return {name: float(count) for name, count in counts.items()}
        labels: list[Any] = [batch.get(name) for name in self.label_names]
        if not labels or not all(isinstance(label, Tensor) for label in labels):
            return None
        real = [label.numel() if label.is_floating_point() else int(label.ne(IGNORED).sum()) for label in labels]
        return {"labels": float(sum(real))}

    def terms(self, model: nn.Module, batch: Batch) -> dict[str, LossTerm]:
        """The terms of the loss of a batch, of a forward pass by ``model``, which may be wrapped."""
        terms: dict[str, LossTerm] | None = model(**batch).loss_terms
        if terms is None:
            raise InputError(f"the model gave no loss; the inputs were {', '.join(batch)}.", hint=LABELS_NEEDED)
        return terms

    def divide(self, batch: Batch) -> tuple[Batch, Batch] | str:
        """The two halves of a batch's rows, whose losses add up to that of all; or why there are none."""
        reason = unsummed_rows(self.model)
        return halves(batch, task_of(self.model)) if reason is None else reason

    def rows(self, batch: Batch) -> int:
        """B, by the first of the inputs that has one entry for each row; -1 where none has."""
        return count_rows(batch, task_of(self.model))

    def passes(self, batch: Batch) -> int:
        """How many backward passes a batch takes; for more than one there is ``begin``."""
        return 1

    def begin(
        self, model: nn.Module, batch: Batch, items: Counts | None, parts: int, passes: int
    ) -> tuple[Tensor, Iterator[Tensor]]:
        """The loss of a batch that takes several passes, and a scalar for each of them.

        The scalars' gradients add up to the loss's. Each scalar is the result of a forward pass, which is made when
        the scalar is asked for; the caller makes the backward pass. ``passes`` is at least ``passes(batch)``, as many
        as other processes make; for ``items`` and ``parts`` see :func:`transept.objectives.terms.total`.
        """
        raise NotImplementedError


def unsummed_rows(model: nn.Module) -> str | None:
    """Why the loss of a batch is not the sum of those of its rows, if something in the model makes it so."""
    if any(getattr(getattr(module, "config", None), "stateful", True) for module in carriers(model).values()):
        return "its rows go on where those of the last batch ended"
    for path, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
            return f"the batch normalisation {path!r} reads all of them"
    return None


def carriers(model: nn.Module) -> dict[str, Any]:
    """The modules that go on where their last batch ended, by path: their states are in ``carried``, by layer."""
    modules = model.named_modules()
    return {path: module for path, module in modules if isinstance(getattr(module, "carried", None), dict)}


def count_rows(batch: Batch, task: Model | None = None) -> int:
    """B, by the first of the inputs that has one entry for each row; -1 where none has."""
    return next((number for _, number in _entries(batch, task)), -1)


def halves(batch: Batch, task: Model | None = None) -> tuple[Batch, Batch] | str:
    """The first and the second half of the rows, as ``task`` reads them; or why they cannot be told apart."""
    rows = count_rows(batch, task)
    if rows < 2:
        return "a single row is too large"
    for name, number in _entries(batch, task):
        if number != rows:
            return f"`{name}` has {number} entries, which cannot be told apart by rows"
    middle = (rows + 1) // 2
    return rows_between(batch, 0, middle, task), rows_between(batch, middle, rows, task)


def rows_between(batch: Batch, start: int, stop: int, task: Model | None = None) -> dict[str, Any]:
    others = {} if task is None else task.inputs_of_rows(batch, start, stop)
    cut = operator.itemgetter(slice(start, stop))
    return {name: others[name] if name in others else _map_rows(value, cut) for name, value in batch.items()}


def _entries(batch: Batch, task: Model | None) -> Iterator[tuple[str, int]]:
    others = {} if task is None else task.inputs_of_rows(batch, 0, 0)
    for name, value in batch.items():
        entries = list[Any]()
        if name not in others:
            _map_rows(value, entries.append)
        yield from ((name, len(entry)) for entry in entries)


def _map_rows(value: Any, change: Callable[[Any], Any]) -> Any:
    """Change each tensor, array or list that has an entry for each row, also within mappings and tuples."""
    if isinstance(value, Mapping):
        return {name: _map_rows(inner, change) for name, inner in value.items()}
    if isinstance(value, tuple) and any(isinstance(inner, Tensor | tuple) for inner in value):  # as states of layers
        return tuple(_map_rows(inner, change) for inner in value)
    has_rows = isinstance(value, list | tuple) or (isinstance(value, Tensor | np.ndarray) and value.ndim > 0)
    return change(value) if has_rows else value


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in nested tuples, lists and mappings."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping | tuple | list):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from tensors_in(inner)


def to_device(value: Any, device: torch.device) -> Any:
    """The same with its tensors on a device."""
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, Mapping):
        return {name: to_device(inner, device) for name, inner in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(to_device(inner, device) for inner in value)
    return value
