"""Linear layers whose weights are kept (in, out), as GPT-2's checkpoints have them."""

from __future__ import annotations

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
    """A linear layer of ``nf`` outputs and ``nx`` inputs with a weight (in, out), under the reference's name."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.in_features, self.out_features = self.nx, self.nf = nx, nf
        self.weight, self.bias = nn.Parameter(torch.empty(nx, nf)), nn.Parameter(torch.empty(nf))
        self.reset_parameters()

    def reset_parameters(self, std: float = 0.02) -> None:
        nn.init.normal_(self.weight, std=std)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        return F.linear(x, self.weight.t(), self.bias)

    def extra_repr(self) -> str:
        return f"nf={self.nf}, nx={self.nx}"
