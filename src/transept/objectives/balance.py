"""How evenly tokens are spread over experts.

Shapes: B batch, T positions, N = B * T tokens, E experts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from transept.objectives.terms import LossTerm


def load_balance(logits: Sequence[Tensor], top: int, real: Tensor | None, weight: float) -> LossTerm:
    """E times the product of each expert's share of choices and its mean probability, summed (Fedus et al. 2022).

    Shares and probabilities are means over the tokens of all layers together. That is no sum over tokens, so the term keeps
    its own mean when batches are accumulated. It is ``top`` where the choices are even.

    Args:
        logits: the routers', (N, E) for each layer, of which ``top`` experts are chosen for a token.
        real: (B, T), 1 for the tokens that count; all of them when absent.
    """
    probabilities = F.softmax(torch.stack(list(logits)), dim=-1).float()
    counted = torch.ones_like(probabilities[0, :, 0]) if real is None else real.reshape(-1).to(probabilities)
    chosen = torch.zeros_like(probabilities).scatter_(-1, probabilities.topk(top, dim=-1).indices, 1.0)
    total = counted.sum() * len(logits)
    share = (chosen * counted[:, None]).sum(dim=(0, 1)) / total
    mean = (probabilities * counted[:, None]).sum(dim=(0, 1)) / total
    loss = (share * mean).sum() * probabilities.shape[-1]
    return LossTerm(loss, torch.ones_like(loss), weight=weight, additive=False)
