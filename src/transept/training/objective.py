"""What a run learns: the items that a batch has, the terms of its loss, and how its rows can be divided."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
from torch import Tensor, nn

from transept.core.model import Model
from transept.errors import InputError
from transept.objectives.classification import IGNORED
from transept.objectives.terms import LossTerm

Batch = Mapping[str, Any]
Counts = dict[str, float]


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


class Objective:
    """What a model learns of a batch; here, by its own loss.

    Args:
        model: what is trained, without wrappers that processes put around it.
        label_names: the inputs that are labels, of a model that is not of this library.

    ``rows_apart`` tells whether rows of several batches may be put together anew, where the model's loss is a sum over rows.
    """

    rows_apart: ClassVar[bool] = True

    def __init__(self, model: nn.Module, label_names: Iterable[str] = ()) -> None:
        self.model, self.label_names = model, list(label_names)

    def count(self, batch: Batch) -> Counts | None:
        """The items of each term of the loss, before any forward pass; ``None`` where nobody can count them."""
        counts = counts_of(self.model, dict(batch))
        if counts is not None:
            return {name: float(count) for name, count in counts.items()}
        labels = [batch.get(name) for name in self.label_names]
        tensors = [each for each in labels if isinstance(each, Tensor)]
        if not labels or len(tensors) < len(labels):
            return None
        real = [each.numel() if each.is_floating_point() else int(each.ne(IGNORED).sum()) for each in tensors]
        return {"labels": float(sum(real))}

    def terms(self, model: nn.Module, batch: Batch) -> dict[str, LossTerm]:
        """The terms of the loss of a batch, of a forward pass by ``model``, which may be wrapped."""
        terms: dict[str, LossTerm] | None = model(**batch).loss_terms
        if terms is None:
            what = f"the model gave no loss; the inputs were {', '.join(batch)}."
            raise InputError(what, hint="Rows need labels, under the names that the model takes.")
        return terms

    def divide(self, batch: Batch) -> tuple[Batch, Batch] | str:
        """The first and the second half of a batch's rows, the sum of whose losses is that of all; or why there are none."""
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

        The sum of the scalars' gradients is the loss's. Each scalar is what a forward pass gave, which is made when it is
        asked for; who asks makes the backward pass.

        Args:
            items, parts: see :func:`transept.objectives.terms.total`.
            passes: at least ``passes(batch)``; as many as other processes make.
        """
        raise NotImplementedError


# --- rows ---------------------------------------------------------------------------------------------------------------


def unsummed_rows(model: nn.Module) -> str | None:
    """Why the loss of a batch is not the sum of those of its rows, if that is so: what a model does beside its loss."""
    if any(getattr(getattr(module, "config", None), "stateful", True) for module in carriers(model).values()):
        return "its rows go on where those of the last batch ended"
    norms = (nn.modules.batchnorm._BatchNorm,)
    path = next((path for path, each in model.named_modules() if isinstance(each, norms) and each.training), None)
    return None if path is None else f"the batch normalisation {path!r} reads all of them"


def carriers(model: nn.Module) -> dict[str, Any]:
    """The modules that go on where their last batch ended, by path: their states are in ``carried``, by layer."""
    return {path: each for path, each in model.named_modules() if isinstance(getattr(each, "carried", None), dict)}


def count_rows(batch: Batch, task: Model | None = None) -> int:
    """B, by the first of the inputs that has one entry for each row; -1 where none has."""
    return next((number for _, number in _entries(batch, task)), -1)


def halves(batch: Batch, task: Model | None = None) -> tuple[Batch, Batch] | str:
    """The first and the second half of the rows; or why they cannot be told apart.

    Args:
        batch: inputs by name.
        task: the model that reads them: it knows of inputs that have other than one entry for each row.
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
    beside = {} if task is None else task.inputs_of_rows(batch, start, stop)
    return {name: beside[name] if name in beside else _slice(value, start, stop) for name, value in batch.items()}


def _entries(batch: Batch, task: Model | None) -> Iterator[tuple[str, int]]:
    """The numbers of entries of all inputs that should have one for each row, with their names."""
    beside = {} if task is None else task.inputs_of_rows(batch, 0, 0)
    for name, value in batch.items():
        if name not in beside:
            yield from ((name, number) for number in _lengths(value))


def _lengths(value: Any) -> Iterator[int]:
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from _lengths(inner)
    elif _is_nested(value):
        for inner in value:
            yield from _lengths(inner)
    elif _is_by_row(value):
        yield len(value)


def _slice(value: Any, start: int, stop: int) -> Any:
    if isinstance(value, Mapping):
        return {name: _slice(inner, start, stop) for name, inner in value.items()}
    if _is_nested(value):
        return tuple(_slice(inner, start, stop) for inner in value)
    return value[start:stop] if _is_by_row(value) else value


def _is_nested(value: Any) -> bool:
    """Whether it is a tuple of inputs, as states of layers are; lists are by row."""
    return isinstance(value, tuple) and any(isinstance(inner, Tensor | tuple) for inner in value)


def _is_by_row(value: Any) -> bool:
    return isinstance(value, list | tuple) or (isinstance(value, Tensor | np.ndarray) and value.ndim > 0)
