"""Feed-forward layers, whole or in chunks of positions, and activation functions under the names that configs use.

Activations are functions and partials only, since a lambda would not pickle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.errors import ConfigError, InputError, nearest
from transept.layers.linear import shared_product
from transept.layers.links import Linked, SideBySide


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


def apply_chunking_to_forward(
    forward_fn: Callable[..., Tensor], chunk_size: int, chunk_dim: int, *input_tensors: Tensor
) -> Tensor:
    """Apply a function to chunks of its inputs along one axis and join the results (Kitaev et al. 2020).

    For a function that treats positions alone, the result is the same and the peak of memory that of one chunk. A
    ``chunk_size`` of 0 is for all positions at once; the last chunk may be shorter.

    Raises:
        InputError: no tensors, of different lengths, or without that axis.
    """
    if not input_tensors:
        raise InputError("`apply_chunking_to_forward` needs at least one tensor.")
    fewest = min(tensor.ndim for tensor in input_tensors)
    if not -fewest <= chunk_dim < fewest:
        raise InputError(f"`chunk_dim` is {chunk_dim}, but a tensor to chunk has {fewest} axes.")
    length = input_tensors[0].shape[chunk_dim]
    if any(tensor.shape[chunk_dim] != length for tensor in input_tensors[1:]):
        lengths = [tensor.shape[chunk_dim] for tensor in input_tensors]
        raise InputError(f"tensors to chunk must be of one length along axis {chunk_dim}, but are {lengths}.")
    if chunk_size <= 0 or length <= chunk_size:
        return forward_fn(*input_tensors)
    chunks = zip(*(torch.split(tensor, chunk_size, dim=chunk_dim) for tensor in input_tensors), strict=True)
    return torch.cat([forward_fn(*chunk) for chunk in chunks], dim=chunk_dim)


class MLP(Linked):
    """Up, activation, dropout, down; ``chunk_size`` is positions at a time, 0 for all at once."""

    def __init__(
        self, dim: int, hidden: int, act: str, *, bias: bool = True, chunk_size: int = 0, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.widen(dim, hidden, bias)
        self.down_proj = self.linear(hidden, dim, bias)
        self.act, self.dropout, self.chunk_size = activation(act), nn.Dropout(dropout), chunk_size

    @staticmethod
    def linear(features: int, outputs: int, bias: bool) -> Any:
        """Make a projection; a family with layers of its own overrides this."""
        return nn.Linear(features, outputs, bias)

    def widen(self, dim: int, hidden: int, bias: bool) -> None:
        """Make what reads the input."""
        self.up_proj = self.linear(dim, hidden, bias)

    def forward(self, x: Tensor, ctx: Any = None) -> Tensor:
        """(B, T, D) -> (B, T, D); blocks pass the context, in which mixtures of experts tell what they chose."""
        return apply_chunking_to_forward(self.whole, self.chunk_size, 1, x)

    def whole(self, x: Tensor) -> Tensor:
        """All positions at once."""
        return self.down_proj(self.dropout(self.act(self.up_proj(x))))


class GatedMLP(MLP):
    """A gate beside the up projection (Shazeer 2020); arguments as for :class:`MLP`."""

    def __init__(
        self, dim: int, hidden: int, act: str, *, bias: bool = False, chunk_size: int = 0, dropout: float = 0.0
    ) -> None:
        super().__init__(dim, hidden, act, bias=bias, chunk_size=chunk_size, dropout=dropout)

    def widen(self, dim: int, hidden: int, bias: bool) -> None:
        self.gate_proj = self.linear(dim, hidden, bias)
        super().widen(dim, hidden, bias)

    def side_by_side(self) -> SideBySide | None:
        return (("gate_proj", "up_proj"), "gate_up_proj") if type(self).whole is GatedMLP.whole else None

    def whole(self, x: Tensor) -> Tensor:
        if (shared := shared_product(self.gate_proj, self.up_proj)) is None:
            return self.down_proj(self.dropout(self.act(self.gate_proj(x)) * self.up_proj(x)))
        gate, up = shared(x).chunk(2, dim=-1)
        return self.down_proj(self.dropout(self.act(gate) * up))


class FusedGatedMLP(MLP):
    """The same, where one product, ``gate_up_proj``, gives the gate's numbers and then those that are gated."""

    def __init__(
        self, dim: int, hidden: int, act: str, *, bias: bool = False, chunk_size: int = 0, dropout: float = 0.0
    ) -> None:
        super().__init__(dim, hidden, act, bias=bias, chunk_size=chunk_size, dropout=dropout)

    def widen(self, dim: int, hidden: int, bias: bool) -> None:
        self.gate_up_proj = self.linear(dim, 2 * hidden, bias)

    def whole(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(self.dropout(self.act(gate) * up))
