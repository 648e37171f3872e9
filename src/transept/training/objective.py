"""What a run learns: the items of a batch, the terms of its loss, and how its rows can be divided."""

from __future__ import annotations

import contextlib
import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from transept import tiles
from transept.core.model import Model
from transept.errors import InputError, TrainingError, UnsupportedError
from transept.objectives.classification import IGNORED, cross_entropy
from transept.objectives.terms import LossTerm, total

Batch = Mapping[str, Any]
Counts = dict[str, float]

LESS_MEMORY = "Use a smaller `per_device_train_batch_size`, gradient_checkpointing, shorter rows, or a smaller model."
_LABELS_NEEDED = "Rows need labels, under the names that the model takes."


def task_of(model: nn.Module) -> Model | None:
    """The model of this library inside wrappers such as peft's or ``DistributedDataParallel``; ``None`` in others."""
    inner: Any = model
    while isinstance(inner, nn.Module) and not isinstance(inner, Model):
        parallel = isinstance(inner, nn.DataParallel | nn.parallel.DistributedDataParallel)
        peft = hasattr(inner, "peft_config")
        names = (*(("module",) if parallel else ()), "_orig_mod", *(("base_model", "model") if peft else ()))
        inner = next((inner._modules[name] for name in names if name in inner._modules), None)
    return inner if isinstance(inner, Model) else None


def own_task(model: nn.Module, setting: str) -> Model:
    """The model of this library, which a setting needs (``UnsupportedError``: it is another's)."""
    task = task_of(model)
    if task is None:
        raise UnsupportedError(f"`{setting}` needs a model of this library, and {type(model).__name__} is none.")
    return task


def counts_of(model: nn.Module, inputs: dict[str, Any]) -> dict[str, Tensor] | None:
    """How many items each additive term of a model's loss has in these inputs, by the term's name.

    ``None`` where they are not known: the model is not one of this library, nor a wrapper around one.
    """
    task = task_of(model)
    return None if task is None else task.count(inputs)


class Objective:
    """What a model learns of a batch; here, by its own loss.

    Args:
        model: the model that is trained, without wrappers that processes put around it.
        label_names: the inputs that are labels, of a model that is not of this library.

    ``rows_apart`` tells whether rows of several batches may be put together anew, where the loss is a sum over rows.
    """

    rows_apart: ClassVar[bool] = True

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
            raise InputError(f"the model gave no loss; the inputs were {', '.join(batch)}.", hint=_LABELS_NEEDED)
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
        the scalar is asked for; the caller makes the backward pass.

        Args:
            items, parts: see :func:`transept.objectives.terms.total`.
            passes: at least ``passes(batch)``; as many as other processes make.
        """
        raise NotImplementedError


@dataclass
class PassShare:
    """What the pass that is being made counts for in its update.

    Args:
        parts: M, the micro-batches of all processes.
        loss: the factor of its loss; 1 where it is divided by the items of the update, 0 where it changes nothing.
        batch: the micro-batch's share of the items.
        rows_are_divided: whether micro-batches were halved after running out of memory.
    """

    parts: int = 1
    loss: float = 1.0
    batch: float = 1.0
    rows_are_divided: bool = False


@dataclass(frozen=True)
class LossRules:
    """What may be done to the micro-batches of an update, by whose code computes their loss.

    Args:
        by_items: whether the loss is divided by the items of the whole update; else it is a mean over its micro-batch.
        may_cut: whether the model alone sees the micro-batches, so that rows may be put together anew.
        undivided: why the rows of a micro-batch may not be halved; ``None`` where they may.
    """

    by_items: bool
    may_cut: bool
    undivided: str | None


def takes_items(function: Callable[..., Any]) -> bool:
    """Whether a function names ``num_items_in_batch`` among its arguments: then it divides by it."""
    return "num_items_in_batch" in inspect.signature(function).parameters


def smoothed(model: nn.Module, outputs: Any, labels: Tensor, smoothing: float) -> dict[str, LossTerm]:
    """The cross-entropy with smoothed labels (Szegedy et al. 2016), for tasks with logits of classes."""
    logits = outputs.get("logits") if isinstance(outputs, Mapping) else outputs[0]
    if not isinstance(logits, Tensor) or labels.is_floating_point():
        what = "labels can be smoothed where one class is right for each, and not in this task."
        raise UnsupportedError(what, hint="Leave out `label_smoothing_factor`.")
    targets = getattr(task_of(model), "targets", None)
    name = next(iter(counts_of(model, {"labels": labels}) or {}), "labels")
    return {name: cross_entropy(logits, labels if targets is None else targets(labels, logits), smoothing=smoothing)}


def loss_of(outputs: Any, inputs: Batch, items: Counts | None, parts: int) -> Tensor:
    """The loss in a model's outputs (``InputError``: there is none), divided by the items of the update if given."""
    terms = getattr(outputs, "loss_terms", None) if isinstance(outputs, Mapping) else None
    if terms is not None and items is not None:
        return total(terms, items, parts=parts)
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs[0]
    if not isinstance(loss, Tensor):
        raise InputError(f"the model gave no loss; the inputs were {', '.join(inputs)}.", hint=_LABELS_NEEDED)
    return loss.mean() if loss.ndim else loss  # `DataParallel` gives that of each device


@contextlib.contextmanager
def precision(args: Any) -> Iterator[None]:
    """The mixed precision that the arguments ask for."""
    dtype = torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else None
    if dtype is None:
        yield
        return
    if args.device.type == "cpu":
        tiles.check()
    with torch.autocast(args.device.type, dtype=dtype):
        yield


def backward(loss: Tensor, processes: int = 1, scaler: Any = None) -> None:
    """The backward pass of a loss, scaled for processes and for 16-bit floats."""
    loss = loss * processes  # PyTorch divides the sum over processes by their number
    (loss if scaler is None else scaler.scale(loss)).backward()


def check_sums(terms: Mapping[str, LossTerm]) -> None:
    """Refuse terms of a loss that are no sums over rows, after the rows of a batch were divided (``TrainingError``)."""
    if names := [name for name, term in terms.items() if not term.additive]:
        what = f"there is too little memory for a micro-batch, and its loss has {names[0]!r}, which is no sum over rows."
        raise TrainingError(what, hint=LESS_MEMORY)


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
    """The first and the second half of the rows; or why they cannot be told apart.

    ``task`` is the model that reads them: it knows of inputs that have other than one entry for each row.
    """
    rows = count_rows(batch, task)
    if rows < 2:
        return "a single row is too large"
    for name, number in _entries(batch, task):
        if number != rows:
            return f"`{name}` has {number} entries, which cannot be told apart by rows"
    middle = (rows + 1) // 2
    return rows_between(batch, 0, middle, task), rows_between(batch, middle, rows, task)


def rows_between(batch: Batch, start: int, stop: int, task: Model | None = None) -> dict[str, Any]:
    """The rows of a batch from ``start`` to ``stop``."""
    others = {} if task is None else task.inputs_of_rows(batch, start, stop)
    cut = operator.itemgetter(slice(start, stop))
    return {name: others[name] if name in others else _map_rows(value, cut) for name, value in batch.items()}


def _entries(batch: Batch, task: Model | None) -> Iterator[tuple[str, int]]:
    """The numbers of entries of all inputs that should have one for each row, with their names."""
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
