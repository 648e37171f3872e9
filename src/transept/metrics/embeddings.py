"""What embeddings are good for: a linear probe, neighbours, alignment and uniformity."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from transept.errors import refuse


def linear_probe(
    embeddings: Any, labels: Any, test_embeddings: Any, test_labels: Any, penalty: float = 1.0, steps: int = 500
) -> float:
    """The accuracy on held-out rows of a logistic regression on embeddings (N, D) with labels (N) of classes.

    It is fitted by at most ``steps`` iterations of L-BFGS in float64. ``penalty / 2`` times the weights' squares is
    added to the sum of losses; biases are free.
    """
    x, y = _labelled(embeddings, labels)
    test_x, test_y = _labelled(test_embeddings, test_labels)
    classes = int(max(y.max(), test_y.max())) + 1
    weight = torch.zeros(x.shape[1], classes, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(classes, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=steps, tolerance_grad=1e-8, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = F.cross_entropy(x @ weight + bias, y, reduction="sum") + penalty / 2 * weight.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    with torch.enable_grad():
        optimizer.step(loss)  # type: ignore[no-untyped-call]
    return float(((test_x @ weight + bias).argmax(dim=1) == test_y).double().mean().item())


def knn_accuracy(embeddings: Any, labels: Any, test_embeddings: Any, test_labels: Any, k: int = 5) -> float:
    """The accuracy on held-out rows of the commonest label of the ``k`` rows of largest cosine (ties: the lowest)."""
    x, y = _labelled(embeddings, labels)
    test_x, test_y = _labelled(test_embeddings, test_labels)
    refuse(not 1 <= k <= len(x), f"`k` is {k}, but must be from 1 to the {len(x)} rows.")
    near = (F.normalize(test_x, dim=1) @ F.normalize(x, dim=1).T).topk(k, dim=1).indices
    return float((y[near].mode(dim=1).values == test_y).double().mean())


def alignment(first: Any, second: Any, power: float = 2.0) -> float:
    """The mean distance, to a power, of the unit vectors (N, D) of pairs; less is better (Wang & Isola 2020)."""
    x, y = F.normalize(_rows(first), dim=1), F.normalize(_rows(second), dim=1)
    refuse(x.shape != y.shape, f"pairs have the shapes {tuple(x.shape)} and {tuple(y.shape)}.")
    return float((x - y).norm(dim=1).pow(power).mean())


def uniformity(embeddings: Any, scale: float = 2.0) -> float:
    """The log of the mean ``exp(-scale * squared distance)`` over pairs of unit vectors (N, D); less is better."""
    x = F.normalize(_rows(embeddings), dim=1)
    refuse(len(x) < 2, "uniformity needs two rows at least.")
    return float(torch.pdist(x).square().mul(-scale).exp().mean().log())


def _rows(embeddings: Any) -> Tensor:
    x = torch.as_tensor(embeddings).detach().double().cpu()
    refuse(x.ndim != 2 or not len(x), f"embeddings must be (rows, size), but have the shape {tuple(x.shape)}.")
    return x


def _labelled(embeddings: Any, labels: Any) -> tuple[Tensor, Tensor]:
    x, y = _rows(embeddings), torch.as_tensor(labels).cpu()
    message = f"labels must be {len(x)} integers, but have the shape {tuple(y.shape)} and are {y.dtype}."
    refuse(y.shape != x.shape[:1] or y.is_floating_point(), message)
    return x, y.long()
