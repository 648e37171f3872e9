"""The loss of a micro-batch: the model's own or the user's, what it is divided by, and what its pass counts for."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from transept import tiles
from transept.errors import InputError, UnsupportedError
from transept.heads.task import loss_alone
from transept.objectives.classification import cross_entropy
from transept.objectives.terms import LossTerm, total
from transept.training.adversarial import Perturbation
from transept.training.arguments.training import TrainingArguments
from transept.training.objective import Counts, counts_of, task_of
from transept.training.out_of_memory import check_sums


@dataclass
class PassShare:
    """What the pass that is being made counts for in its update.

    Args:
        parts: M, the micro-batches of all processes.
        loss: what its loss is multiplied by; 1 where it is divided by the items of the update, 0 where it changes nothing.
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
        by_items: whether the loss is divided by the items of the whole update; else it is the mean of its micro-batch.
        may_cut: whether nobody but the model sees the micro-batches, so that rows may be put together anew.
        undivided: why the rows of a micro-batch may not be halved; ``None`` where they may.
    """

    by_items: bool
    may_cut: bool
    undivided: str | None

    @classmethod
    def of(
        cls,
        model: nn.Module,
        own_passes: Collection[str],
        function: Callable[..., Any] | None,
        perturbation: Perturbation | None,
        by_items: bool | None,
    ) -> LossRules:
        """Those of a trainer whose methods and arguments named ``own_passes`` take the place of ours.

        ``function`` is its ``compute_loss_func``, and ``by_items`` what its class says itself, if it does.
        """
        if by_items is None:
            divides = task_of(model) is not None if function is None else takes_items(function)
            by_items = "compute_loss" not in own_passes and divides
        by_row = perturbation is None or perturbation.by_row
        undivided = None
        if "training_step" in own_passes:
            undivided = "`training_step` is overridden, which may need all of them"
        elif not by_items:
            undivided = "its loss is not known to be a sum over rows"
        elif perturbation is not None and not by_row:
            undivided = f"the loss of {perturbation.kind!r} adversarial training is no sum over rows"
        own_loss = {"training_step", "compute_loss", "compute_loss_func"} & {*own_passes}
        return cls(by_items, by_row and not own_loss, undivided)


def micro_batch_loss(
    model: nn.Module,
    inputs: dict[str, Any],
    items: Counts | None,
    share: PassShare,
    args: TrainingArguments,
    function: Callable[..., Tensor] | None,
    *,
    with_outputs: bool,
) -> tuple[Tensor, Any]:
    """The loss of a micro-batch, and the model's outputs.

    Args:
        items: the items of each term in the whole update, where the loss is divided by them.
        args: whose ``label_smoothing_factor`` takes the place of the model's loss.
        function: ``compute_loss_func``, which takes it too.
        with_outputs: whether somebody reads the outputs.
    """
    labels, smoothing = None, args.label_smoothing_factor
    if "labels" in inputs and (smoothing or function is not None):
        inputs = {**inputs}
        labels = inputs.pop("labels")
        task: Any = task_of(model)
        if "decoder_input_ids" not in inputs and hasattr(task, "prepare_decoder_input_ids_from_labels"):
            inputs["decoder_input_ids"] = task.prepare_decoder_input_ids_from_labels(labels)
    only_loss = not with_outputs and labels is None
    with loss_alone() if only_loss else contextlib.nullcontext():
        outputs = model(**inputs)
    if function is not None:
        number = None if items is None else torch.tensor(max(1.0, sum(items.values())), device=args.device)
        return function(outputs, labels, **({"num_items_in_batch": number} if takes_items(function) else {})), outputs
    if labels is not None:
        return total(smoothed(model, outputs, labels, smoothing), items, share.parts), outputs
    if share.rows_are_divided:
        check_sums(getattr(outputs, "loss_terms", None) or {})
    return loss_of(outputs, inputs, items, share.parts), outputs


def takes_items(function: Callable[..., Any]) -> bool:
    """Whether a function names ``num_items_in_batch`` among its arguments: then it divides by it."""
    return "num_items_in_batch" in inspect.signature(function).parameters


def smoothed(model: nn.Module, outputs: Any, labels: Tensor, smoothing: float) -> dict[str, LossTerm]:
    """The cross-entropy with smoothed labels (Szegedy et al. 2016), for tasks with logits of classes."""
    logits = outputs.get("logits") if isinstance(outputs, Mapping) else outputs[0]
    if not isinstance(logits, Tensor) or labels.is_floating_point():
        hint = "Leave out `label_smoothing_factor`."
        raise UnsupportedError("labels can be smoothed where one class is right for each, and not in this task.", hint=hint)
    task = task_of(model)
    targets = getattr(task, "targets", None)
    name = next(iter(counts_of(model, {"labels": labels}) or {}), "labels")
    return {name: cross_entropy(logits, labels if targets is None else targets(labels, logits), smoothing=smoothing)}


def loss_of(outputs: Any, inputs: Mapping[str, Any], items: Counts | None, parts: int) -> Tensor:
    """The loss in a model's outputs (``InputError``: there is none), divided by the items of the update where given."""
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


def backward(loss: Tensor, processes: int = 1, scaler: Any = None) -> None:
    """The backward pass of a loss, scaled for processes and for 16-bit floats."""
    whole = loss * processes  # PyTorch divides the sum over processes by their number
    (whole if scaler is None else scaler.scale(whole)).backward()
