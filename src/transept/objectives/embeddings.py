"""Losses of sentence embeddings: pairs that belong together, graded similarities, and triplets.

Shapes: B pairs, N passages, D size of an embedding.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from transept.errors import InputError
from transept.objectives.classification import widened
from transept.objectives.terms import LossTerm


def in_batch_negatives(queries: Tensor, passages: Tensor, *, scale: float = 20.0, symmetric: bool = False) -> LossTerm:
    """Cross-entropy of each query's own passage among all passages of a batch (Henderson et al. 2017).

    Similarities are cosines times ``scale``, the inverse of a temperature. With two dropout passes over the same sentences as
    queries and passages this is SimCSE (Gao et al. 2021). A part of a batch has fewer negatives, so the term is not additive.

    Args:
        queries: (B, D).
        passages: (N, D), N >= B: the first B belong to the queries in order, those after them are further negatives.
        symmetric: whether passages also choose among the queries; the loss is the mean of both.

    Raises:
        InputError: fewer passages than queries, or embeddings of different sizes.
    """
    if len(passages) < len(queries) or len(queries) == 0 or queries.shape[1:] != passages.shape[1:]:
        shapes = f"{tuple(queries.shape)} and {tuple(passages.shape)}"
        raise InputError(f"queries and passages have the shapes {shapes}, but each query needs a passage of its size.")
    scores = cosines(queries, passages) * scale
    right = torch.arange(len(queries), device=scores.device)
    loss = F.cross_entropy(scores, right)
    if symmetric:
        loss = (loss + F.cross_entropy(scores[:, : len(queries)].T, right)) / 2
    return LossTerm(loss, torch.ones((), device=scores.device), additive=False)


def cosines(left: Tensor, right: Tensor) -> Tensor:
    """The cosine of every row (B, D) with every row (N, D): (B, N), in float32 at least."""
    return F.normalize(widened(left), dim=-1) @ F.normalize(widened(right), dim=-1).T


def cosine_regression(left: Tensor, right: Tensor, labels: Tensor) -> LossTerm:
    """The squared difference of the cosines of pairs (B, D) and their labels (B); it counts pairs."""
    _check_pairs(left, right, labels)
    similar = F.cosine_similarity(widened(left), widened(right))
    return LossTerm((similar - labels.to(similar)).square().sum(), torch.tensor(len(left), device=left.device))


def triplets(anchors: Tensor, positives: Tensor, negatives: Tensor, *, margin: float = 5.0) -> LossTerm:
    """How much nearer than ``margin`` negatives are than positives, by Euclidean distance; embeddings are (B, D)."""
    if not anchors.shape == positives.shape == negatives.shape:
        shapes = ", ".join(str(tuple(each.shape)) for each in (anchors, positives, negatives))
        raise InputError(f"anchors, positives and negatives must have one shape, but have {shapes}.")
    near, far = (F.pairwise_distance(widened(anchors), widened(each), eps=0.0) for each in (positives, negatives))
    return LossTerm(F.relu(near - far + margin).sum(), torch.tensor(len(anchors), device=anchors.device))


def ranked_cosines(left: Tensor, right: Tensor, labels: Tensor, *, scale: float = 20.0) -> LossTerm:
    """CoSENT: pairs with a higher label should have a higher cosine than those with a lower one (Su 2022).

    It is the logarithm of 1 plus the sum, over all two pairs that compare, of ``exp(scale * (lower - higher))``, which is no
    sum over pairs, so the term is not additive. Shapes as for :func:`cosine_regression`.
    """
    _check_pairs(left, right, labels)
    similar = F.cosine_similarity(widened(left), widened(right)) * scale
    apart = similar[:, None] - similar[None, :]  # of pair i over pair j
    apart = apart.masked_fill(labels[:, None] >= labels[None, :], -torch.inf)
    loss = torch.cat([apart.new_zeros(1), apart.flatten()]).logsumexp(dim=0)
    return LossTerm(loss, torch.ones((), device=loss.device), additive=False)


def _check_pairs(left: Tensor, right: Tensor, labels: Tensor) -> None:
    if left.shape != right.shape or labels.shape != left.shape[:1]:
        shapes = f"{tuple(left.shape)}, {tuple(right.shape)} and {tuple(labels.shape)}"
        raise InputError(f"pairs and their labels have the shapes {shapes}, but must be (B, D), (B, D) and (B,).")
