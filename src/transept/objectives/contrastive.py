"""Telling the right target from others of the same recording (Baevski et al. 2020), and using all of a codebook.

Shapes: B batch, T positions, K negatives, P size of the space that is compared in.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from transept.errors import InputError
from transept.objectives.classification import widened
from transept.objectives.terms import LossTerm


def contrastive(states: Tensor, targets: Tensor, negatives: Tensor, mask: Tensor, temperature: float) -> LossTerm:
    """Cross-entropy of the right target among K wrong ones, by cosine, summed over masked positions.

    Not additive: negatives index the batch, so that a part of it is another task. The sum counts as one item, as the
    reference does not divide it.

    Args:
        states, targets: (B, T, P), what was predicted and what is right at each position.
        negatives: (B, T, K) indices into the B * T targets; those equal to the right target are left out.
        mask: (B, T) of bool, the positions that count.
        temperature: divides the cosines.

    Raises:
        InputError: shapes that do not fit.
    """
    if negatives.shape[:2] != states.shape[:2] or mask.shape != states.shape[:2]:
        raise InputError(
            f"negatives {tuple(negatives.shape)} and mask {tuple(mask.shape)} must be for the {tuple(states.shape[:2])} "
            "(batch, frames) of the states."
        )
    others = targets.flatten(0, 1)[negatives.long()]
    same = (others == targets[:, :, None]).all(dim=-1)
    candidates = widened(torch.cat([targets[:, :, None], others], dim=2))
    logits = F.cosine_similarity(widened(states)[:, :, None], candidates, dim=-1) / temperature
    logits = logits.masked_fill(F.pad(same, (1, 0)), -torch.inf)
    losses = logits.logsumexp(dim=-1) - logits[:, :, 0]
    return LossTerm(losses.masked_fill(~mask, 0.0).sum(), torch.ones((), device=states.device), additive=False)


def diversity(perplexity: Tensor, codes: int, mask: Tensor, weight: float) -> LossTerm:
    """The share of a codebook's vectors that is not used, once for each masked position (B, T)."""
    loss = (codes - perplexity) / codes * mask.sum()
    return LossTerm(loss, torch.ones((), device=loss.device), weight=weight, additive=False)


def sample_negatives(mask: Tensor, number: int, generator: torch.Generator | None = None) -> Tensor:
    """For each masked position, others of the same row, drawn alike and with replacement.

    Args:
        mask: (B, T), true for masked positions.
        number: K.
        generator: where chance comes from; the global one of the device when absent.

    Returns:
        (B, T, K) indices into the B * T positions; those of positions that are not masked mean nothing.

    Raises:
        InputError: a row with a single masked position or none has nothing to draw from.
    """
    rows, size = mask.shape
    mask, place = mask != 0, mask.device
    count = mask.sum(dim=1)
    if not torch.compiler.is_compiling() and mask.device.type == "cpu" and (few := count < 2).any():
        row = int(few.nonzero()[0])
        raise InputError(
            f"row {row} has {int(count[row])} masked frames, but negatives are drawn from the others of a row.",
            hint="Mask at least two frames of each row.",
        )
    places = (~mask).to(torch.int8).argsort(dim=1, stable=True)  # masked positions first, in order
    rank = (mask.cumsum(dim=1) - 1)[:, :, None]
    drawn = torch.rand((rows, size, number), device=place, generator=generator) * (count - 1)[:, None, None]
    drawn = drawn.long()
    drawn = (drawn + (drawn >= rank)).clamp(max=size - 1)  # leaves the position itself out
    chosen = places.gather(1, drawn.flatten(1)).view(rows, size, number)
    return chosen + torch.arange(rows, device=place)[:, None, None] * size
