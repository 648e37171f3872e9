"""KV caches: the keys and values that attention keeps of earlier positions.

Buffers grow by half of their size, so that decoding n tokens copies O(n) values. See ``caches`` for other kinds.
Shapes: B batch, H key-value heads, S cached positions, D head size.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Self
from weakref import WeakKeyDictionary

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from transept.config.model import Config
from transept.errors import InputError, InputTypeError, UnsupportedError

# Keys and values.
Pair = tuple[Tensor, Tensor]

GROWTH = 64  # positions that a buffer gets more room for at least
# The caches that forward passes are using, and the threads that these run in; beside the caches, which can be copied.
_IN_USE: WeakKeyDictionary[Cache, int] = WeakKeyDictionary()
_LOCK = threading.Lock()
_APART = "Give each text and each thread a cache of its own, such as copy.deepcopy(cache)."
OWNER = "A cache belongs to one model and one batch."


class KeyValues:
    """The keys and values of one attention layer, or nothing yet.

    What is given first is kept as it is and never written to, since it belongs to the caller. Later positions go into
    buffers of our own, but not while gradients are recorded or a graph is traced: then each step makes new tensors.
    """

    def __init__(self) -> None:
        self.held = self.dropped = 0
        self.buffers: Pair | None = None
        self.owned = False

    @property
    def length(self) -> int:
        """Positions so far: those held, and those before them that were dropped since nothing looks back so far."""
        return self.dropped + self.held

    @property
    def pair(self) -> Pair | None:
        """Keys and values (B, H, S, D) of the positions held, ``None`` while empty; views that hold until the cache changes."""
        return None if self.buffers is None else (self.buffers[0][:, :, : self.held], self.buffers[1][:, :, : self.held])

    @property
    def keys(self) -> Tensor | None:
        return None if (pair := self.pair) is None else pair[0]

    @property
    def values(self) -> Tensor | None:
        return None if (pair := self.pair) is None else pair[1]

    @property
    def shape(self) -> tuple[int, ...] | None:
        """(B, H, S, D) of the positions held, or ``None`` while empty."""
        return self._shape(self.held)

    def _shape(self, positions: int) -> tuple[int, ...] | None:
        return None if self.buffers is None else (*self.buffers[0].shape[:2], positions, self.buffers[0].shape[3])

    @property
    def nbytes(self) -> int:
        """Bytes of all that is kept, room for later positions included."""
        return sum(part.nbytes for part in self.buffers or ())

    def append(self, keys: Tensor, values: Tensor, window: int | None = None) -> Pair:
        """Add (B, H, T, D) new positions; return all that the new ones may look at.

        A query sees ``window`` positions, itself included, or all before it; some kinds of caches drop the others.
        """
        if self.buffers is None:
            self.buffers, self.held = (keys, values), keys.shape[2]
            return keys, values
        self._check(keys, values)
        old, held, end = self.buffers, self.held, self.held + keys.shape[2]
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or _is_frozen(old[0]):
            found = torch.cat([old[0][:, :, :held], keys], dim=2), torch.cat([old[1][:, :, :held], values], dim=2)
            self.owned = False
        else:
            found = self._extended(old[0], keys, end), self._extended(old[1], values, end)
            self.owned = True
        self.buffers, self.held = found, end
        return found[0][:, :, :end], found[1][:, :, :end]

    def _check(self, *given: Tensor) -> None:
        for name, old, new in zip(("keys", "values"), self.buffers or (), given):
            if (old.shape[:2], old.shape[3], old.dtype, old.device) != (new.shape[:2], new.shape[3], new.dtype, new.device):
                held = (*old.shape[:2], self.held, old.shape[3])
                found = f"{name} of (batch, heads, positions, head size) = {held}, {old.dtype} on {old.device}"
                news = f"the new ones are {tuple(new.shape)}, {new.dtype} on {new.device}"
                raise InputError(f"the cache holds {found}, but {news}.", hint=OWNER)

    def _extended(self, buffer: Tensor, new: Tensor, end: int) -> Tensor:
        if end > buffer.shape[2] or not self.owned:
            grown = self._empty(buffer, max(end, self.held + max(self.held // 2, GROWTH)))
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
        self.held = self.dropped = 0
        self.buffers = None

    def change(self, function: Callable[[Tensor], Tensor]) -> None:
        """Replace what is kept by a function of it that changes the batch alone, such as a reordering."""
        if (pair := self.pair) is not None:
            self.buffers, self.owned = (function(pair[0]), function(pair[1])), False


def _is_frozen(made: Tensor) -> bool:
    # What inference mode has made cannot be written to outside of it.
    return made.is_inference() and not torch.is_inference_mode_enabled()


class Cache:
    """The keys and values of all layers of a model; layers are made when they are first used.

    ``cross`` holds those of an encoder's states for models with cross-attention, computed once. ``depth`` is the number of the
    model's layers, once it has been told. ``deltas`` (B) are what is added to the count of the positions that follow to number
    them, where pictures have taken fewer numbers than positions; they hold behind the first ``settled`` positions. ``config``
    is not needed.
    """

    is_compileable = False
    kind: ClassVar[type[KeyValues]] = KeyValues

    def __init__(self, config: Config | None = None) -> None:
        self.layers: list[KeyValues] = []
        self.cross: list[KeyValues] = []
        self.depth = self.settled = 0
        self.passes = 0  # forward passes that have used it
        self.deltas: Tensor | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # Exported and compiled graphs take caches apart into tensors and put them together again.
        pytree.register_pytree_node(
            cls,
            cls.take_apart,
            cls.put_together,
            flatten_with_keys_fn=_flatten_with_keys,
            serialized_type_name=f"{cls.__module__}.{cls.__qualname__}",
        )

    def make(self) -> KeyValues:
        """The key-values of one layer, with nothing in them; what makes a kind of cache."""
        return self.kind()

    def layer(self, index: int) -> KeyValues:
        while len(self.layers) <= index:
            self.layers.append(self.make())
        return self.layers[index]

    def cross_layer(self, index: int) -> KeyValues:
        while len(self.cross) <= index:
            self.cross.append(KeyValues())
        return self.cross[index]

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Pair:
        return self.layer(layer_idx).append(key_states, value_states)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.layers[layer_idx].length if len(self.layers) > layer_idx else 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """Number of positions that there is room for, -1 where there is no end."""
        return -1

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        return self.get_max_length(layer_idx)

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """For so many new positions: how many keys they meet in a layer, and how many were dropped before those."""
        dropped = self.layers[layer_idx].dropped if len(self.layers) > layer_idx else 0
        return self.get_seq_length(layer_idx) - dropped + query_length, dropped

    @property
    def batch_size(self) -> int:
        """B; 0 while empty."""
        return shape[0] if self.layers and (shape := self.layers[0].shape) is not None else 0

    @property
    def is_initialized(self) -> bool:
        return self.batch_size > 0

    def get_memory_footprint(self) -> int:
        """Bytes of all that is kept, room for later positions included."""
        return sum(layer.nbytes for layer in (*self.layers, *self.cross))

    def footprint_at(self, positions: int) -> int:
        """About the bytes that will be kept of so many positions, from what is kept of those so far."""
        own, cross = (sum(layer.nbytes for layer in layers) for layers in (self.layers, self.cross))
        return own * positions // max(self.get_seq_length(), 1) + cross

    def span(self, new: int) -> tuple[int | Tensor, int]:
        """For ``new`` positions: how many come before them, and how many keys there are with them.

        The former is a tensor of no dimension where a graph is compiled that is for any number of them.
        """
        past = self.get_seq_length()
        return past, past + new

    @contextmanager
    def in_use(self, passes: int | None = None) -> Iterator[None]:
        """Around a forward pass: what another thread does with the cache meanwhile is refused.

        Raises:
            InputError: another thread is using it, or other ``passes`` have used it than those that are known of.
        """
        with _LOCK:
            self.check_unused()
            if passes not in (None, self.passes):
                raise InputError("the cache was used by others while a text was written with it.", hint=_APART)
            is_inner = self in _IN_USE
            _IN_USE[self] = threading.get_ident()
        try:
            yield
        finally:
            if not is_inner:
                self.passes += 1
                with _LOCK:
                    del _IN_USE[self]

    def check_unused(self) -> None:
        """Refuse to be used while a forward pass in another thread does so (``InputError``)."""
        if _IN_USE.get(self, here := threading.get_ident()) != here:
            raise InputError("the cache is being used by a forward pass in another thread.", hint=_APART)

    def check(self, layers: int, batch: int) -> None:
        """Refuse to serve a model of another number of layers or another batch than the cached one (``InputError``)."""
        if not len(self):
            self.depth = layers
            return
        if not torch.compiler.is_compiling():
            self.check_finished()
        if (held := max(len(self), self.depth)) != layers:
            raise InputError(f"the cache holds {held} layers, but the model has {layers}.", hint=OWNER)
        if self.batch_size not in (0, batch):
            shape = f"(batch, heads, positions, head size) = {self.layers[0].shape}" if self.layers else ""
            message = f"the cache holds {shape or f'a batch of {self.batch_size}'}, but the inputs are a batch of {batch}."
            raise InputError(message, hint="Pick its rows with reorder_cache, or start with a new cache.")

    def check_finished(self) -> None:
        """Refuse to go on where an interrupted forward pass has left layers of unequal lengths (``InputError``)."""
        self.check_unused()
        lengths = [layer.length for layer in self.layers]
        lengths += [0] * (self.depth - len(lengths))
        if len(set(lengths)) > 1:
            message = f"a forward pass was interrupted: layers of the cache hold {min(lengths)} to {max(lengths)} positions."
            raise InputError(message, hint="Call its rollback(), and pass again what was not read; or start with a new cache.")

    def rollback(self) -> int:
        """Forget what an interrupted forward pass has left in some layers, if that can be; the number of positions in all."""
        keep = min((layer.length for layer in self.layers), default=0) if len(self.layers) >= self.depth else 0
        self.crop(keep)
        return keep

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, layer_idx: int) -> Pair | tuple[None, None]:
        return self.layers[layer_idx].pair or (None, None)

    def __iter__(self) -> Iterator[Pair | tuple[None, None]]:
        return (layer.pair or (None, None) for layer in self.layers)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Pick rows of the batch: (B') indices of rows to keep, in order."""
        self._change(lambda states: states.index_select(0, beam_idx.to(states.device)))

    def batch_select_indices(self, indices: Tensor) -> None:
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._change(lambda states: states.repeat_interleave(repeats, dim=0))

    def crop(self, length: int) -> None:
        """Forget all but the first ``length`` positions; a negative number forgets that many of the last."""
        self.check_unused()
        keep = length if length >= 0 else max(self.get_seq_length() + length, 0)
        self._check_settled(keep)
        for layer in sorted(self.layers, key=lambda layer: -layer.dropped):  # all or none: who refuses comes first
            layer.crop(keep)

    def reset(self) -> None:
        """Forget everything; buffers of one size stay."""
        self.check_unused()
        self.deltas = None
        for layer in (*self.layers, *self.cross):
            layer.reset()

    def _check_settled(self, keep: int) -> None:
        """Refuse to forget some of the pictures that positions were numbered by (``InputError``)."""
        if not keep:
            self.deltas = None
        if self.deltas is not None and keep < self.settled:
            what = f"the cache cannot be cropped to {keep} positions: there are pictures among the first {self.settled}."
            raise InputError(what, hint="Start with a new cache.")

    def arguments(self) -> tuple[Any, ...]:
        return ()

    def take_apart(self) -> tuple[list[Tensor | None], Any]:
        """The tensors, and what of plain values is needed to put them together again."""
        layers = (*self.layers, *self.cross)
        parts = [part for layer in layers for part in layer.pair or (None, None)]
        parts += [] if self.deltas is None else [self.deltas]
        dropped = tuple(layer.dropped for layer in layers)
        return parts, (len(self.layers), len(self.cross), dropped, self.settled, self.arguments())

    @classmethod
    def put_together(cls, parts: Iterable[Any], sizes: Any) -> Self:
        own, cross, dropped, settled, arguments = sizes
        cache, parts = cls(*arguments), iter(parts)
        layers = [*(cache.layer(index) for index in range(own)), *(cache.cross_layer(index) for index in range(cross))]
        for layer, before in zip(layers, dropped, strict=True):
            keys, values = next(parts), next(parts)
            if keys is not None:
                layer.append(keys, values)
            layer.dropped = before
        cache.deltas, cache.settled = next(parts, None), settled
        return cache

    def _change(self, function: Callable[[Tensor], Tensor]) -> None:
        self.check_unused()
        self.deltas = None if self.deltas is None else function(self.deltas)
        for layer in (*self.layers, *self.cross):
            layer.change(function)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(layers={len(self)}, positions={self.get_seq_length()})"


