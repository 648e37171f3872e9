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
    """The keys and values of one attention layer, or nothing yet.

    What is given first is kept as it is and never written to, since it belongs to the caller. Later positions go into
    buffers of our own, but not while gradients are recorded or a graph is traced: then each step makes new tensors.
    """

    def __init__(self) -> None:
        self.length = 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None
        self._owned = False

    @property
    def keys(self) -> Tensor | None:
        """(B, H, S, D), or ``None`` while empty; a view that holds until the cache changes."""
        return None if self._keys is None else self._keys[:, :, : self.length]

    @property
    def values(self) -> Tensor | None:
        """(B, H, S, D), or ``None`` while empty; a view that holds until the cache changes."""
        return None if self._values is None else self._values[:, :, : self.length]

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add (B, H, T, D) new positions; return all of them.

        Raises:
            InputError: another batch size, number of heads, head size, type or device than what is cached.
        """
        if self._keys is None or self._values is None:
            self._keys, self._values, self.length = keys, values, keys.shape[2]
            return keys, values
        self._check("keys", self._keys, keys)
        self._check("values", self._values, values)
        end = self.length + keys.shape[2]
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or self._frozen():
            self._keys = torch.cat([self._keys[:, :, : self.length], keys], dim=2)
            self._values = torch.cat([self._values[:, :, : self.length], values], dim=2)
            self._owned = False
        else:
            self._keys = self._extended(self._keys, keys, end)
            self._values = self._extended(self._values, values, end)
            self._owned = True
        self.length = end
        return self._keys[:, :, :end], self._values[:, :, :end]

    def _check(self, name: str, old: Tensor, new: Tensor) -> None:
        if (old.shape[:2], old.shape[3], old.dtype, old.device) != (new.shape[:2], new.shape[3], new.dtype, new.device):
            held = (*old.shape[:2], self.length, old.shape[3])
            raise InputError(
                f"the cache holds {name} of (batch, heads, positions, head size) = {held}, {old.dtype} on {old.device}, "
                f"but the new ones are {tuple(new.shape)}, {new.dtype} on {new.device}.",
                hint="A cache belongs to one model and one batch.",
            )

    def _frozen(self) -> bool:
        # What inference mode has made cannot be written to outside of it.
        assert self._keys is not None
        return self._keys.is_inference() and not torch.is_inference_mode_enabled()

    def _extended(self, buffer: Tensor, new: Tensor, end: int) -> Tensor:
        if end > buffer.shape[2] or not self._owned:
            room = max(end, self.length + max(self.length // 2, 64))
            grown = buffer.new_empty((*buffer.shape[:2], room, buffer.shape[3]))
            grown[:, :, : self.length] = buffer[:, :, : self.length]
            buffer = grown
        buffer[:, :, self.length : end] = new
        return buffer

    def crop(self, length: int) -> None:
        """Forget all but the first ``length`` positions; their room is used again."""
        self.length = min(self.length, length)

    def change(self, function: Callable[[Tensor], Tensor]) -> None:
        """Replace keys and values by a function of them that keeps positions, such as a reordering of the batch."""
        if self._keys is not None and self._values is not None:
            self._keys, self._values = function(self.keys), function(self.values)  # type: ignore[arg-type]
            self._owned = False


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
        pytree.register_pytree_node(
            cls,
            _flatten,
            _Unflatten(cls),
            flatten_with_keys_fn=_flatten_with_keys,
            serialized_type_name=f"{cls.__module__}.{cls.__qualname__}",
        )

    def layer(self, index: int) -> KeyValues:
        """The self-attention cache of one layer."""
        return _at(self.layers, index)

    def cross_layer(self, index: int) -> KeyValues:
        """The cross-attention cache of one layer."""
        return _at(self.cross, index)

    def get_seq_length(self, layer: int = 0) -> int:
        """Number of cached positions."""
        return self.layers[layer].length if len(self.layers) > layer else 0

    def check(self, layers: int, batch: int) -> None:
        """Refuse to serve another model or batch than the cached one.

        Args:
            layers: number of the model's layers.
            batch: rows of the new inputs.

        Raises:
            InputError: naming both.
        """
        if not self.layers:
            return
        if len(self.layers) != layers:
            raise InputError(
                f"the cache holds {len(self.layers)} layers, but the model has {layers}.",
                hint="A cache belongs to one model and one batch.",
            )
        keys = self.layers[0].keys
        if keys is not None and keys.shape[0] != batch:
            raise InputError(
                f"the cache holds (batch, heads, positions, head size) = {tuple(keys.shape)}, but the inputs are a batch of "
                f"{batch}.",
                hint="Pick its rows with reorder_cache, or start with a new cache.",
            )

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
            layer.crop(keep)

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


def _flatten_with_keys(cache: Cache) -> tuple[list[tuple[Any, Tensor | None]], tuple[int, int]]:
    parts, sizes = _flatten(cache)
    return [(pytree.SequenceKey(index), part) for index, part in enumerate(parts)], sizes


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
