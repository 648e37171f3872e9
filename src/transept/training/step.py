"""The arithmetic of one update: counts first, then losses as shares of them, norms, and the optimizer's step.

An update has M micro-batches. The loss of a term is the sum of its items' losses over all micro-batches, divided by the
number of items in all of them; a term that is not additive is the mean of its parts' means. So the numbers of items are added
up before the first backward pass, and every micro-batch divides by them.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from transept.errors import InputError, UnsupportedError
from transept.objectives.classification import IGNORED, cross_entropy
from transept.objectives.terms import LossTerm, total
from transept.parallel.forms import Form
from transept.training.counts import counts_of, task_of

Counts = dict[str, float]


@dataclass(frozen=True)
class Shares:
    """The numbers of items in the micro-batches of an update, by term; ``None`` for a micro-batch that nobody can count.

    Args:
        counts: those of all processes, the first one's before the second's.
        own: where this process's begin.
    """

    counts: list[Counts | None]
    own: int = 0

    @property
    def parts(self) -> int:
        """M, the number of micro-batches."""
        return len(self.counts)

    @property
    def items(self) -> Counts | None:
        """The items of each term in the whole update."""
        known = [each for each in self.counts if each is not None]
        if len(known) < len(self.counts) or not any(known):
            return None
        return {name: sum(each.get(name, 0.0) for each in known) for name in dict.fromkeys(n for k in known for n in k)}

    @property
    def empty(self) -> bool:
        """Whether there is nothing to learn from: no term has an item."""
        known = [each for each in self.counts if each]
        return bool(known) and len(known) == len(self.counts) and not any(sum(each.values()) for each in known)

    def share(self, part: int) -> float:
        """What the mean of this process's micro-batch counts for: its share of the items, 1 / M where they are not known."""
        if any(not each for each in self.counts):
            return 1.0 / self.parts
        sums = [sum((each or {}).values()) for each in self.counts]
        return sums[self.own + part] / (sum(sums) or 1.0)


def count_items(model: nn.Module, inputs: Mapping[str, Any], label_names: Iterable[str]) -> Counts | None:
    """The items of each term of the loss: by the model where it is ours, else the labels that are not ignored."""
    found = counts_of(model, dict(inputs))
    if found is not None:
        return {name: float(count) for name, count in found.items()}
    labels = [inputs.get(name) for name in label_names]
    tensors = [each for each in labels if isinstance(each, Tensor)]
    if not labels or len(tensors) < len(labels):
        return None
    real = [each.numel() if each.is_floating_point() else int(each.ne(IGNORED).sum()) for each in tensors]
    return {"labels": float(sum(real))}


def takes_items(function: Callable[..., Any]) -> bool:
    """Whether a function names ``num_items_in_batch`` among its arguments: then it divides by it."""
    return "num_items_in_batch" in inspect.signature(function).parameters


def smoothed(model: nn.Module, outputs: Any, labels: Tensor, smoothing: float) -> dict[str, LossTerm]:
    """The cross-entropy with smoothed labels (Szegedy et al. 2016), in place of a task's own loss.

    Raises:
        UnsupportedError: a task without logits of classes.
    """
    logits = outputs.get("logits") if isinstance(outputs, Mapping) else outputs[0]
    if not isinstance(logits, Tensor) or labels.is_floating_point():
        hint = "Leave out `label_smoothing_factor`."
        raise UnsupportedError("labels can be smoothed where one class is right for each, and not in this task.", hint=hint)
    task = task_of(model)
    targets = getattr(task, "targets", None)
    name = next(iter(counts_of(model, {"labels": labels}) or {}), "labels")
    return {name: cross_entropy(logits, labels if targets is None else targets(labels, logits), smoothing=smoothing)}


def loss_of(outputs: Any, inputs: Mapping[str, Any], items: Counts | None, parts: int) -> Tensor:
    """The loss in a model's outputs, divided by the items of the update where they are given.

    Raises:
        InputError: there is none.
    """
    terms = getattr(outputs, "loss_terms", None) if isinstance(outputs, Mapping) else None
    if terms is not None and items is not None:
        return total(terms, items, parts=parts)
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs[0]
    if not isinstance(loss, Tensor):
        what = f"the model gave no loss; the inputs were {', '.join(inputs)}."
        raise InputError(what, hint="Rows need labels, under the names that the model takes.")
    return loss.mean() if loss.ndim else loss  # `DataParallel` gives that of each device


@contextlib.contextmanager
def precision(args: Any) -> Iterator[None]:
    """The mixed precision that the arguments ask for."""
    kind = torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else None
    if kind is None:
        yield
        return
    with torch.autocast(args.device.type, dtype=kind):
        yield


class Gradients:
    """The gradients of an update: their norm, clipping, and the optimizer's step with them.

    Args:
        optimizer: whose parameters they are of.
        max_norm: their norm is scaled down to it; 0 leaves them.
        scaler: that of 16-bit floats, where these are used.
        form: how the processes hold the model.
    """

    def __init__(self, optimizer: Any, max_norm: float, scaler: Any, form: Form) -> None:
        self.optimizer, self.max_norm, self.scaler, self.form = optimizer, max_norm, scaler, form

    @property
    def parameters(self) -> list[Tensor]:
        """Those that have gradients, each once."""
        groups = self.optimizer.param_groups
        return [weight for group in groups for weight in group["params"] if weight.grad is not None]

    def limit(self) -> float:
        """Clip the gradients; returns their norm before."""
        weights = self.parameters
        if self.scaler is not None and weights:
            self.scaler.unscale_(self.optimizer)
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        norm = self.form.norm(gradients)
        found = float(norm)
        # What is not above the limit would be multiplied by one.
        if gradients and self.max_norm > 0 and math.isfinite(found) and self.max_norm < found + 1e-6:
            self.form.scale(gradients, self.max_norm / (norm + 1e-6))
        return found

    def apply(self) -> bool:
        """Let the optimizer make its step; ``False`` where the scaler left it out."""
        if self.scaler is None:
            self.optimizer.step()
            return True
        before = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return bool(self.scaler.get_scale() >= before)
