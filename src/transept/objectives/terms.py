"""Losses as (sum, count), so that accumulated micro-batches give the gradient of one large batch.

The mean over a batch of micro-batches is not the mean of their means. A loss here is therefore one or more named terms,
each a sum over items and their number; whoever accumulates adds the numbers up first and passes them back as
``num_items_in_batch``, and every micro-batch then divides its sums by the whole batch's counts.
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
    negatives, diversity of a codebook): such a term keeps its own mean.
    """

    sum: Tensor
    count: Tensor
    weight: float = 1.0
    additive: bool = True

    @property
    def mean(self) -> Tensor:
        """``sum / count``; not a number where nothing was counted, as a mean over nothing is."""
        return self.sum / self.count


pytree.register_pytree_node(
    LossTerm,
    lambda term: ([term.sum, term.count], (term.weight, term.additive)),
    lambda parts, fixed: LossTerm(*parts, *fixed),
    serialized_type_name=f"{__name__}.LossTerm",
)


def total(terms: Mapping[str, LossTerm], num_items_in_batch: Items | None = None) -> Tensor:
    """The weighted sum of the terms' means, a scalar.

    Args:
        terms: named terms.
        num_items_in_batch: items in the whole batch that this micro-batch is a part of: one number where the loss has
            one additive term, else one for each, by name.

    Raises:
        InputError: one number for several terms, a name that is missing, or what is no number of items.
    """
    return torch.stack(list(means(terms, num_items_in_batch).values())).sum()


def means(terms: Mapping[str, LossTerm], num_items_in_batch: Items | None = None) -> dict[str, Tensor]:
    """Each term's weighted mean, a scalar; arguments and errors as for :func:`total`."""
    return {name: term.weight * _mean(name, term, terms, num_items_in_batch) for name, term in terms.items()}


def _mean(name: str, term: LossTerm, terms: Mapping[str, LossTerm], items: Items | None) -> Tensor:
    if items is None or not term.additive:
        return term.mean
    additive = [key for key, value in terms.items() if value.additive]
    if isinstance(items, Mapping):
        if name not in items:
            hint = f"It needs: {', '.join(additive)}."
            raise InputError(f"`num_items_in_batch` has no number for the term {name!r}.", hint=hint)
        return term.sum / _checked(items[name])
    if len(additive) > 1:
        hint = "Pass a mapping with a number for each; `outputs.loss_terms` gives their counts."
        raise InputError(f"`num_items_in_batch` is one number, but this loss has the terms {', '.join(additive)}.", hint=hint)
    return term.sum / _checked(items)


def _checked(items: Any) -> float | Tensor:
    """A number of items, whose value is looked at where that costs nothing."""
    if isinstance(items, Tensor) and items.numel() == 1:
        return items.reshape(())
    if isinstance(items, int | float | np.integer) and 0 <= items < math.inf:
        return float(items)
    raise InputError(f"`num_items_in_batch` must be a number of items, but is {str(items)[:80]}.")
