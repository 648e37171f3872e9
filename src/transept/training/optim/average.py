"""An exponential moving average of the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from transept.errors import InputError, refuse
from transept.parallel.forms import local


class WeightAverage:
    """A moving average of a model's floating-point weights, in float32 at least (Polyak & Juditsky 1992).

    After each update it is ``decay`` times itself plus ``1 - decay`` times the weights that are trained.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        refuse(not 0 <= decay < 1, f"`ema_decay` must be at least 0 and below 1, but is {decay}.")
        self.decay = decay
        self.weights: dict[str, Tensor] = {}
        for name, weight in _trained(model).items():
            dtype = torch.promote_types(weight.dtype, torch.float32)
            self.weights[name] = weight.detach().to(dtype, copy=True)

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move the average towards the weights, after an update of these."""
        weights = _trained(model)
        means = [local(mean) for mean in self.weights.values()]
        values = [local(weights[name].detach()).to(mean) for name, mean in zip(self.weights, means)]
        if means:
            torch._foreach_lerp_(means, values, 1 - self.decay)

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """The model with the averaged weights, to evaluate or save it; its own are put back at the end."""
        weights = dict(model.named_parameters())
        before = {name: weights[name].detach().clone() for name in self.weights}
        try:
            copy_weights(self.weights, weights)
            yield
        finally:
            copy_weights(before, weights)

    def state_dict(self) -> dict[str, Tensor]:
        """The averages by the parameters' names."""
        return dict(self.weights)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over averages (``InputError``: names or shapes are not those of the parameters)."""
        shapes, others = ({(name, weight.shape) for name, weight in part.items()} for part in (self.weights, state))
        for name, _ in sorted(shapes ^ others):
            raise InputError(f"the averaged weights are those of another model: {name!r} differs.")
        copy_weights(state, self.weights)


def _trained(model: nn.Module) -> dict[str, nn.Parameter]:
    weights = dict(model.named_parameters())
    return {name: weight for name, weight in weights.items() if weight.requires_grad and weight.is_floating_point()}


@torch.no_grad()
def copy_weights(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    """Put tensors into those of the same names, in place."""
    for name, value in source.items():
        target[name].copy_(value)
