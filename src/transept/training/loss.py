"""The loss of a micro-batch, and what its pass counts for in the update."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from transept.environment import tiles
from transept.errors import InputError, TrainingError, UnsupportedError, refuse
from transept.objectives.classification import cross_entropy
from transept.objectives.terms import LossTerm, total
from transept.training.objective import LABELS_NEEDED, Batch, Counts, counts_of, task_of

LESS_MEMORY = "Use a smaller `per_device_train_batch_size`, gradient_checkpointing, shorter rows, or a smaller model."


@dataclass
class PassShare:
    """What the pass that is being made counts for in its update."""

    parts: int = 1  # M, the micro-batches of all processes
    batch: float = 1.0  # the micro-batch's share of the items
    is_real: bool = True  # else it only keeps processes in step, and changes nothing
    is_divided: bool = False  # whether its loss was divided by the items of the whole update
    rows_are_divided: bool = False  # whether micro-batches were halved after running out of memory

    @property
    def loss(self) -> float:
        """The factor of its loss."""
        return float(self.is_real) if self.is_divided else self.batch

    def counts(self, items: Any) -> Any:
        """The items by term, as far as they are known, for a loss that is divided by them."""
        self.is_divided = items is not None
        return items.terms if isinstance(items, NumItems) else items


class NumItems(Tensor):
    """``num_items_in_batch`` as losses of users get it: the items of the whole update, a scalar.

    A loss that reads it is divided by it, and is added up as it is; one that does not is the mean of its micro-batch, of
    which the trainer takes a share. Where a loss has several terms, it is the number of the one with most items.
    """

    terms: Counts
    share: PassShare

    @classmethod
    def of(cls, terms: Counts | None, share: PassShare, device: torch.device) -> NumItems | None:
        if not terms:
            return None
        number = torch.tensor(max(1.0, *terms.values()), device=device).as_subclass(cls)
        number.terms, number.share = terms, share
        return number

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in pytree.tree_leaves((args, kwargs)):
            if isinstance(value, NumItems) and hasattr(value, "share"):
                value.share.is_divided = True
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def with_items(function: Callable[..., Any], items: Any) -> dict[str, Any]:
    """``num_items_in_batch`` for a function that takes it."""
    parameters = inspect.signature(function).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return {"num_items_in_batch": items} if takes_any or "num_items_in_batch" in parameters else {}


def smoothed(model: nn.Module, outputs: Any, labels: Tensor, smoothing: float) -> dict[str, LossTerm]:
    """The cross-entropy with smoothed labels (Szegedy et al. 2016), for tasks with logits of classes."""
    logits = outputs.get("logits") if isinstance(outputs, Mapping) else outputs[0]
    if not isinstance(logits, Tensor) or labels.is_floating_point():
        what = "labels can be smoothed where one class is right for each, and not in this task."
        raise UnsupportedError(what, hint="Leave out `label_smoothing_factor`.")
    targets = getattr(task_of(model), "targets", None)
    name = next(iter(counts_of(model, {"labels": labels}) or {}), "labels")
    return {name: cross_entropy(logits, labels if targets is None else targets(labels, logits), smoothing=smoothing)}


def loss_of(outputs: Any, inputs: Batch, items: Any, share: PassShare) -> Tensor:
    """The loss in a model's outputs (``InputError``: there is none), divided by the items of the update if it can be."""
    terms = getattr(outputs, "loss_terms", None) if isinstance(outputs, Mapping) else None
    if terms is not None and items is not None:
        return total(terms, share.counts(items), parts=share.parts)
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
