"""Losses over classes: cross-entropy, binary ones, several labels at once, regression, spans, and balance of experts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial, singledispatch
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from transept.errors import InputError, InputTypeError
from transept.objectives.terms import LossTerm

IGNORED = -100

# How many logits are made at a time for a loss alone, and of how many the gradients are kept for the backward pass; where there
# would be more, the logits are made again then.
CHUNK, KEPT = 2**23, 2**28


class Entropy(torch.autograd.Function):
    """The sum of cross-entropies of logits (N, C) and labels (N); keeps nothing but the gradient."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        """The sum, and what its gradient is made of."""
        shares = widened(logits).log_softmax(dim=-1)
        loss = (smoothing - 1) * shares.gather(1, labels[:, None]).sum()
        if smoothing:
            loss = loss - smoothing * shares.mean(dim=-1).sum()
        shares = shares.exp_()
        shares.scatter_add_(1, labels[:, None], shares.new_full((len(labels), 1), smoothing - 1))
        ctx.save_for_backward((shares.sub_(smoothing / logits.shape[1]) if smoothing else shares).to(logits.dtype))
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, None, None]:
        """The gradient of the logits."""
        (shares,) = ctx.saved_tensors
        return shares * gradient[0].to(shares.dtype), None, None


@singledispatch
def summed_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """The sum of cross-entropies of logits (N, C) and labels (N); other kinds of tensors have ways of their own."""
    return Entropy.apply(logits, labels, smoothing)  # type: ignore[no-untyped-call, no-any-return]


_SCORING_APART = ContextVar("scoring_apart", default=False)


def is_scoring_apart() -> bool:
    """Whether logits are made for a loss alone, so that each of several processes may keep its own classes' to itself."""
    return _SCORING_APART.get()


