"""When each token was said: dynamic time warping over the decoder's attention to the sound (Sakoe and Chiba 1978)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor


def token_times(attention: Tensor, width: int, precision: float) -> Tensor:
    """Seconds (N,) at which tokens begin, from the attention (H, N, S) of some heads to S positions of the sound.

    ``width``, an odd number of positions, is what the attention is smoothed over.
    """
    _, tokens, positions = attention.shape
    if not tokens or not positions:
        return torch.zeros(tokens)
    weights = attention.float()
    spread = weights.std(dim=1, keepdim=True, unbiased=False)
    weights = torch.where(spread > 0, (weights - weights.mean(dim=1, keepdim=True)) / spread, 0.0)
    path = warp(-_median(weights, width).mean(dim=0).double().cpu().numpy())
    return torch.tensor(path * precision, dtype=torch.float32)


def _median(weights: Tensor, width: int) -> Tensor:
    """The median of ``width`` neighbours in the last of three axes, which is mirrored at its ends."""
    half = width // 2
    if weights.shape[-1] <= half:
        return weights
    return F.pad(weights, (half, half), mode="reflect").unfold(-1, width, 1).sort().values[..., half]


def warp(costs: NDArray[np.float64]) -> NDArray[np.int64]:
    """The column (N,) at which the cheapest path through costs (N, S), which goes down, right or both, enters each row.

    The cells of an anti-diagonal depend on the two before it alone, so that each is computed at once.
    """
    rows, columns = costs.shape
    total = np.full((rows + 1, columns + 1), np.inf, dtype=np.float32)
    step = np.zeros((rows + 1, columns + 1), dtype=np.int8)  # from where: 0 above and left, 1 above, 2 left
    total[0, 0] = 0
    flat, steps, wide = total.ravel(), step.ravel(), columns + 1
    for diagonal in range(2, rows + columns + 1):
        top, bottom = max(1, diagonal - columns), min(rows, diagonal - 1)
        # One row further down and one column to the left is one width less one further on.
        here = slice(top * wide + diagonal - top, bottom * wide + diagonal - bottom + 1, wide - 1)
        both, above, left = (flat[here.start - back : here.stop - back : wide - 1] for back in (wide + 1, wide, 1))
        choice = np.where((both < above) & (both < left), 0, np.where((above < both) & (above < left), 1, 2))
        steps[here] = choice
        order = np.arange(top, bottom + 1)
        flat[here] = costs[order - 1, diagonal - order - 1] + np.choose(choice, (both, above, left))
    return _entries(step)


def _entries(step: NDArray[np.int8]) -> NDArray[np.int64]:
    row, column = step.shape[0] - 1, step.shape[1] - 1
    entered = np.zeros(row, dtype=np.int64)
    while row > 0 and column > 0:
        entered[row - 1] = column - 1
        kind = step[row, column]
        row, column = row - (kind != 2), column - (kind != 1)
    return entered


def heads_of(attentions: Sequence[Tensor], heads: Sequence[Sequence[int]], row: int) -> Tensor:
    """(H, T, S) of a row: the attention of heads, each a layer and its head, from one (B, heads, T, S) a layer."""
    return torch.stack([attentions[layer][row, head] for layer, head in heads])
