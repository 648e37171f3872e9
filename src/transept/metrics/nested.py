"""Trees of tensors and arrays under the reference's names: tuples, lists and mappings of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from transept.errors import InputTypeError
from transept.metrics.base import to_array
from transept.objectives.classification import IGNORED

nested_numpify = to_array


def _mapped(change: Callable[..., Any], *trees: Any) -> Any:
    """A tree of what ``change`` gives for the leaves of trees of one form."""
    first = trees[0]
    if isinstance(first, Mapping):
        return type(first)({name: _mapped(change, *(tree[name] for tree in trees)) for name in first})  # type: ignore[call-arg]
    if isinstance(first, list | tuple):
        return type(first)(_mapped(change, *parts) for parts in zip(*trees))
    return change(*trees)


def nested_detach(tensors: Any) -> Any:
    return _mapped(lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, tensors)


def nested_truncate(tensors: Any, limit: int) -> Any:
    """The first ``limit`` rows."""
    return _mapped(lambda leaf: leaf[:limit], tensors)


def nested_concat(tensors: Any, new_tensors: Any, padding_index: int = IGNORED) -> Any:
    """Rows of two trees of one form one behind the other, padded to the longer second axis."""

    def joined(*pair: Any) -> Any:
        if not all(isinstance(leaf, Tensor) for leaf in pair) and not all(isinstance(leaf, np.ndarray) for leaf in pair):
            kinds = " and ".join(type(leaf).__name__ for leaf in pair)
            raise InputTypeError(f"{kinds} cannot be joined.", hint="Pass two tensors, or two arrays, at each place.")
        rows = [part if part.ndim else part[None] for part in map(torch.as_tensor, pair)]
        if rows[0].ndim > 1:
            longest = max(part.shape[1] for part in rows)
            sides = [0, 0] * (rows[0].ndim - 2)
            rows = [F.pad(part, [*sides, 0, longest - part.shape[1]], value=padding_index) for part in rows]
        return torch.cat(rows) if isinstance(pair[0], Tensor) else torch.cat(rows).numpy()

    return _mapped(joined, tensors, new_tensors)


def find_batch_size(tensors: Any) -> int | None:
    """The length of the first axis of the first tensor or array that has one."""
    if isinstance(tensors, list | tuple | Mapping):
        leaves = tensors.values() if isinstance(tensors, Mapping) else tensors
        return next((size for size in map(find_batch_size, leaves) if size is not None), None)
    return tensors.shape[0] if isinstance(tensors, Tensor | np.ndarray) and tensors.ndim else None


def denumpify_detensorize(metrics: Any) -> Any:
    """Metrics with Python's numbers in the place of NumPy's, and of tensors of one number."""
    is_number = isinstance(metrics, np.generic) or (isinstance(metrics, Tensor) and metrics.numel() == 1)
    if isinstance(metrics, list | tuple | Mapping):
        return _mapped(denumpify_detensorize, metrics)
    return metrics.item() if is_number else metrics
