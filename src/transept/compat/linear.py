"""Linear layers whose weights lie the other way round, and what takes rows out of a linear layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Conv1D(nn.Module):
    """A linear layer with a weight of (in, out), as GPT-2's checkpoints store theirs.

    Args:
        nf: the features that come out.
        nx: the features that go in.
    """

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf, self.nx = nf, nx
        self.weight = nn.Parameter(torch.empty(nx, nf))
        self.bias = nn.Parameter(torch.zeros(nf))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        return torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], self.nf)

    def extra_repr(self) -> str:
        return f"nf={self.nf}, nx={self.nx}"


def prune_linear_layer(layer: nn.Linear, index: Tensor, dim: int = 0) -> nn.Linear:
    """A linear layer with those rows (``dim`` 0) or columns (1) of another's weight alone, on its device."""
    weight = layer.weight.detach().index_select(dim, index.to(layer.weight.device)).clone()
    pruned = nn.Linear(weight.shape[1], weight.shape[0], layer.bias is not None, weight.device, weight.dtype)
    pruned.weight = nn.Parameter(weight)
    if layer.bias is not None:
        bias = layer.bias.detach()
        pruned.bias = nn.Parameter((bias if dim == 1 else bias[index.to(bias.device)]).clone())
    return pruned


def find_pruneable_heads_and_indices(
    heads: list[int] | set[int], n_heads: int, head_size: int, already_pruned_heads: set[int]
) -> tuple[set[int], Tensor]:
    """The heads that are not pruned yet, and the positions of the elements that stay when they go."""
    new = set(heads) - already_pruned_heads
    # A head's place among those that are left.
    places = {head - sum(pruned < head for pruned in already_pruned_heads) for head in new}
    kept = [place for place in range(n_heads) if place not in places]
    index = torch.arange(n_heads * head_size).view(n_heads, head_size)[kept].flatten()
    return new, index


# The classes of norms, whose weights are not decayed.
ALL_LAYERNORM_LAYERS: list[type[nn.Module]] = [nn.LayerNorm]
