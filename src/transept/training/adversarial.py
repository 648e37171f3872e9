"""Adversarial training: embeddings are moved to where the loss is worst, and the model learns there too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from transept.errors import ConfigError, UnsupportedError, nearest
from transept.objectives.adversarial import smoothness

Kind = Literal["fgm", "pgd", "free", "virtual"]
KINDS = ("fgm", "pgd", "free", "virtual")
SMALL = 1e-3  # the share of ``epsilon`` at which the answers' curvature is looked at
LossOf = Callable[[nn.Module, dict[str, Any]], Tensor]


class Perturbation:
    """A further loss: that of a batch whose token embeddings are moved by at most ``epsilon`` a row.

    Args:
        kind: ``fgm`` moves once along the gradient (Miyato et al. 2017), ``pgd`` several times (Madry et al. 2018), ``free``
            too and learns from each step (FreeLB, Zhu et al. 2020), ``virtual`` needs no labels: the answers should not
            change (Miyato et al. 2018).
        epsilon: the largest Euclidean norm of a row's change.
        steps: moves of ``pgd`` and ``free``, and power iterations of ``virtual``.
        step_size: the length of one move; ``epsilon`` divided by the steps, twice, when absent.
        weight: of the further loss.

    Raises:
        ConfigError: another kind, or a number that is not positive.
    """

    def __init__(
        self, kind: Kind = "fgm", epsilon: float = 1.0, steps: int = 1, step_size: float | None = None, weight: float = 1.0
    ) -> None:
        if kind not in KINDS:
            raise ConfigError(f"`adversarial` has no kind {kind!r}.", hint=nearest(str(kind), KINDS))
        if not (epsilon > 0 and steps >= 1 and weight > 0 and (step_size is None or step_size > 0)):
            what = f"epsilon={epsilon}, steps={steps}, step_size={step_size}, weight={weight}"
            raise ConfigError(f"the numbers of `adversarial` must be positive, but are {what}.")
        self.kind, self.epsilon, self.steps, self.weight = kind, epsilon, 1 if kind == "fgm" else steps, weight
        self.step_size = step_size if step_size is not None else epsilon if self.steps == 1 else 2 * epsilon / self.steps

    @property
    def by_row(self) -> bool:
        """Whether the further loss is a sum over rows, divided by the items of the update, as the model's is."""
        return self.kind != "virtual"

    def __call__(self, model: nn.Module, inputs: dict[str, Any], loss_of: LossOf) -> Tensor:
        """The further loss of a batch, weighted, where ``loss_of`` computes the loss of inputs."""
        table = _table(model)
        loss = self._virtual(model, table, inputs) if self.kind == "virtual" else self._worst(model, table, inputs, loss_of)
        return self.weight * loss

    def _worst(self, model: nn.Module, table: nn.Module, inputs: dict[str, Any], loss_of: LossOf) -> Tensor:
        change: Tensor | None = None
        learned: list[Tensor] = []
        for _ in range(self.steps):
            with Moved(table, change) as moved:
                loss = loss_of(model, inputs)
            (gradient,) = torch.autograd.grad(loss, moved.leaf, retain_graph=self.kind == "free")
            if self.kind == "free" and change is not None:
                learned.append(loss)
            before = torch.zeros_like(gradient) if change is None else change
            change = self._within(before + self.step_size * unit(gradient))
        with Moved(table, change):
            learned.append(loss_of(model, inputs))
        return torch.stack(learned).mean()

    def _virtual(self, model: nn.Module, table: nn.Module, inputs: dict[str, Any]) -> Tensor:
        given = {name: value for name, value in inputs.items() if name != "labels"}
        with Moved(table, None) as moved:
            clean = model(**given).logits
        mask = given.get("attention_mask")
        counted = mask if mask is not None and clean.ndim == 3 and mask.shape == clean.shape[:2] else None
        direction = unit(torch.randn_like(moved.leaf))
        for _ in range(self.steps):
            with Moved(table, SMALL * self.epsilon * direction) as moved:
                term = smoothness(clean, model(**given).logits, counted)
            (gradient,) = torch.autograd.grad(term.sum, moved.leaf)
            direction = unit(gradient)
        with Moved(table, self.epsilon * direction):
            return smoothness(clean, model(**given).logits, counted).mean

    def _within(self, change: Tensor) -> Tensor:
        """No further than ``epsilon`` in each row (B, T, D)."""
        norms = change.flatten(1).norm(dim=1).clamp(min=1e-12)
        kept: Tensor = change * (self.epsilon / norms).clamp(max=1.0).view(-1, *[1] * (change.ndim - 1))
        return kept


class Moved:
    """Adds a change (B, T, D) to the embeddings of a table while it is entered: in the first call, where it has several.

    ``leaf`` is the change as it was added, zero where none was given, of which a gradient can be asked.
    """

    leaf: Tensor

    def __init__(self, table: nn.Module, change: Tensor | None) -> None:
        self.table, self.change = table, change

    def __enter__(self) -> Moved:
        self.handle = self.table.register_forward_hook(self._add)
        return self

    def __exit__(self, *reason: object) -> None:
        self.handle.remove()

    def _add(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        if hasattr(self, "leaf"):
            return output
        change = torch.zeros_like(output) if self.change is None else self.change
        self.leaf = change.detach().requires_grad_()
        moved: Tensor = output + self.leaf
        return moved


def unit(gradient: Tensor) -> Tensor:
    """Rows (B, ...) of length one; those of zeros stay."""
    norms = gradient.flatten(1).norm(dim=1).clamp(min=1e-12)
    scaled: Tensor = gradient / norms.view(-1, *[1] * (gradient.ndim - 1))
    return scaled


def _table(model: nn.Module) -> nn.Module:
    find = getattr(model, "get_input_embeddings", None)
    table = None if find is None else find()
    if not isinstance(table, nn.Module):
        raise UnsupportedError(f"{type(model).__name__} has no embeddings of tokens that could be moved.")
    return table