@dataclass(frozen=True)
class Unscored:
    """Logits (..., C) that are not made yet: the states (..., D) that they come from, and what makes them of (N, D)."""

    score: Callable[[Tensor], Tensor]
    states: Tensor

    @property
    def shape(self) -> torch.Size:
        """That of the logits."""
        none = self._scored(self.states.flatten(0, -2)[:0])
        return torch.Size((*self.states.shape[:-1], none.shape[-1]))

    def cross_entropy(self, labels: Tensor, classes: int, ignore_index: int, smoothing: float) -> Tensor:
        """The sum over labels (N); logits are made for those that are not ignored, of which few are held at a time."""
        chosen = labels != ignore_index
        states, labels = self.states.flatten(0, -2)[chosen], labels[chosen]
        loss = partial(self._loss, smoothing=smoothing)
        if len(labels) * classes > KEPT and torch.is_grad_enabled():
            loss = partial(checkpoint, loss, use_reentrant=False)
        size = max(CHUNK // classes, 1)
        parts = zip(torch.split(states, size), torch.split(labels, size), strict=True)
        return torch.stack([loss(*part) for part in parts]).sum()

    def _loss(self, states: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        return summed_entropy(self._scored(states), labels, smoothing)

    def _scored(self, states: Tensor) -> Tensor:
        token = _SCORING_APART.set(True)
        try:
            return self.score(states)
        finally:
            _SCORING_APART.reset(token)


def cross_entropy(
    logits: Tensor | Unscored, labels: Tensor, *, ignore_index: int = IGNORED, smoothing: float = 0.0
) -> LossTerm:
    """Cross-entropy of logits (..., C), in float32 at least, and labels (...) below C; ``ignore_index`` is left out.

    ``smoothing`` is the share of each target that is spread over all classes (Szegedy et al. 2016).

    Raises:
        InputError: shapes that do not fit, or a label outside the classes.
    """
    check_is_tensor(labels)
    *shape, classes = logits.shape
    if labels.shape != torch.Size(shape):
        if labels.numel() != math.prod(shape):
            shapes = tuple(labels.shape), (*shape, classes), tuple(shape)
            raise InputError("`labels` has the shape {}, but the logits {} need {}.".format(*shapes))
        labels = labels.reshape(shape)
    check_labels(labels, classes, ignore_index)
    if isinstance(logits, Unscored):
        labels = labels.reshape(-1).to(logits.states.device)
        return LossTerm(logits.cross_entropy(labels, classes, ignore_index, smoothing), counted(labels, ignore_index))
    flat, labels = widened(logits).reshape(-1, classes), labels.reshape(-1).to(logits.device)
    loss = F.cross_entropy(flat, labels, ignore_index=ignore_index, reduction="sum", label_smoothing=smoothing)
    return LossTerm(loss, counted(labels, ignore_index))


@dataclass
class LabelSmoother:
    """The reference's loss with smoothed labels, of a model's outputs; ``shift_labels`` for a language model's."""

    epsilon: float = 0.1
    ignore_index: int = IGNORED

    def __call__(self, model_output: Any, labels: Tensor, shift_labels: bool = False, num_items_in_batch: Any = None) -> Tensor:
        logits = model_output["logits"] if isinstance(model_output, Mapping) else model_output[0]
        if shift_labels:
            logits, labels = logits[..., :-1, :], labels[..., 1:]
        term = cross_entropy(logits, labels, ignore_index=self.ignore_index, smoothing=self.epsilon)
        return term.mean if num_items_in_batch is None else term.sum / torch.as_tensor(num_items_in_batch).to(term.sum)


def counted(labels: Tensor, ignore_index: int = IGNORED) -> Tensor:
    """How many labels are not ignored, a scalar."""
    check_is_tensor(labels)
    return (labels != ignore_index).sum()


def check_is_tensor(labels: Any, name: str = "labels") -> None:
    """Refuse labels that are lists, numbers or texts (``InputTypeError``)."""
    if not isinstance(labels, Tensor):
        hint = f"Make a tensor of them: torch.tensor({name})."
        raise InputTypeError(f"`{name}` must be a tensor, but is {type(labels).__name__}: {str(labels)[:60]!r}.", hint=hint)


def check_labels(labels: Tensor, classes: int, ignore_index: int = IGNORED) -> None:
    """Refuse labels outside ``0 .. classes - 1``; skipped while compiling or exporting, and off the CPU."""
    if labels.is_floating_point():
        raise InputError(f"`labels` must be integers here, but is {str(labels.dtype).removeprefix('torch.')}.")
    if torch.compiler.is_compiling() or labels.device.type != "cpu":
        return  # a look at the values would break the graph, or wait for the device (which checks by itself)
    wrong = (labels != ignore_index) & ((labels < 0) | (labels >= classes))
    if wrong.any():
        place = tuple(wrong.nonzero()[0].tolist())
        hint = f"Labels run from 0 to {classes - 1}; {ignore_index} is ignored. Set `num_labels` for more."
        raise InputError(f"label {int(labels[place])} at {list(place)} is not one of the {classes} classes.", hint=hint)


def widened(x: Tensor) -> Tensor:
    """Half precision as float32; float32 and float64 as they are."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def sequence_classification(logits: Tensor, labels: Tensor, problem_type: str | None) -> LossTerm:
    """The loss of a sequence classifier, by its kind of problem.

    Args:
        logits: (B, C).
        labels: (B) integers; (B, C) floats for several labels at once; (B) or (B, C) for regression.
        problem_type: ``regression``, ``single_label_classification`` or ``multi_label_classification``; inferred from
            the number of classes and the labels' type when ``None``.
    """
    check_is_tensor(labels)
    problem_type, labels = kind_of_problem(labels, logits.shape[-1], problem_type), labels.to(logits.device)
    if problem_type == "single_label_classification":
        return cross_entropy(logits, labels)
    if labels.numel() != logits.numel():
        raise InputError(f"`labels` has the shape {tuple(labels.shape)}, but {problem_type} needs {tuple(logits.shape)}.")
    logits, labels = widened(logits), labels.reshape(logits.shape).to(widened(logits).dtype)
    function = F.mse_loss if problem_type == "regression" else F.binary_cross_entropy_with_logits
    return LossTerm(function(logits, labels, reduction="sum"), torch.tensor(logits.numel(), device=logits.device))


def kind_of_problem(labels: Tensor, classes: int, problem_type: str | None) -> str:
    """The kind of problem that is meant; see :func:`sequence_classification`."""
    if problem_type is not None:
        return problem_type
    if classes == 1:
        return "regression"
    return "single_label_classification" if labels.dtype in (torch.long, torch.int) else "multi_label_classification"


def count_sequences(labels: Tensor, classes: int, problem_type: str | None) -> Tensor:
    """The items of :func:`sequence_classification`: labels that are not ignored, or all numbers of other problems."""
    check_is_tensor(labels)
    if kind_of_problem(labels, classes, problem_type) == "single_label_classification":
        return counted(labels)
    return torch.tensor(labels.numel(), device=labels.device)


def binary(logits: Tensor, labels: Tensor, mask: Tensor | None = None) -> LossTerm:
    """Binary cross-entropy of logits and labels (B, T), of which ``IGNORED`` and those where ``mask`` is 0 are left out.

    Raises:
        InputError: labels of the wrong shape or range.
    """
    check_is_tensor(labels)
    if labels.shape != logits.shape:
        raise InputError(f"`labels` has the shape {tuple(labels.shape)}, but the logits are {tuple(logits.shape)}.")
    check_labels(labels.long(), 2)
    labels = labels.to(logits.device)
    real = _labelled(labels, mask)
    wide = widened(logits)
    loss = F.binary_cross_entropy_with_logits(wide, labels.to(wide.dtype), real.to(wide.dtype), reduction="sum")
    return LossTerm(loss, real.sum())


def _labelled(labels: Tensor, mask: Tensor | None) -> Tensor:
    real = labels != IGNORED
    return real if mask is None else real & (mask.to(labels.device) != 0)


def count_binary(labels: Tensor, mask: Tensor | None = None) -> Tensor:
    """The items of :func:`binary`."""
    check_is_tensor(labels)
    return _labelled(labels, mask).sum()


def spans(start_logits: Tensor, end_logits: Tensor, starts: Tensor, ends: Tensor) -> dict[str, LossTerm]:
    """Question answering: the mean of two cross-entropies over positions, from logits (B, T).

    ``starts`` and ``ends`` are (B) or (B, 1); positions outside the sequence are ignored (negative ones count as 0).
    """
    length = start_logits.shape[1]

    def term(name: str, logits: Tensor, positions: Tensor) -> LossTerm:
        check_is_tensor(positions, f"{name}_positions")
        if positions.numel() != logits.shape[0]:
            rows, shape = logits.shape[0], tuple(positions.shape)
            raise InputError(f"start and end positions must have the shape ({rows},), but are {shape}.")
        inside = positions.reshape(-1).clamp(0, length)
        return replace(cross_entropy(logits, inside, ignore_index=length), weight=0.5)

    return {"start": term("start", start_logits, starts), "end": term("end", end_logits, ends)}


def count_spans(starts: Tensor, ends: Tensor, length: int) -> dict[str, Tensor]:
    """The items of :func:`spans` over ``length`` positions: those inside the sequence."""
    for name, positions in (("start", starts), ("end", ends)):
        check_is_tensor(positions, f"{name}_positions")
    return {"start": (starts < length).sum(), "end": (ends < length).sum()}


def additive_margin(
    embeddings: Tensor, weight: Tensor, labels: Tensor, *, scale: float = 30.0, margin: float = 0.4
) -> LossTerm:
    """Softmax over the angles of embeddings (B, E) to a direction for each class, (E, C) (Wang et al. 2018).

    The right class must win by a margin: its cosine is lowered by it, and all are scaled then.
    """
    classes = weight.shape[1]
    if labels.numel() != embeddings.shape[0]:
        raise InputError(f"`labels` has the shape {tuple(labels.shape)}, but must be ({embeddings.shape[0]},).")
    check_labels(labels, classes)
    cosines = F.normalize(widened(embeddings), dim=1) @ F.normalize(widened(weight), dim=0)
    labels = labels.reshape(-1).to(cosines.device)
    right = labels[:, None] == torch.arange(classes, device=cosines.device)
    return cross_entropy(scale * torch.where(right, cosines - margin, cosines), labels)


def load_balance(logits: Sequence[Tensor], top: int, real: Tensor | None, weight: float) -> LossTerm:
    """E times the sum over the E experts of their share of choices times their mean probability (Fedus et al. 2022).

    Shares and probabilities are means over the tokens of all layers together. That is no sum over tokens, so the term keeps
    its own mean when batches are accumulated. It is ``top`` where the choices are even.

    Args:
        logits: the routers' for N = B * T tokens, (N, E) for each layer, of which ``top`` experts are chosen for a token.
        real: (B, T), 1 for the tokens that count; all of them when absent.
    """
    probabilities = F.softmax(torch.stack(list(logits)), dim=-1).float()
    counted = torch.ones_like(probabilities[0, :, 0]) if real is None else real.reshape(-1).to(probabilities)
    chosen = torch.zeros_like(probabilities).scatter_(-1, probabilities.topk(top, dim=-1).indices, 1.0)
    total = counted.sum() * len(logits)
    share = (chosen * counted[:, None]).sum(dim=(0, 1)) / total
    mean = (probabilities * counted[:, None]).sum(dim=(0, 1)) / total
    loss = (share * mean).sum() * probabilities.shape[-1]
    return LossTerm(loss, torch.ones_like(loss), weight=weight, additive=False)


def router_z(logits: Sequence[Tensor], real: Tensor | None, weight: float) -> LossTerm:
    """The mean of the squared log-sum-exp of routers' logits (B, T, E), one a layer, over real tokens (Zoph et al. 2022)."""
    squares = torch.logsumexp(torch.stack(list(logits)), dim=-1).square()
    counted = torch.ones_like(squares) if real is None else real.to(squares).expand_as(squares)
    loss = (squares * counted).sum() / counted.sum()
    return LossTerm(loss, torch.ones_like(loss), weight=weight, additive=False)


def load_balancing_loss_func(
    gate_logits: Sequence[Tensor] | Tensor | None,
    num_experts: int | None = None,
    top_k: int = 2,
    attention_mask: Tensor | None = None,
) -> Tensor | int:
    """The value of :func:`load_balance` without a weight; 0 where there are no logits."""
    if gate_logits is None or isinstance(gate_logits, Tensor):
        return 0
    return load_balance(gate_logits, top_k, attention_mask, 1.0).sum
