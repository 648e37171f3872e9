"""Losses as (sum, count), so that accumulated micro-batches give the gradient of one large batch.

The mean over a batch of micro-batches is not the mean of their means. A loss here is therefore one or more named terms,
each a sum over items and their number; whoever accumulates adds the numbers up first and passes them back as
``num_items_in_batch``, and every micro-batch then divides its sums by the whole batch's counts. Models count their labels
before any forward pass, by their method ``count``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch import Tensor

from transept.errors import InputError

Items = int | float | Tensor | Mapping[str, int | float | Tensor]


@dataclass(frozen=True)
class LossTerm:
    """One part of a loss.

    ``sum`` is a scalar with gradient and ``count`` the number of items in it. ``weight`` is the term's share in the
    total. ``additive`` is false where sums of micro-batches do not make the sum of the whole batch (in-batch
    negatives, diversity of a codebook): such a term keeps its own mean. ``averaged`` is false where the loss is the sum
    itself, and ``least`` is what a sum is divided by where fewer items were counted.
    """

    sum: Tensor
    count: Tensor
    weight: float = 1.0
    additive: bool = True
    averaged: bool = True
    least: float = 0.0

    @property
    def mean(self) -> Tensor:
        """``sum / count``; not a number where nothing was counted, as a mean over nothing is, unless ``least`` is positive."""
        if not self.averaged:
            return self.sum
        return self.sum / (self.count.clamp(min=self.least) if self.least else self.count)

    def share(self, items: float | Tensor) -> Tensor:
        """The share of this part in the mean over ``items``; zero, with gradients of zero, where there are none."""
        if not self.averaged:
            return self.sum
        if not isinstance(items, Tensor):
            return self.sum / (max(items, self.least) or 1.0)
        count = items.to(self.sum).clamp(min=self.least)
        return self.sum / torch.where(count == 0, 1.0, count)


pytree.register_pytree_node(
    LossTerm,
    lambda term: ([term.sum, term.count], (term.weight, term.additive, term.averaged, term.least)),
    lambda parts, fixed: LossTerm(*parts, *fixed),
    serialized_type_name=f"{__name__}.LossTerm",
)


def total(terms: Mapping[str, LossTerm], num_items_in_batch: Items | None = None, parts: int = 1) -> Tensor:
    """The weighted sum of the terms' means, a scalar.

    Args:
        terms: named terms.
        num_items_in_batch: items in the whole batch that this micro-batch is a part of: one number where the loss has
            one additive term, else one for each, by name. A term of which there are none in the whole batch is zero, and so
            are its gradients.
        parts: how many micro-batches, of all processes together, make the whole batch. A term that is not additive is divided
            by it: the whole batch has the mean over its parts.

    Raises:
        InputError: one number for several terms, a name that is missing, or what is no number of items.
    """
    return torch.stack(list(means(terms, num_items_in_batch, parts).values())).sum()


def means(terms: Mapping[str, LossTerm], num_items_in_batch: Items | None = None, parts: int = 1) -> dict[str, Tensor]:
    """Each term's weighted mean, a scalar; arguments and errors as for :func:`total`."""
    found = {}
    for name, term in terms.items():
        mean = _mean(name, term, terms, num_items_in_batch)
        found[name] = term.weight * (mean if term.additive else mean / parts)
    return found


def _mean(name: str, term: LossTerm, terms: Mapping[str, LossTerm], items: Items | None) -> Tensor:
    if items is None:
        return term.mean
    if not term.additive:
        return term.share(term.count)
    additive = [key for key, value in terms.items() if value.additive]
    if isinstance(items, Mapping):
        if name not in items:
            hint = f"It needs: {', '.join(additive)}."
            raise InputError(f"`num_items_in_batch` has no number for the term {name!r}.", hint=hint)
        return term.share(_checked(items[name]))
    if len(additive) > 1:
        hint = "Pass a mapping with a number for each; `outputs.loss_terms` gives their counts."
        raise InputError(f"`num_items_in_batch` is one number, but this loss has the terms {', '.join(additive)}.", hint=hint)
    return term.share(_checked(items))


def _checked(items: Any) -> float | Tensor:
    """A number of items, whose value is looked at where that costs nothing."""
    if isinstance(items, Tensor) and items.numel() == 1:
        return items.reshape(())
    if isinstance(items, int | float | np.integer) and 0 <= items < math.inf:
        return float(items)
    raise InputError(f"`num_items_in_batch` must be a number of items, but is {str(items)[:80]}.")
