"""What takes rows out of a linear layer, and what tells tensors that share memory."""

from __future__ import annotations

import torch
from torch import Tensor, nn


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


def id_tensor_storage(tensor: Tensor) -> tuple[torch.device, int, int]:
    """What two tensors have in common that share their memory: the device, the address of the memory, and its size in bytes."""
    storage = tensor.untyped_storage()
    return tensor.device, storage.data_ptr(), storage.nbytes()


# The classes of norms, whose weights are not decayed.
ALL_LAYERNORM_LAYERS: list[type[nn.Module]] = [nn.LayerNorm]
