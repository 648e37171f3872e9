"""Kinds of KV caches: of one size (static), of the windows that layers see (sliding), and in main memory (offloaded).

Shapes: B batch, H key-value heads, T new positions, S cached positions, D head size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from transept.config.model import Config
from transept.environment.memory import check_memory
from transept.environment.units import size
from transept.errors import InputError, UnsupportedError
from transept.layers.cache import Cache, DynamicCache, KeyValues, Pair

_LARGER = "Make it with a larger `max_cache_len`."


class StaticKeyValues(KeyValues):
    """The keys and values of one layer in buffers of ``size`` positions, which are made once and written to in place.

    How much is filled is also kept in a tensor, by which compiled graphs go, so that one of them serves every length: those
    hand out the whole buffers, and the mask hides what nothing has been written to.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.filled: Tensor | None = None
        self._held: int | None = 0
        super().__init__()

    @property
    def held(self) -> int:
        """Positions held; waits for the device where a compiled graph has written the last of them."""
        if self._held is None:
            self._held = int(self.filled)  # type: ignore[arg-type]
        return self._held

    @held.setter
    def held(self, length: int) -> None:
        self._held = length
        if self.filled is not None:
            self.filled.fill_(length)

    @property
    def shape(self) -> tuple[int, ...] | None:
        return self._shape(self.size)

    def append(self, keys: Tensor, values: Tensor, window: int | None = None) -> Pair:
        traced, first = torch.compiler.is_compiling(), self.buffers is None
        self._check(keys, values)
        # In a graph the length is not known.
        if (first or not traced) and (length := self.held + keys.shape[2]) > self.size:
            message = f"the cache has room for {self.size} positions, but the sequence has {length}."
            raise InputError(message, hint=_LARGER)
        if first:
            self.allocate(keys, values)
        assert self.buffers is not None
        if traced:
            assert self.filled is not None
            places = torch.arange(keys.shape[2], device=keys.device) + self.filled
            for buffer, new in zip(self.buffers, (keys, values)):
                buffer.index_copy_(2, places, new)
            self.filled.add_(keys.shape[2])
            self._held = None  # a number would be part of the graph, which would then be for that length alone
            return (keys, values) if first else self.buffers
        start, end = self.held, self.held + keys.shape[2]
        for buffer, new in zip(self.buffers, (keys, values)):
            buffer[:, :, start:end] = new
        self.held = end
        return self.buffers[0][:, :, :end], self.buffers[1][:, :, :end]

    def allocate(self, keys: Tensor, values: Tensor) -> None:
        with torch.inference_mode(False):  # what is made in inference mode could not be written to outside of it
            needed = self.size * sum(x.element_size() * x.shape[0] * x.shape[1] * x.shape[3] for x in (keys, values))
            what = f"a cache with {self.size} positions"
            hint = "Set a smaller `max_cache_len` or `max_new_tokens`, or use a cache that grows."
            if not torch.compiler.is_compiling():
                check_memory(needed, keys.device, f"each layer of {what}", hint)
            try:
                made = [x.new_zeros((*x.shape[:2], self.size, x.shape[3])) for x in (keys, values)]
            except RuntimeError as error:
                raise InputError(f"there is no memory for {what}: a layer takes {size(needed)}.", hint=hint) from error
            self.filled = torch.zeros((), dtype=torch.long, device=keys.device)
        self.buffers = made[0], made[1]
        # For graphs that a device replays; elsewhere it would be of no use, and cost the compiler's import.
        if keys.device.type == "cuda" and not torch.compiler.is_compiling():
            for buffer in (*made, self.filled):
                torch._dynamo.mark_static_address(buffer)

    def reset(self) -> None:
        self.held = 0

    def change(self, function: Callable[[Tensor], Tensor]) -> None:
        """As in every kind; the buffers stay where they are while the batch has as many rows."""
        if self.buffers is None:
            return
        keys, values = function(self.buffers[0]), function(self.buffers[1])
        if keys.shape == self.buffers[0].shape:
            self.buffers[0].copy_(keys)
            self.buffers[1].copy_(values)
        else:
            self.buffers = keys, values

    @property
    def nbytes(self) -> int:
        return super().nbytes + (0 if self.filled is None else self.filled.nbytes)


