"""Key-value caches: what attention keeps of earlier positions.

A cache knows its own length, and so makes the positions and masks of what comes next. Buffers grow by half of their size,
so that decoding n tokens copies O(n) and not O(n^2) values. Other kinds of caches differ in the layers that they make: see
``caches``, ``offloaded_cache`` and ``quantized_cache``.

Shapes: B batch, H key-value heads, S cached positions, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Self

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from transept.config import Config
from transept.errors import InputError


class KeyValues:
    """The keys and values of one attention layer, or nothing yet.

    What is given first is kept as it is and never written to, since it belongs to the caller. Later positions go into
    buffers of our own, but not while gradients are recorded or a graph is traced: then each step makes new tensors.
    """

    def __init__(self) -> None:
        self.held = 0
        self.dropped = 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None
        self._owned = False

    @property
    def length(self) -> int:
        """Positions so far: those held, and those before them that were dropped since nothing looks back so far."""
        return self.dropped + self.held

    @property
    def keys(self) -> Tensor | None:
        """(B, H, S, D) of the positions held, or ``None`` while empty; a view that holds until the cache changes."""
        return None if self._keys is None else self._keys[:, :, : self.held]

    @property
    def values(self) -> Tensor | None:
        """(B, H, S, D) of the positions held, or ``None`` while empty; a view that holds until the cache changes."""
        return None if self._values is None else self._values[:, :, : self.held]

    @property
    def shape(self) -> tuple[int, int, int, int] | None:
        """(B, H, S, D) of the positions held, or ``None`` while empty."""
        keys = self.keys
        return None if keys is None else (keys.shape[0], keys.shape[1], keys.shape[2], keys.shape[3])

    @property
    def nbytes(self) -> int:
        """Bytes of all that is kept, room for later positions included."""
        return sum(part.nbytes for part in (self._keys, self._values) if part is not None)

    def append(self, keys: Tensor, values: Tensor, window: int | None = None) -> tuple[Tensor, Tensor]:
        """Add (B, H, T, D) new positions; return all that the new ones may look at.

        Args:
            keys, values: those of the new positions.
            window: how many positions a query sees, itself included; all before it when ``None``. What kinds of caches do
                with it is theirs: this one keeps all.

        Raises:
            InputError: another batch size, number of heads, head size, type or device than what is cached.
        """
        if self._keys is None or self._values is None:
            self._keys, self._values, self.held = keys, values, keys.shape[2]
            return keys, values
        self._check("keys", self._keys, keys)
        self._check("values", self._values, values)
        end = self.held + keys.shape[2]
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or self._frozen():
            self._keys = torch.cat([self._keys[:, :, : self.held], keys], dim=2)
            self._values = torch.cat([self._values[:, :, : self.held], values], dim=2)
            self._owned = False
        else:
            self._keys = self._extended(self._keys, keys, end)
            self._values = self._extended(self._values, values, end)
            self._owned = True
        self.held = end
        return self._keys[:, :, :end], self._values[:, :, :end]

    def _check(self, name: str, old: Tensor, new: Tensor) -> None:
        if (old.shape[:2], old.shape[3], old.dtype, old.device) != (new.shape[:2], new.shape[3], new.dtype, new.device):
            held = (*old.shape[:2], self.held, old.shape[3])
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
            room = max(end, self.held + max(self.held // 2, 64))
            grown = self._empty(buffer, room)
            grown[:, :, : self.held] = buffer[:, :, : self.held]
            buffer = grown
        buffer[:, :, self.held : end] = new
        return buffer

    def _empty(self, like: Tensor, size: int) -> Tensor:
        return like.new_empty((*like.shape[:2], size, like.shape[3]))

    def crop(self, length: int) -> None:
        """Forget all but the first ``length`` positions; their room is used again."""
        self.held = min(self.held, length)

    def reset(self) -> None:
        """Forget everything."""
        self.held = self.dropped = 0
        self._keys = self._values = None

    def change(self, function: Callable[[Tensor], Tensor]) -> None:
        """Replace what is kept by a function of it that changes the batch alone, such as a reordering."""
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
            cls.take_apart,
            _Unflatten(cls),
            flatten_with_keys_fn=_flatten_with_keys,
            serialized_type_name=f"{cls.__module__}.{cls.__qualname__}",
        )

    def make(self, index: int) -> KeyValues:
        """The key-values of one layer, with nothing in them; what makes a kind of cache."""
        return KeyValues()

    def layer(self, index: int) -> KeyValues:
        """The self-attention cache of one layer."""
        while len(self.layers) <= index:
            self.layers.append(self.make(len(self.layers)))
        return self.layers[index]

    def cross_layer(self, index: int) -> KeyValues:
        """The cross-attention cache of one layer, which is filled once."""
        while len(self.cross) <= index:
            self.cross.append(KeyValues())
        return self.cross[index]

    def get_seq_length(self, layer: int = 0) -> int:
        """Number of positions so far."""
        return self.layers[layer].length if len(self.layers) > layer else 0

    def get_max_length(self) -> int:
        """Number of positions that there is room for, -1 where there is no end."""
        return -1

    def get_memory_footprint(self) -> int:
        """Bytes of all that is kept, room for later positions included."""
        return sum(layer.nbytes for layer in (*self.layers, *self.cross))

    def span(self, new: int) -> tuple[int | Tensor, int]:
        """For ``new`` positions: how many come before them, and how many keys there are with them.

        The former is a tensor of no dimension where a program is compiled that is for any number of them.
        """
        past = self.get_seq_length()
        return past, past + new

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
        shape = self.layers[0].shape
        if shape is not None and shape[0] != batch:
            raise InputError(
                f"the cache holds (batch, heads, positions, head size) = {shape}, but the inputs are a batch of {batch}.",
                hint="Pick its rows with reorder_cache, or start with a new cache.",
            )

    def __len__(self) -> int:
        return len(self.layers)

    def reorder_cache(self, beams: Tensor) -> None:
        """Pick rows of the batch: (B') indices of rows to keep, in order."""
        self._change(lambda states: states.index_select(0, beams.to(states.device)))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Pick rows of the batch, as :meth:`reorder_cache` does."""
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row of the batch ``repeats`` times."""
        self._change(lambda states: states.repeat_interleave(repeats, dim=0))

    def crop(self, length: int) -> None:
        """Forget all but the first ``length`` positions; a negative number forgets that many of the last."""
        keep = length if length >= 0 else max(self.get_seq_length() + length, 0)
        for layer in self.layers:
            layer.crop(keep)

    def reset(self) -> None:
        """Forget everything; buffers of one size stay."""
        for layer in (*self.layers, *self.cross):
            layer.reset()

    def arguments(self) -> tuple[Any, ...]:
        """What a cache of this kind and these settings is made of."""
        return ()

    def take_apart(self) -> tuple[list[Tensor | None], Any]:
        """The tensors, and what of plain values is needed to put them together again."""
        layers = (*self.layers, *self.cross)
        parts = [part for layer in layers for part in (layer.keys, layer.values)]
        return parts, (len(self.layers), len(self.cross), tuple(layer.dropped for layer in layers), self.arguments())

    @classmethod
    def put_together(cls, parts: Iterable[Any], sizes: Any) -> Self:
        """A cache of what another was taken apart into."""
        own, cross, dropped, arguments = sizes
        cache, parts = cls(*arguments), iter(parts)
        layers = [*(cache.layer(index) for index in range(own)), *(cache.cross_layer(index) for index in range(cross))]
        for layer, before in zip(layers, dropped, strict=True):
            keys, values = next(parts), next(parts)
            if keys is not None:
                layer.append(keys, values)
            layer.dropped = before
        return cache

    def _change(self, function: Callable[[Tensor], Tensor]) -> None:
        for layer in (*self.layers, *self.cross):
            layer.change(function)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(layers={len(self.layers)}, positions={self.get_seq_length()})"


def _flatten_with_keys(cache: Cache) -> tuple[list[tuple[Any, Tensor | None]], Any]:
    parts, sizes = cache.take_apart()
    return [(pytree.SequenceKey(index), part) for index, part in enumerate(parts)], sizes


class _Unflatten:
    """Rebuilds a cache of one class; an object and not a closure, so that it pickles."""

    def __init__(self, cls: type[Cache]) -> None:
        self.cls = cls

    def __call__(self, parts: Iterable[Any], sizes: Any) -> Cache:
        return self.cls.put_together(parts, sizes)


class DynamicCache(Cache):
    """A cache that grows as long as there is memory, and keeps all positions, so that it can be cropped to any length.

    Args:
        ddp_cache_data: keys and values of each layer to begin with.
        config: taken since other kinds need one; this one finds out all that it must know.
    """

    def __init__(self, ddp_cache_data: Iterable[tuple[Tensor, Tensor]] | None = None, config: Config | None = None) -> None:
        super().__init__()
        for index, (keys, values) in enumerate(ddp_cache_data or ()):
            self.layer(index).append(keys, values)

    @property
    def rows(self) -> int:
        """B; 0 while empty."""
        shape = self.layers[0].shape if self.layers else None
        return 0 if shape is None else shape[0]

    def spread(self, offsets: list[int]) -> DynamicCache:
        """A cache of the same length with a row for each offset: this one's only row, so many positions further to the right.

        What is before it is padding, and what has no place is left out. This cache stays as it is.
        """

        def moved(states: Tensor) -> Tensor:
            found = states.new_zeros((len(offsets), *states.shape[1:]))
            for row, offset in zip(found, offsets, strict=True):
                row[:, offset:] = states[0, :, : max(states.shape[2] - offset, 0)]
            return found

        pairs = [(moved(layer.keys), moved(layer.values)) for layer in self.layers]  # type: ignore[arg-type]
        return DynamicCache(pairs)
