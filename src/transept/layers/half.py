"""Keeping float16 finite."""

from __future__ import annotations

import torch
from torch import Tensor

# The largest number of float16, less some room for what is added next.
_MOST = torch.finfo(torch.float16).max - 1000


def bounded(x: Tensor) -> Tensor:
    """Values of float16, of any shape, without infinities; other types have room enough and are returned as they are."""
    return x.clamp(min=-_MOST, max=_MOST) if x.dtype is torch.float16 else x
