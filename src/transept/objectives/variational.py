"""Losses of autoencoders: how well an input is made again, and how far a code is from a standard normal one.

Shapes: B rows, Z size of the code, ... any further axes.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from transept.errors import InputError
from transept.objectives.classification import widened
from transept.objectives.terms import LossTerm


def reconstruction(output: Tensor, target: Tensor, kind: Literal["squares", "bernoulli"] = "squares") -> LossTerm:
    """What an autoencoder's output (B, ...) misses of the target (B, ...); it counts rows (Vincent et al. 2008).

    Args:
        kind: ``squares`` is the sum of squared differences, ``bernoulli`` the binary cross-entropy of logits and targets
            from 0 to 1.
    """
    if output.shape != target.shape:
        raise InputError(f"the output has the shape {tuple(output.shape)}, but the target {tuple(target.shape)}.")
    output, target = widened(output), target.to(widened(output))
    function = F.mse_loss if kind == "squares" else F.binary_cross_entropy_with_logits
    return LossTerm(function(output, target, reduction="sum"), torch.tensor(len(output), device=output.device))


def sample_code(mean: Tensor, log_variance: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """A code (B, Z) drawn from a normal distribution so that gradients reach its parameters (Kingma and Welling 2014)."""
    noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)
    return mean + noise * (log_variance / 2).exp()


def divergence_from_normal(mean: Tensor, log_variance: Tensor, *, beta: float = 1.0, free_bits: float = 0.0) -> LossTerm:
    """The KL divergence of normal distributions (B, Z) from the standard one; it counts rows.

    Args:
        beta: the term's weight (Higgins et al. 2017), which may rise during training.
        free_bits: each of the Z dimensions costs at least this much, in nats, in the mean over the rows, so that the code is
            not given up (Kingma et al. 2016). That minimum is of a mean, so the term is not additive then.
    """
    mean, log_variance = widened(mean), widened(log_variance)
    apart = (mean.square() + log_variance.exp() - 1 - log_variance) / 2
    count = torch.tensor(len(mean), device=mean.device)
    if free_bits == 0:
        return LossTerm(apart.sum(), count, weight=beta)
    return LossTerm(apart.mean(dim=0).clamp(min=free_bits).sum() * count, count, weight=beta, additive=False)
