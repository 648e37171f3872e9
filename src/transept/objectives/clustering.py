"""Clusters of embeddings: k-means, and a network that sharpens its own assignments.

Shapes: B rows, D size of an embedding, K clusters.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from transept.errors import InputError
from transept.objectives.classification import widened
from transept.objectives.terms import LossTerm


class KMeans:
    """K-means (Lloyd 1982) from centres that are spread by k-means++ (Arthur and Vassilvitskii 2007).

    Args:
        clusters: K.
        iterations: passes over the rows at most; it ends earlier where no row changes its cluster.
        seed: of the choice of the first centres.
    """

    def __init__(self, clusters: int, *, iterations: int = 100, seed: int = 0) -> None:
        if clusters < 1:
            raise InputError(f"`clusters` must be at least 1, but is {clusters}.")
        self.clusters, self.iterations = clusters, iterations
        self.generator = torch.Generator().manual_seed(seed)
        self.centers: Tensor | None = None
        self.counts = torch.zeros(clusters)

    def fit(self, rows: Tensor) -> Tensor:
        """Find the centres of rows (B, D); gives the cluster of each row, (B).

        Raises:
            InputError: fewer rows than clusters.
        """
        centers = self._first_centers(rows)
        before: Tensor | None = None
        for _ in range(self.iterations):
            assigned = torch.cdist(rows, centers).argmin(dim=1)
            if before is not None and torch.equal(assigned, before):
                break
            before = assigned
            self.counts = torch.bincount(assigned, minlength=self.clusters).to(rows)
            sums = torch.zeros_like(centers).index_add_(0, assigned, rows)
            filled = self.counts > 0  # an empty cluster keeps its centre
            centers = torch.where(filled[:, None], sums / self.counts.clamp(min=1)[:, None], centers)
        self.centers = centers
        return self.predict(rows)

    def partial_fit(self, rows: Tensor) -> Tensor:
        """Move the centres towards a batch (B, D) of a stream (Sculley 2010); the first batch sets them."""
        if self.centers is None:
            return self.fit(rows)
        assigned, self.counts = self.predict(rows), self.counts.to(rows)
        added = torch.bincount(assigned, minlength=self.clusters).to(rows)
        self.counts += added
        sums = torch.zeros_like(self.centers).index_add_(0, assigned, rows)
        self.centers += (sums - added[:, None] * self.centers) / self.counts.clamp(min=1)[:, None]
        return assigned

    def predict(self, rows: Tensor) -> Tensor:
        """The cluster of each row (B, D): (B)."""
        if self.centers is None:
            raise InputError("these clusters have no centres yet.", hint="Call fit(rows) first.")
        return torch.cdist(rows, self.centers).argmin(dim=1)

    def _first_centers(self, rows: Tensor) -> Tensor:
        if len(rows) < self.clusters:
            raise InputError(f"{self.clusters} clusters need as many rows, but there are {len(rows)}.")
        places = [int(torch.randint(len(rows), (), generator=self.generator))]
        while len(places) < self.clusters:  # the further a row is from all centres, the likelier it is the next
            squares = torch.cdist(rows, rows[places]).amin(dim=1).square().double().cpu()
            shares = squares if bool(squares.sum() > 0) else torch.ones_like(squares)
            places.append(int(torch.multinomial(shares, 1, generator=self.generator)))
        return rows[places].clone()


def soft_assignments(rows: Tensor, centers: Tensor, *, freedom: float = 1.0) -> Tensor:
    """The share (B, K) to which each row (B, D) belongs to each centre (K, D), by Student's t (Xie et al. 2016)."""
    near = (1 + torch.cdist(widened(rows), widened(centers)).square() / freedom) ** (-(freedom + 1) / 2)
    return near / near.sum(dim=1, keepdim=True)


def sharpened(shares: Tensor) -> Tensor:
    """What assignments (B, K) are to become: squared, and weighed against the size of the clusters (Xie et al. 2016)."""
    squared = shares.detach().square() / shares.detach().sum(dim=0)
    return squared / squared.sum(dim=1, keepdim=True)


def deep_clustering(shares: Tensor, target: Tensor) -> LossTerm:
    """The divergence of assignments (B, K) from their ``target`` (B, K), as :func:`sharpened` gives it; it counts rows."""
    if shares.shape != target.shape:
        raise InputError(f"assignments have the shape {tuple(shares.shape)}, but their target {tuple(target.shape)}.")
    apart = F.kl_div(shares.clamp(min=torch.finfo(shares.dtype).tiny).log(), target.detach(), reduction="sum")
    return LossTerm(apart, torch.tensor(len(shares), device=shares.device))
