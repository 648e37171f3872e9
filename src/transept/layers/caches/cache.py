"""Caches: what the layers of a model keep of earlier positions, each of its kind, in one object.

Buffers grow by half of their size, so that decoding n tokens copies O(n) values. ``layer`` has the kinds; ``static``,
``offloaded`` and ``quantized`` have other caches. Shapes: B batch, H key-value heads, D head size.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Self, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from transept.config.model import Config
from transept.errors import InputError, InputTypeError, UnsupportedError
from transept.layers.caches.layer import KINDS, OWNER, KeyValues, LayerCache, Pair, Several, SlidingKeyValues

K = TypeVar("K", bound=LayerCache)
# The kinds of what each layer of a model keeps: most keep one, or none.
Kinds = Sequence[tuple[type[LayerCache], ...]]

# The caches that forward passes are using, and the threads that these run in; beside the caches, which can be copied.
_IN_USE: WeakKeyDictionary[Cache, int] = WeakKeyDictionary()
_LOCK = threading.Lock()
_APART = "Give each text and each thread a cache of its own, such as copy.deepcopy(cache)."


class Cache:
    """What all layers of a model keep of earlier positions; layers are made when they are first used.

    A model tells the ``kinds`` of its layers; where none has told yet, they keep keys and values. ``cross`` holds those of an
    encoder's states for models with cross-attention, computed once. ``deltas`` (B) are what is added to the count of the
    positions that follow to number them, where pictures have taken fewer numbers than positions; they hold behind the first
    ``settled`` positions. ``config`` is not needed.
    """

    is_compileable = False
    kind: ClassVar[type[KeyValues]] = KeyValues

    def __init__(self, config: Config | None = None) -> None:
        self.layers: list[LayerCache] = []
        self.cross: list[KeyValues] = []
        self.kinds: Kinds = ()
        self.settled = 0
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

    def make(self, kind: type[LayerCache]) -> LayerCache:
        """What keeps one kind of things of one layer, with nothing in it; of keys and values, the cache has its own variety.

        Raises:
            InputTypeError: the cache cannot keep that kind.
        """
        if kind is not KeyValues and issubclass(kind, KeyValues) and self.kind is not KeyValues:
            self.refuse(kind)
        return self.kind() if kind is KeyValues else kind()

    def refuse(self, kind: type[LayerCache]) -> None:
        hint = "Pass a DynamicCache(), or what an earlier call returned."
        raise InputTypeError(f"the model keeps {kind.name}, which a {type(self).__name__} cannot.", hint=hint)

    def layer(self, index: int) -> LayerCache:
        """What a layer keeps, made where there is nothing yet."""
        while (have := len(self.layers)) <= index:
            made = [self.make(kind) for kind in (self.kinds[have] if have < len(self.kinds) else (KeyValues,))]
            self.layers.append(made[0] if len(made) == 1 else Several(made))
        return self.layers[index]

    def part(self, index: int, kind: type[K]) -> K:
        """What a layer keeps of a kind (``InputTypeError`` where it keeps other kinds)."""
        for part in (layer := self.layer(index)).parts:
            if isinstance(part, kind):
                return part
        what = f"layer {index} of the cache holds {' and '.join(layer.kinds) or 'nothing'}, but the model keeps {kind.name}."
        raise InputTypeError(what, hint=OWNER)

    def cross_layer(self, index: int) -> KeyValues:
        while len(self.cross) <= index:
            self.cross.append(KeyValues())
        return self.cross[index]

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Pair:
        return self.part(layer_idx, KeyValues).append(key_states, value_states)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        if len(self.layers) <= layer_idx:
            return 0
        found = self.layers[layer_idx]
        return found.length if found.parts else max((layer.length for layer in self.layers), default=0)

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """Number of positions that there is room for, -1 where there is no end."""
        return -1

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        return self.get_max_length(layer_idx)

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """For so many new positions: how many keys they meet in a layer, and how many were dropped before those."""
        parts = self.layers[layer_idx].parts if len(self.layers) > layer_idx else ()
        dropped = max((part.dropped for part in parts), default=0)
        return self.get_seq_length(layer_idx) - dropped + query_length, dropped

    @property
    def batch_size(self) -> int:
        """B; 0 while empty."""
        return next((layer.rows for layer in self.layers if layer.parts), 0)

    @property
    def is_initialized(self) -> bool:
        return self.batch_size > 0

    def get_memory_footprint(self) -> int:
        """Bytes of all that is kept, room for later positions included."""
        return sum(part.nbytes for part in self.parts())

    def footprint_at(self, positions: int) -> int:
        """About the bytes that will be kept of so many positions, from what is kept of those so far."""
        own = sum(part.nbytes_at(positions) for layer in self.layers for part in layer.parts)
        return own + sum(layer.nbytes for layer in self.cross)

    def parts(self) -> Iterator[LayerCache]:
        """What all layers keep, kind by kind."""
        for layer in (*self.layers, *self.cross):
            yield from layer.parts

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

    def check(self, kinds: Kinds, batch: int) -> None:
        """Refuse to serve a model whose layers keep other kinds, or another batch than the cached one (``InputError``)."""
        if not len(self):
            self.kinds = kinds
            return
        if not torch.compiler.is_compiling():
            self.check_finished()
        if (held := max(len(self), len(self.kinds))) != len(kinds):
            raise InputError(f"the cache holds {held} layers, but the model has {len(kinds)}.", hint=OWNER)
        for index, (layer, wanted) in enumerate(zip(self.layers, kinds)):
            if layer.kinds != (names := tuple(kind.name for kind in wanted)):
                has, needs = (" and ".join(found) or "nothing" for found in (layer.kinds, names))
                raise InputTypeError(f"layer {index} of the cache holds {has}, but the model keeps {needs}.", hint=OWNER)
        self.kinds = kinds
        if self.batch_size not in (0, batch):
            shape = f"(batch, heads, positions, head size) = {shape}" if (shape := self.layers[0].shape) else ""
            message = f"the cache holds {shape or f'a batch of {self.batch_size}'}, but the inputs are a batch of {batch}."
            raise InputError(message, hint="Pick its rows with reorder_cache, or start with a new cache.")

    def _lengths(self) -> list[int]:
        """How many positions each layer has read."""
        lengths = [part.length for layer in self.layers for part in layer.parts]
        return lengths + [0 for kinds in self.kinds[len(self.layers) :] if kinds]  # what keeps nothing has read nothing

    def check_finished(self) -> None:
        """Refuse to go on where an interrupted forward pass has left layers of unequal lengths (``InputError``)."""
        self.check_unused()
        if len(lengths := set(self._lengths())) > 1:
            message = f"a forward pass was interrupted: layers of the cache hold {min(lengths)} to {max(lengths)} positions."
            raise InputError(message, hint="Call its rollback(), and pass again what was not read; or start with a new cache.")

    def rollback(self) -> int:
        """Forget what an interrupted forward pass has left in some layers, if that can be; the number of positions in all."""
        self.crop(keep := min(self._lengths(), default=0))
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
        own = [part for layer in self.layers for part in layer.parts]
        for part in own:  # all or none
            part.check_crop(keep)
        for part in own:
            part.crop(keep)

    def reset(self) -> None:
        """Forget everything; buffers of one size stay."""
        self.check_unused()
        self.deltas = None
        for part in self.parts():
            part.reset()

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
        parts = [tensor for part in self.parts() for tensor in part.tensors()]
        parts += [] if self.deltas is None else [self.deltas]
        own = [[(part.name, part.form()) for part in layer.parts] for layer in self.layers]
        return parts, (own, [layer.form() for layer in self.cross], self.settled, self.arguments())

    @classmethod
    def put_together(cls, parts: Iterable[Any], sizes: Any) -> Self:
        own, cross, settled, arguments = sizes
        cache, parts = cls(*arguments), iter(parts)
        cache.kinds = [tuple(KINDS[name] for name, _ in layer) for layer in own]
        for index, forms in enumerate(own):
            for part, (_, form) in zip(cache.layer(index).parts, forms, strict=True):
                part.fill(parts, form)
        for index, form in enumerate(cross):
            cache.cross_layer(index).fill(parts, form)
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
            self.update(pair[0], pair[1], index)

    def spread(self, offsets: list[int]) -> DynamicCache:
        """A cache of the same length with a row for each offset: this one's only row, so many positions further right.

        Raises:
            InputError: layers keep states, which sum up positions that are to be left out.
        """
        cache = DynamicCache()
        cache.kinds, cache.layers = self.kinds, [layer.spread(offsets) for layer in self.layers]
        cache.deltas = None if self.deltas is None else self.deltas.expand(len(offsets))
        cache.settled = self.settled
        return cache


class EncoderDecoderCache(DynamicCache):
    """A cache of a decoder's positions and of an encoder's states, in the two that it is made of; dynamic ones by default."""

    def __init__(self, self_attention_cache: Cache | None = None, cross_attention_cache: Cache | None = None) -> None:
        super().__init__()
        self.self_attention_cache: Cache = DynamicCache() if self_attention_cache is None else self_attention_cache
        self.cross_attention_cache: Cache = DynamicCache() if cross_attention_cache is None else cross_attention_cache
        self.layers = self.self_attention_cache.layers
        self.cross = cast("list[KeyValues]", self.cross_attention_cache.layers)

    @property
    def is_compileable(self) -> bool:  # type: ignore[override]
        return self.self_attention_cache.is_compileable

    @property
    def is_updated(self) -> dict[int, bool]:
        """Which layers hold an encoder's states."""
        return {index: layer.length > 0 for index, layer in enumerate(self.cross)}

    def make(self, kind: type[LayerCache]) -> LayerCache:
        return self.self_attention_cache.make(kind)

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return self.self_attention_cache.get_max_length(layer_idx)

    def span(self, new: int) -> tuple[int | Tensor, int]:
        return self.self_attention_cache.span(new)


class SlidingWindowCache(Cache):
    """A cache that drops the positions that no later query looks at, in layers with a window; ``config`` is not needed.

    Their memory ends with the window, or a quarter more. It can be cropped only while nothing has been dropped.
    """

    kind = SlidingKeyValues
