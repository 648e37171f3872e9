"""One update: what processes agree on before it, its passes, the norm of its gradients, and the optimizer's step.

An update has M micro-batches. The loss of a term is the sum of its items' losses over all micro-batches, divided by the
number of items in all of them; a term that is not additive is the mean of its parts' means. So the numbers of items are added
up before the first backward pass, and every micro-batch divides by them. Losses are scaled, and backward passes made, here
and nowhere else.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from transept import tiles
from transept.errors import InputError, UnsupportedError
from transept.objectives.classification import cross_entropy
from transept.objectives.terms import LossTerm, total
from transept.parallel.forms import Form
from transept.parallel.processes import Replicas, everywhere, gather_numbers
from transept.training.objective import Batch, Counts, Objective, counts_of, task_of

Signals = tuple[int, int]  # that of a process which is to end, and whether a checkpoint is asked for


@dataclass(frozen=True)
class Agreement:
    """What all processes know of an update before it begins.

    Args:
        items: the items of each term of the loss in the whole update; ``None`` where a micro-batch cannot be counted.
        counts: the items of all terms in each micro-batch of this process.
        parts: M, the number of micro-batches of all processes.
        most: the micro-batches of the process that has most of them.
        passes: the backward passes of each micro-batch.
        is_shared: whether each micro-batch is weighted by its items; else all weigh the same.
        flops, tokens: of all micro-batches.
        signals: what each process was told by signals.
    """

    items: Counts | None
    counts: list[float]
    parts: int
    most: int
    passes: int
    is_shared: bool
    flops: float
    tokens: int
    signals: list[Signals]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to learn from: no term has an item."""
        return self.items is not None and self.is_shared and not any(self.items.values())

    def share(self, part: int) -> float:
        """What the mean of this process's micro-batch counts for: its share of the items, 1 / M where they are not known."""
        if not self.is_shared:
            return 1.0 / self.parts
        return self.counts[part] / (sum((self.items or {}).values()) or 1.0)


@dataclass
class Agreeing:
    """Lets processes agree on updates, by one operation each.

    Args:
        objective: what counts the items of a batch.
        replicas: the processes that take other rows.
        tally: the operations and the tokens of a batch.
    """

    objective: Objective
    replicas: Replicas
    tally: Callable[[Batch], tuple[float, int]]
    terms: list[str] = field(default_factory=list)  # the terms of the loss, the same in all processes

    def on(self, batches: Sequence[Batch], signals: Signals) -> Agreement:
        """What the processes know of an update, of which this one has these micro-batches."""
        counts = [self.objective.count(batch) for batch in batches]
        names = {name for count in counts for name in count or ()}
        rows = gather_numbers(self._numbers(batches, counts, names, signals))
        if any(row[0] for row in rows):  # a term that not all processes know, as in the first update
            self.terms = sorted(set(self.terms).union(*everywhere(names)))
            rows = gather_numbers(self._numbers(batches, counts, names, signals))
        told = [(int(row[1]), int(row[2])) for row in rows]
        rows = self.replicas.among(rows)
        _, _, _, parts, unknown, unshared, _, flops, tokens, *items = (math.fsum(column) for column in zip(*rows))
        return Agreement(
            items=dict(zip(self.terms, items)) if self.terms and not unknown and unshared < parts else None,
            counts=[sum((count or {}).values()) for count in counts],
            parts=int(parts),
            most=int(max(row[3] for row in rows)),
            passes=int(max(row[6] for row in rows)),
            is_shared=not unshared,
            flops=flops,
            tokens=int(tokens),
            signals=told,
        )

    def _numbers(self, batches: Sequence[Batch], counts: list[Counts | None], names: set[str], signals: Signals) -> list[float]:
        """What this process tells the others: first whether its terms are known, then what the columns above are named."""
        tallies = [self.tally(batch) for batch in batches]
        return [
            float(not names <= set(self.terms)),
            *map(float, signals),
            float(len(batches)),
            float(sum(count is None for count in counts)),
            float(sum(not count for count in counts)),
            float(max((self.objective.passes(batch) for batch in batches), default=1)),
            sum(flops for flops, _ in tallies),
            float(sum(tokens for _, tokens in tallies)),
            *(math.fsum((count or {}).get(name, 0.0) for count in counts) for name in self.terms),
        ]


@dataclass
class Update:
    """What goes into one update in this process.

    Args:
        batches: the micro-batches; as many in every process.
        real: how many of them count; the others are run again so that the processes stay in step, and change nothing.
    """

    batches: list[Batch]
    real: int
    agreement: Agreement


@dataclass
class PassShare:
    """What the pass that is being made counts for in its update.

    Args:
        parts: M, the micro-batches of all processes.
        loss: what its loss is multiplied by; 1 where it is divided by the items of the update, 0 where it changes nothing.
        batch: the micro-batch's share of the items.
    """

    parts: int = 1
    loss: float = 1.0
    batch: float = 1.0


class Backward:
    """Makes the backward pass of a loss, scaled for processes and for 16-bit floats."""

    def __init__(self, processes: int = 1, scaler: Any = None) -> None:
        self.processes, self.scaler = processes, scaler

    def __call__(self, loss: Tensor) -> None:
        whole = loss * self.processes  # PyTorch divides the sum over processes by their number
        (whole if self.scaler is None else self.scaler.scale(whole)).backward()


class Passes:
    """The forward and backward passes of an update's micro-batches.

    Args:
        model: what is called, as the processes hold it.
        form: how they do.
        objective: what is learned.
        step: both passes of a micro-batch (model, inputs, items) -> its part of the update's loss.
        prepare: the inputs of a micro-batch as the model takes them.
        precision: makes the context of a forward pass.
        backward: makes backward passes.
    """

    def __init__(
        self,
        model: nn.Module,
        form: Form,
        objective: Objective,
        step: Callable[[nn.Module, Any, Counts | None], Tensor],
        prepare: Callable[[Any], Any],
        precision: Callable[[], contextlib.AbstractContextManager[Any]],
        backward: Backward,
    ) -> None:
        self.model, self.form, self.objective, self.step = model, form, objective, step
        self.prepare, self.precision, self.backward = prepare, precision, backward

    def make(self, batch: Batch, items: Counts | None, share: PassShare, passes: int, *, is_last: bool) -> Tensor:
        """The passes of a micro-batch, or of a part of one; its part of the update's loss, in float64.

        ``is_last`` tells that gradients are added up over processes behind it.
        """
        if passes > 1:
            return self._make_several(batch, items, share, passes, is_last).double()
        with self.form.added_up(self.model, is_last):
            usual = partial(self.step, self.model, batch, items)
            return self.form.passes(usual, batch, items, share.parts, share.loss).double()

    def _make_several(self, batch: Batch, items: Counts | None, share: PassShare, passes: int, is_last: bool) -> Tensor:
        if not self.model.training:
            self.model.train()
        inputs = self.prepare(batch)
        with self.precision():
            loss, losses = self.objective.begin(self.model, inputs, items, share.parts, passes)
        for number in range(passes):
            with self.form.added_up(self.model, is_last and number == passes - 1):
                with self.precision():
                    scalar = next(losses)
                self.backward(scalar * share.loss)
        return loss.detach() * share.loss


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
    if args.device.type == "cpu":
        tiles.check()
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
