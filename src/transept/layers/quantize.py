"""Vector quantization with learned codebooks.

Shapes: B batch, T positions, D size of what comes in, G groups (codebooks), V vectors in each, Q size of what goes out.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class GumbelQuantizer(nn.Module):
    """Chooses one vector of each codebook and joins them (product quantization, Jégou et al. 2011).

    In training the choice is drawn by Gumbel softmax (Jang et al. 2017) and the gradient goes straight through; otherwise
    it is the likeliest one, and has no gradient. ``temperature`` is that of the draw; trainings lower it step by step.
    """

    def __init__(self, dim: int, groups: int, vectors: int, out: int) -> None:
        super().__init__()
        self.groups, self.temperature = groups, 2.0
        self.codevectors = nn.Parameter(torch.empty(1, groups * vectors, out // groups))
        self.weight_proj = nn.Linear(dim, groups * vectors)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.codevectors)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Quantize (B, T, D) into (B, T, Q), and tell how evenly the codebooks are used in the positions of ``mask`` (B, T).

        That is the sum over codebooks of the perplexity of their use: G where one vector of each is always chosen, G * V where
        all are alike.
        """
        scores = self.weight_proj(x).view(*x.shape[:2], self.groups, -1)
        if self.training:
            wide = scores.float()
            choice = F.gumbel_softmax(wide, tau=self.temperature, hard=True).to(scores.dtype)
            used = wide.softmax(dim=-1)
        else:
            choice = used = F.one_hot(scores.argmax(dim=-1), scores.shape[-1]).to(scores.dtype)
        books = self.codevectors.view(self.groups, scores.shape[-1], -1)
        quantized = torch.einsum("btgv,gvq->btgq", choice, books).flatten(2)
        if mask is None:
            mean = used.mean(dim=(0, 1))
        else:
            mean = (used * mask[:, :, None, None]).sum(dim=(0, 1)) / mask.sum()
        return quantized, torch.exp(-torch.xlogy(mean, mean).sum(dim=-1)).sum()
