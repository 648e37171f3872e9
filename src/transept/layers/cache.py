"""Key-value caches: what attention keeps of earlier positions.

A cache knows its own length, and so makes the positions and masks of what comes next. Buffers grow by half of their size,
so that decoding n tokens copies O(n) and not O(n^2) values.

Shapes: B batch, H key-value heads, S cached positions, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from transept.errors import InputError


class KeyValues:
    """The keys and values of one attention layer: (B, H, S, D) each, or nothing yet."""

    def __init__(self) -> None:
        self.length = 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    @property
    def keys(self) -> Tensor | None:
        """(B, H, S, D), or ``None`` while empty."""
        return None if self._keys is None else self._keys[:, :, : self.length]

    @property
    def values(self) -> Tensor | None:
        """(B, H, S, D), or ``None`` while empty."""
        return None if self._values is None else self._values[:, :, : self.length]

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add (B, H, T, D) new positions; return all of them.

        Raises:
            InputError: another batch size, number of heads or head size than what is cached.
        """
        if self._keys is None or self._values is None:
            self._keys, self._values, self.length = keys, values, keys.shape[2]
            return keys, values
        old, new = self._keys.shape, keys.shape
        if (old[0], old[1], old[3]) != (new[0], new[1], new[3]):
            raise InputError(
                f"the cache holds (batch, heads, positions, head size) = {tuple(old)}, but the new keys are {tuple(new)}.",
                hint="A cache belongs to one model and one batch.",
            )
        if keys.requires_grad or self._keys.requires_grad or torch.compiler.is_compiling():
            self._keys = torch.cat([self.keys, keys], dim=2)  # type: ignore[list-item]
            self._values = torch.cat([self.values, values], dim=2)  # type: ignore[list-item]
        else:
            self._keys = self._extended(self._keys, keys)
            self._values = self._extended(self._values, values)
        self.length += new[2]
        return self.keys, self.values  # type: ignore[return-value]

    def _extended(self, buffer: Tensor, new: Tensor) -> Tensor:
        end = self.length + new.shape[2]
        if end > buffer.shape[2] or self._shared(buffer):
            room = max(end, buffer.shape[2] + max(buffer.shape[2] // 2, 64))
            grown = buffer.new_empty((*buffer.shape[:2], room, buffer.shape[3]))
            grown[:, :, : self.length] = buffer[:, :, : self.length]
            buffer = grown
        buffer[:, :, self.length : end] = new
        return buffer

    def _shared(self, buffer: Tensor) -> bool:
        # The first keys are the layer's own output, which belongs to the caller; never write behind it.
        return buffer.shape[2] == self.length

    def change(self, function: Callable[[Tensor], Tensor]) -> None:
        """Replace keys and values by a function of them, such as a reordering of the batch."""
        if self._keys is not None and self._values is not None:
            self._keys, self._values = function(self.keys), function(self.values)  # type: ignore[arg-type]
            self.length = self._keys.shape[2]


class Cache:
    """The key-values of all layers of a model; layers are made when they are first used.

    ``cross`` holds those of an encoder's states for models with cross-attention, computed once.
    """

    def __init__(self) -> None:
        self.layers: list[KeyValues] = []
        self.cross: list[KeyValues] = []

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # Exported and compiled programs take caches apart into tensors and put them together again.
        name = f"{cls.__module__}.{cls.__qualname__}"
        pytree.register_pytree_node(cls, _flatten, _Unflatten(cls), serialized_type_name=name)

    def layer(self, index: int) -> KeyValues:
        """The self-attention cache of one layer."""
        return _at(self.layers, index)

    def cross_layer(self, index: int) -> KeyValues:
        """The cross-attention cache of one layer."""
        return _at(self.cross, index)

    def get_seq_length(self, layer: int = 0) -> int:
        """Number of cached positions."""
        return self.layers[layer].length if len(self.layers) > layer else 0

    def __len__(self) -> int:
        return len(self.layers)

    def reorder_cache(self, beams: Tensor) -> None:
        """Pick rows of the batch: (B') indices of rows to keep, in order."""
        self._change(lambda states: states.index_select(0, beams.to(states.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row of the batch ``repeats`` times."""
        self._change(lambda states: states.repeat_interleave(repeats, dim=0))

    def crop(self, length: int) -> None:
        """Forget all but the first ``length`` positions; a negative number forgets that many of the last."""
        keep = length if length >= 0 else max(self.get_seq_length() + length, 0)
        for layer in self.layers:
            layer.change(lambda states: states[:, :, :keep])

    def _change(self, function: Callable[[Tensor], Tensor]) -> None:
        for layer in (*self.layers, *self.cross):
            layer.change(function)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(layers={len(self.layers)}, positions={self.get_seq_length()})"


def _at(layers: list[KeyValues], index: int) -> KeyValues:
    while len(layers) <= index:
        layers.append(KeyValues())
    return layers[index]


def _flatten(cache: Cache) -> tuple[list[Tensor | None], tuple[int, int]]:
    layers = (*cache.layers, *cache.cross)
    return [part for layer in layers for part in (layer.keys, layer.values)], (len(cache.layers), len(cache.cross))


class _Unflatten:
    """Rebuilds a cache of one class; an object and not a closure, so that it pickles."""

    def __init__(self, cls: type[Cache]) -> None:
        self.cls = cls

    def __call__(self, parts: Iterable[Any], sizes: Any) -> Cache:
        cache, parts = self.cls(), iter(parts)
        for group, size in zip((cache.layers, cache.cross), sizes, strict=True):
            for _ in range(size):
                layer, keys, values = KeyValues(), next(parts), next(parts)
                if keys is not None:
                    layer.append(keys, values)
                group.append(layer)
        return cache


class DynamicCache(Cache):
    """A cache that grows as long as there is memory."""