def _flatten_with_keys(cache: Cache) -> tuple[list[tuple[Any, Tensor | None]], Any]:
    parts, sizes = cache.take_apart()
    return [(pytree.SequenceKey(index), part) for index, part in enumerate(parts)], sizes


class DynamicCache(Cache):
    """A cache that grows as long as there is memory, and keeps all positions, so that it can be cropped to any length.

    ``ddp_cache_data`` holds keys and values of each layer to begin with. ``config`` is not needed, ``offloading`` refused.
    """

    def __init__(
        self,
        ddp_cache_data: Iterable[tuple[Tensor, ...]] | None = None,
        config: Config | None = None,
        offloading: bool = False,
        offload_only_non_sliding: bool = False,
    ) -> None:
        super().__init__()
        if offloading:
            raise UnsupportedError("a DynamicCache cannot be offloaded.", hint="Use an OffloadedCache.")
        data: Any = () if ddp_cache_data is None else ddp_cache_data  # as it came
        pairs = list(data) if isinstance(data, Iterable) else [data]
        for index, pair in enumerate(pairs):
            if not isinstance(pair, tuple | list) or len(pair) < 2 or not all(isinstance(x, Tensor) for x in pair[:2]):
                raise InputTypeError(f"`ddp_cache_data` must hold keys and values, but layer {index} is {str(pair)[:60]!r}.")
            self.layer(index).append(pair[0], pair[1])

    def spread(self, offsets: list[int]) -> DynamicCache:
        """A cache of the same length with a row for each offset: this one's only row, so many positions further right."""

        def moved(states: Tensor) -> Tensor:
            found = states.new_zeros((len(offsets), *states.shape[1:]))
            for row, offset in zip(found, offsets, strict=True):
                row[:, offset:] = states[0, :, : max(states.shape[2] - offset, 0)]
            return found

        cache = DynamicCache([tuple(map(moved, layer.pair or ())) for layer in self.layers])
        cache.deltas = None if self.deltas is None else self.deltas.expand(len(offsets))
        cache.settled = self.settled
        return cache
