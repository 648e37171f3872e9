"""Layers with a row for each token of a vocabulary that grows or shrinks."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn


@torch.no_grad()
def resize_rows(
    layers: Iterable[nn.Embedding | nn.Linear], rows: int, initialize: Callable[[nn.Module], object] | None = None
) -> None:
    """Give layers so many rows; a tensor that several share is made once.

    New rows are the mean of the old ones, or what ``initialize`` fills a new layer with.
    """
    fresh: dict[int, nn.Parameter] = {}
    for layer in layers:
        old = dict(layer.named_parameters(recurse=False))
        layer.weight = fresh[id(layer.weight)] if id(layer.weight) in fresh else _shared(fresh, layer.weight, rows)
        setattr(layer, "num_embeddings" if isinstance(layer, nn.Embedding) else "out_features", rows)
        if getattr(layer, "bias", None) is not None:
            layer.bias = _resized(layer.bias, rows)  # type: ignore[arg-type]
        if initialize is not None:
            initialize(layer)
            for name, kept in old.items():
                getattr(layer, name)[: len(kept)] = kept[:rows]


def _shared(fresh: dict[int, nn.Parameter], old: Tensor, rows: int) -> nn.Parameter:
    return fresh.setdefault(id(old), _resized(old, rows))


def _resized(old: Tensor, rows: int) -> nn.Parameter:
    kept = old.detach().to_dense()[:rows]  # packed layers have theirs in another layout
    mean = kept.float().mean(0).to(kept.dtype)
    grown = torch.cat([kept, mean.expand(rows - len(kept), *mean.shape)])
    return nn.Parameter(grown, requires_grad=old.requires_grad)
