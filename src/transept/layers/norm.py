"""Norms that PyTorch does not have in the form checkpoints need."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """Root-mean-square norm (Zhang and Sennrich 2019), computed in float32 at least, as the checkpoints were trained."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.empty(dim)), eps
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """(..., dim) -> (..., dim): scale every vector to a mean square of one, then by the weight."""
        return self.weight * F.rms_norm(x, x.shape[-1:], eps=self.eps)

    def extra_repr(self) -> str:
        return f"{tuple(self.weight.shape)}, eps={self.eps}"


class WideRMSNorm(RMSNorm):
    """A root-mean-square norm whose weights are applied before rounding."""

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        return (self.weight.to(wide.dtype) * F.rms_norm(wide, x.shape[-1:], eps=self.eps)).to(x.dtype)


class CenteredRMSNorm(RMSNorm):
    """A root-mean-square norm whose weights are stored as their distance from one, and applied before rounding."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        scaled = F.rms_norm(wide, x.shape[-1:], eps=self.eps)
        return (scaled * (1.0 + self.weight.to(wide.dtype))).to(x.dtype)
