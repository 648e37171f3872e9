"""The loss of a micro-batch, and what its pass counts for in the update."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from transept import tiles
from transept.errors import InputError, TrainingError, UnsupportedError, refuse
from transept.objectives.classification import cross_entropy
from transept.objectives.terms import LossTerm, total
from transept.training.objective import LABELS_NEEDED, Batch, Counts, counts_of, task_of

LESS_MEMORY = "Use a smaller `per_device_train_batch_size`, gradient_checkpointing, shorter rows, or a smaller model."


@dataclass
class PassShare:
    """What the pass that is being made counts for in its update."""

    parts: int = 1  # M, the micro-batches of all processes
    loss: float = 1.0  # the factor of its loss: 1 where the update's items divide it, 0 where it changes nothing
    batch: float = 1.0  # the micro-batch's share of the items
    rows_are_divided: bool = False  # whether micro-batches were halved after running out of memory


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
        raise InputError(f"the model gave no loss; the inputs were {', '.join(inputs)}.", hint=LABELS_NEEDED)
    return loss.mean() if loss.ndim else loss  # `DataParallel` gives that of each device


def precision(args: Any) -> AbstractContextManager[Any]:
    """The mixed precision that the arguments ask for."""
    dtype = torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else None
    if dtype is None:
        return nullcontext()
    if args.device.type == "cpu":
        tiles.check()
    return torch.autocast(args.device.type, dtype=dtype)


def check_sums(terms: Mapping[str, LossTerm]) -> None:
    """Refuse terms of a loss that are no sums over rows, after the rows were divided (``TrainingError``)."""
    for name, term in terms.items():
        what = f"there is too little memory for a micro-batch, and its loss has {name!r}, which is no sum over rows."
        refuse(not term.additive, what, LESS_MEMORY, TrainingError)