class StaticCache(Cache):
    """A cache of one size, made on first use: decoding then takes no more memory, and compiles once for all lengths.

    In compiled graphs an ``attention_mask`` may reach over all ``max_cache_len`` positions, so that it too is of one size; 1
    stands for positions that are yet to come. Layers with windows keep all positions, and mask them.

    ``config`` is needed for :meth:`early_initialization` alone; ``offloading`` is refused. Rows, device and type are those of
    what is cached first, whatever ``max_batch_size`` (or ``batch_size``), ``device``, ``layer_device_map`` and ``dtype`` say.
    """

    layers: list[StaticKeyValues]  # type: ignore[assignment]
    is_compileable = True

    def __init__(
        self,
        config: Config | None = None,
        max_cache_len: int | None = None,
        offloading: bool = False,
        offload_only_non_sliding: bool = True,
        *,
        max_batch_size: int | None = None,
        batch_size: int | None = None,
        device: Any = None,
        layer_device_map: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if isinstance(max_cache_len, bool) or not isinstance(max_cache_len, int) or max_cache_len < 1:
            raise InputError(f"`max_cache_len` must be a number of positions from 1 on, but is {max_cache_len!r}.")
        if offloading:
            raise UnsupportedError("a StaticCache cannot be offloaded.", hint="Use an OffloadedCache.")
        self.config, self.max_cache_len = config, max_cache_len

    def make(self) -> KeyValues:
        return StaticKeyValues(self.max_cache_len)

    def arguments(self) -> tuple[Any, ...]:
        return None, self.max_cache_len

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return self.max_cache_len

    def span(self, new: int) -> tuple[int | Tensor, int]:
        """As in every kind; in compiled graphs a tensor, and all positions that there is room for."""
        if torch.compiler.is_compiling() and self.layers and (filled := self.layers[0].filled) is not None:
            return filled.clone(), self.max_cache_len  # a copy, since the layers count on in place
        past, keys = super().span(new)
        if keys > self.max_cache_len:
            message = f"the cache has room for {self.max_cache_len} positions, but {past} are cached and {new} are new."
            raise InputError(message, hint=_LARGER)
        return past, keys

    def footprint_at(self, positions: int) -> int:
        return self.get_memory_footprint()

    def early_initialization(
        self, batch_size: int, num_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        """Make all buffers, for B, H and D, before first use, so that the first call too is compiled for any length."""
        names = ("num_decoder_layers", "decoder_layers", "num_hidden_layers")
        layers = next((count for name in names if (count := getattr(self.config, name, None)) is not None), None)
        if layers is None:
            raise InputError("how many layers there are is not known.", hint="Pass `config` to the StaticCache.")
        like = torch.empty((batch_size, num_heads, 0, head_dim), dtype=dtype, device=device)
        self.layer(layers - 1)
        for layer in self.layers:
            layer.allocate(like, like)


class EncoderDecoderCache(DynamicCache):
    """A cache of a decoder's positions and of an encoder's states, in the two that it is made of; dynamic ones by default."""

    def __init__(self, self_attention_cache: Cache | None = None, cross_attention_cache: Cache | None = None) -> None:
        super().__init__()
        self.self_attention_cache: Cache = DynamicCache() if self_attention_cache is None else self_attention_cache
        self.cross_attention_cache: Cache = DynamicCache() if cross_attention_cache is None else cross_attention_cache
        self.layers, self.cross = self.self_attention_cache.layers, self.cross_attention_cache.layers

    @property
    def is_compileable(self) -> bool:  # type: ignore[override]
        return self.self_attention_cache.is_compileable

    @property
    def is_updated(self) -> dict[int, bool]:
        """Which layers hold an encoder's states."""
        return {index: layer.length > 0 for index, layer in enumerate(self.cross)}

    def make(self) -> KeyValues:
        return self.self_attention_cache.make()

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return self.self_attention_cache.get_max_length(layer_idx)

    def span(self, new: int) -> tuple[int | Tensor, int]:
        return self.self_attention_cache.span(new)

    def footprint_at(self, positions: int) -> int:
        return self.self_attention_cache.footprint_at(positions) + self.cross_attention_cache.get_memory_footprint()


class SlidingKeyValues(KeyValues):
    """The keys and values of one layer: where it has a window, of those positions only that a later query may look at."""

    def append(self, keys: Tensor, values: Tensor, window: int | None = None) -> Pair:
        """As in every kind, but of the earlier positions those alone are returned that are near enough to the first new one."""
        keys, values, new = *super().append(keys, values), keys.shape[2]
        if window is None:
            return keys, values
        keep, seen = window - 1, min(window - 1 + new, self.held)
        if (start := self.held - keep) > window // 4 and (pair := self.pair) is not None:  # not at every step, since it copies
            self.buffers = pair[0][:, :, start:].clone(), pair[1][:, :, start:].clone()
            self.owned, self.held, self.dropped = False, keep, self.dropped + start
        return keys[:, :, -seen:], values[:, :, -seen:]

    def crop(self, length: int) -> None:
        """Forget all but the first ``length`` positions; refused where earlier ones were dropped, which would be in sight."""
        if length < self.length and self.dropped:
            hint = "Use a DynamicCache, or copy the cache before what may have to be forgotten."
            reason = f"it has dropped the first {self.dropped}, which the window would reach again"
            raise InputError(f"the cache cannot be cropped from {self.length} to {length} positions: {reason}.", hint=hint)
        super().crop(length)


class SlidingWindowCache(Cache):
    """A cache that drops the positions that no later query looks at, in layers with a window; ``config`` is not needed.

    Their memory ends with the window, or a quarter more. It can be cropped only while nothing has been dropped.
    """

    kind = SlidingKeyValues


class OffloadedKeyValues(KeyValues):
    """The keys and values of one layer, which stay in main memory; the layer's device has a copy only while they are used."""

    def __init__(self) -> None:
        super().__init__()
        self._device: torch.device | None = None
        self._ahead: Pair | None = None

    def fetch(self) -> None:
        if self._device is None or self._ahead is not None or (pair := self.pair) is None:
            return
        device = self._device
        if device.type != "cuda":
            self._ahead = pair[0].to(device, copy=True), pair[1].to(device, copy=True)
            return
        with torch.cuda.stream(_stream(device)):
            self._ahead = pair[0].to(device, non_blocking=True), pair[1].to(device, non_blocking=True)

    def append(self, keys: Tensor, values: Tensor, window: int | None = None) -> Pair:
        """As in every kind; returns tensors on the device of the new ones."""
        if is_home(keys.device):
            return super().append(keys, values)
        self._device = keys.device
        self.fetch()
        ahead, self._ahead = self._ahead, None
        super().append(keys.to("cpu", copy=True), values.to("cpu", copy=True))
        if ahead is None:
            return keys, values
        if keys.device.type == "cuda":
            current = torch.cuda.current_stream(keys.device)
            current.wait_stream(_stream(keys.device))
            for part in ahead:
                part.record_stream(current)
        return torch.cat([ahead[0], keys], dim=2), torch.cat([ahead[1], values], dim=2)

    def _empty(self, like: Tensor, size: int) -> Tensor:
        pinned = self._device is not None and self._device.type == "cuda"  # or copies would wait for each other
        return torch.empty((*like.shape[:2], size, like.shape[3]), dtype=like.dtype, pin_memory=pinned)

    def crop(self, length: int) -> None:
        self._ahead = None
        super().crop(length)

    def reset(self) -> None:
        self._ahead = None
        super().reset()

    def change(self, function: Callable[[Tensor], Tensor]) -> None:
        self._ahead = None
        super().change(function)


class OffloadedCache(Cache):
    """A cache in main memory: the device holds the keys and values of the layer that runs, and gets those of the next.

    For models in main memory it is a :class:`DynamicCache`; ``config`` is not needed.
    """

    layers: list[OffloadedKeyValues]  # type: ignore[assignment]
    kind = OffloadedKeyValues

    def layer(self, index: int) -> KeyValues:
        found = super().layer(index)
        self.layers[(index + 1) % len(self.layers)].fetch()
        return found


def is_home(device: torch.device) -> bool:
    """Whether that is main memory, where nothing need be fetched to."""
    return device.type == "cpu"


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
