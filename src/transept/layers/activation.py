"""Activation functions under the names that configs use; functions and partials only, since a lambda would not pickle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.errors import ConfigError, nearest


def quick_gelu(x: Tensor) -> Tensor:
    """``x * sigmoid(1.702 x)``, an approximation of GELU."""
    scaled = 1.702 * x
    if torch.is_grad_enabled():
        return x * torch.sigmoid(scaled)
    return scaled.sigmoid_().mul_(x)  # the same in one new tensor, where three would cost more than they compute


def relu2(x: Tensor) -> Tensor:
    """The square of ReLU (So et al. 2021)."""
    return F.relu(x).square()


def linear(x: Tensor) -> Tensor:
    return x


_tanh_gelu = partial(F.gelu, approximate="tanh")

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_python": F.gelu,
    "gelu_new": _tanh_gelu,
    "gelu_fast": _tanh_gelu,
    "gelu_pytorch_tanh": _tanh_gelu,
    "quick_gelu": quick_gelu,
    "relu": F.relu,
    "relu2": relu2,
    "relu6": F.relu6,
    "leaky_relu": F.leaky_relu,
    "silu": F.silu,
    "swish": F.silu,
    "mish": F.mish,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "linear": linear,
}


class Activation(nn.Module):
    """An activation function as a module."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.function = name, activation(name)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)

    def extra_repr(self) -> str:
        return repr(self.name)


class _Modules(Mapping[str, nn.Module]):
    """A new module for a name at each access."""

    def __getitem__(self, name: str) -> nn.Module:
        if name not in ACTIVATIONS:
            raise KeyError(name)
        return Activation(name)

    def __iter__(self) -> Iterator[str]:
        return iter(ACTIVATIONS)

    def __len__(self) -> int:
        return len(ACTIVATIONS)


ACT2FN = _Modules()


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The function of that name, or a ``ConfigError`` with the nearest ones."""
    if name not in ACTIVATIONS:
        raise ConfigError(f"there is no activation {name!r}.", hint=nearest(name, ACTIVATIONS))
    return ACTIVATIONS[name]
