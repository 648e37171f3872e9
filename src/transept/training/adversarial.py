"""Adversarial training: embeddings are moved to where the loss is worst, and the model learns there too."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from transept.errors import ConfigError, UnsupportedError, nearest, refuse
from transept.objectives.adversarial import smoothness

Kind = Literal["fgm", "pgd", "free", "virtual"]
SMALL = 1e-3  # the share of ``epsilon`` at which the answers' curvature is looked at
LossOf = Callable[[nn.Module, dict[str, Any]], Tensor]


@dataclass(eq=False)
class Perturbation:
    """A further loss: that of a batch whose token embeddings are moved by at most ``epsilon`` a row.

    ``fgm`` moves once along the gradient (Miyato et al. 2017), ``pgd`` several times (Madry et al. 2018), ``free``
    too and learns from each step (FreeLB, Zhu et al. 2020), ``virtual`` needs no labels: the answers should not
    change (Miyato et al. 2018). ``ConfigError``: another kind, or a number that is not positive.
    """

    kind: Kind = "fgm"
    epsilon: float = 1.0  # the largest Euclidean norm of a row's change
    steps: int = 1  # moves of `pgd` and `free`, and power iterations of `virtual`
    step_size: float | None = None  # the length of one move; `epsilon` divided by the steps, twice, when absent
    weight: float = 1.0  # of the further loss

    def __post_init__(self) -> None:
        if self.kind not in (kinds := get_args(Kind)):
            raise ConfigError(f"`adversarial` has no kind {self.kind!r}.", hint=nearest(str(self.kind), kinds))
        epsilon, steps, step_size, weight = self.epsilon, self.steps, self.step_size, self.weight
        numbers = f"epsilon={epsilon}, steps={steps}, step_size={step_size}, weight={weight}"
        are_positive = epsilon > 0 and steps >= 1 and weight > 0 and (step_size is None or step_size > 0)
        what = f"the numbers of `adversarial` must be positive, but are {numbers}."
        refuse(not are_positive, what, kind=ConfigError)
        self.steps = 1 if self.kind == "fgm" else self.steps
        self.move = self.step_size or min(self.epsilon, 2 * self.epsilon / self.steps)
        self.by_row = self.kind != "virtual"  # whether it is a sum over rows, divided by the items as the model's is

    def __call__(self, model: nn.Module, inputs: dict[str, Any], loss_of: LossOf) -> Tensor:
        """The further loss of a batch, weighted, where ``loss_of`` computes the loss of inputs."""
        get_table: Any = getattr(model, "get_input_embeddings", lambda: None)
        table = get_table()
        what = f"{type(model).__name__} has no embeddings of tokens that could be moved."
        refuse(not isinstance(table, nn.Module), what, kind=UnsupportedError)
        if self.kind == "virtual":
            return self.weight * self._virtual(model, table, inputs)
        return self.weight * self._worst(model, table, inputs, loss_of)

    def _worst(self, model: nn.Module, table: nn.Module, inputs: dict[str, Any], loss_of: LossOf) -> Tensor:
        """The loss where the last move ends; of ``free``, the mean of that and of those where the others end."""
        change: Tensor | None = None
        losses: list[Tensor] = []
        for _ in range(self.steps):
            with moved(table, change) as leaves:
                loss = loss_of(model, inputs)
            (gradient,) = torch.autograd.grad(loss, leaves, retain_graph=self.kind == "free")
            if self.kind == "free" and change is not None:
                losses.append(loss)
            change = leaves[0].detach() + self.move * unit(gradient)
            change = change * (self.epsilon / norms(change)).clamp(max=1.0)
        with moved(table, change):
            losses.append(loss_of(model, inputs))
        return torch.stack(losses).mean()

    def _virtual(self, model: nn.Module, table: nn.Module, inputs: dict[str, Any]) -> Tensor:
        """How far the answers change along the direction in which they change most."""
        inputs = {name: value for name, value in inputs.items() if name != "labels"}
        with moved(table, None) as leaves:
            clean = model(**inputs).logits
        mask = inputs.get("attention_mask")
        mask = mask if mask is not None and clean.ndim == 3 and mask.shape == clean.shape[:2] else None
        gradient = torch.randn_like(leaves[0])
        for _ in range(self.steps):
            with moved(table, SMALL * self.epsilon * unit(gradient)) as leaves:
                term = smoothness(clean, model(**inputs).logits, mask)
            (gradient,) = torch.autograd.grad(term.sum, leaves)
        with moved(table, self.epsilon * unit(gradient)):
            return smoothness(clean, model(**inputs).logits, mask).mean


@contextlib.contextmanager
def moved(table: nn.Module, change: Tensor | None) -> Iterator[list[Tensor]]:
    """Add a change (B, T, D), or zeros, to the embeddings of a table's first call; yields it with a gradient."""
    leaves: list[Tensor] = []

    def add(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        if leaves:
            return output
        leaves.append((torch.zeros_like(output) if change is None else change).detach().requires_grad_())
        return output + leaves[0]

    handle = table.register_forward_hook(add)
    try:
        yield leaves
    finally:
        handle.remove()


def unit(rows: Tensor) -> Tensor:
    """Rows (B, ...) of norm one; those of zeros stay."""
    return rows / norms(rows)


def norms(rows: Tensor) -> Tensor:
    """The norm of each row (B, ...), as (B, 1, ...), and no less than 1e-12."""
    lengths: Tensor = rows.flatten(1).norm(dim=1).clamp(min=1e-12)
    return lengths.view(-1, *[1] * (rows.ndim - 1))
