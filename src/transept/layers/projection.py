"""Linear layers whose weights are kept (in, out), as GPT-2's checkpoints have them."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def matrix(layer: nn.Module, weight: Tensor | None = None) -> Tensor:
    """The weight (out, in) of a linear layer, or one that it is to have, as it keeps it; the other way round just as well."""
    own: Any = layer.weight if weight is None else weight
    found: Tensor = own.t() if isinstance(layer, Conv1D) else own
    return found


class Conv1D(nn.Module):
    """A linear layer with a weight (in, out); the reference's name of it."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        nn.Module.__init__(self)  # whatever other bases there are, see `known_to_libraries`
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.empty(in_features, out_features))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None
        self.reset_parameters()

    def reset_parameters(self, std: float = 0.02) -> None:
        nn.init.normal_(self.weight, std=std)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        return F.linear(x, self.weight.t(), self.bias)

    nx, nf = property(lambda self: self.in_features), property(lambda self: self.out_features)
    __repr__ = nn.Module.__repr__

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


def known_to_libraries() -> None:
    """Let :class:`Conv1D` be one of the reference's class too, if that is there: the library peft asks for it."""
    reference = getattr(sys.modules.get("transformers.pytorch_utils"), "Conv1D", None)
    if reference is not None and not issubclass(Conv1D, reference):
        Conv1D.__bases__ = (reference,)
