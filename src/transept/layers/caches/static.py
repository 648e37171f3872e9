"""Caches of one size, which compiled steps read and fill.

Shapes: B batch, H key-value heads, T new positions, S cached positions, D head size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from transept.config.model import Config
from transept.environment.memory import check_memory
from transept.environment.units import size
from transept.errors import InputError, UnsupportedError
from transept.layers.caches.cache import Cache
from transept.layers.caches.layer import KeyValues, LayerCache, Pair, States

_LARGER = "Make it with a larger `max_cache_len`."


class Counted(LayerCache):
    """Mixed into what is of one size: how much it holds is also kept in a tensor, by which compiled graphs go.

    So one graph serves every length.
    """

    filled: Tensor | None = None
    _held: int | None = 0

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

    def advance(self, positions: int) -> None:
        """Count so many positions more."""
        if torch.compiler.is_compiling():
            assert self.filled is not None
            self.filled.add_(positions)
            self._held = None  # a number would be part of the graph, which would then be for that length alone
        else:
            self.held += positions

    def count_on(self, device: torch.device, *buffers: Tensor) -> None:
        """Begin to count in a tensor, beside new ``buffers``."""
        if self.filled is None:
            self.filled = torch.full((), self._held or 0, dtype=torch.long, device=device)
        # For graphs that a device replays; elsewhere it would be of no use, and cost the compiler's import.
        if device.type == "cuda" and not torch.compiler.is_compiling():
            for buffer in (*buffers, self.filled):
                torch._dynamo.mark_static_address(buffer)

    @property
    def nbytes(self) -> int:
        return super().nbytes + (0 if self.filled is None else self.filled.nbytes)

    def nbytes_at(self, positions: int) -> int:
        return self.nbytes


class StaticKeyValues(Counted, KeyValues):
    """The keys and values of one layer in buffers of ``size`` positions, which are made once and written to in place.

    Compiled graphs get the whole buffers, and the mask hides what nothing has been written to.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        super().__init__()

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
            self.advance(keys.shape[2])
            return (keys, values) if first else self.buffers
        start, end = self.held, self.held + keys.shape[2]
        for buffer, new in zip(self.buffers, (keys, values)):
            buffer[:, :, start:end] = new
        self.advance(keys.shape[2])
        return self.buffers[0][:, :, :end], self.buffers[1][:, :, :end]

    def extend(self, positions: int, like: Tensor) -> tuple[int, Pair]:
        if self.buffers is None:
            self.allocate(like, like)
        self._check(like, like)
        place = self.held
        if (length := place + positions) > self.size:
            message = f"the cache has room for {self.size} positions, but the sequence has {length}."
            raise InputError(message, hint=_LARGER)
        assert self.buffers is not None
        self.advance(positions)
        return place, self.buffers

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
            self.count_on(keys.device, *made)
        self.buffers = made[0], made[1]

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


class StaticStates(Counted, States):
    """The states of one layer in buffers that are made once and written to in place."""

    def keep(self, positions: int, **states: Tensor) -> None:
        for name, state in states.items():
            if name not in self.states:
                with torch.inference_mode(False):  # as for keys and values
                    self.states[name] = torch.zeros(state.shape, dtype=state.dtype, device=state.device)
                    self.count_on(state.device, self.states[name])
            self.states[name].copy_(state)
        self.advance(positions)

    def reset(self) -> None:
        self.held = 0
        for state in self.states.values():
            state.zero_()

    def change(self, function: Callable[[Tensor], Tensor]) -> None:
        for name, state in self.states.items():
            changed = function(state)
            self.states[name] = state.copy_(changed) if changed.shape == state.shape else changed


class StaticCache(Cache):
    """A cache of one size, made on first use: decoding then takes no more memory, and compiles once for all lengths.

    In compiled graphs an ``attention_mask`` may reach over all ``max_cache_len`` positions, so that it too is of one size; 1
    stands for positions that are yet to come. Layers with windows keep all positions, and mask them.

    ``config`` is needed for :meth:`early_initialization` alone; ``offloading`` is refused. Rows, device and type are those of
    what is cached first, whatever ``max_batch_size`` (or ``batch_size``), ``device``, ``layer_device_map`` and ``dtype`` say.
    """

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

    def make(self, kind: type[LayerCache]) -> LayerCache:
        if kind is KeyValues:
            return StaticKeyValues(self.max_cache_len)
        if kind is not States:
            self.refuse(kind)
        return StaticStates()

    def arguments(self) -> tuple[Any, ...]:
        return None, self.max_cache_len

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return self.max_cache_len

    def span(self, new: int) -> tuple[int | Tensor, int]:
        """As in every kind; in compiled graphs a tensor, and all positions that there is room for."""
        if torch.compiler.is_compiling() and self.layers:
            for part in self.parts():
                if isinstance(part, Counted) and part.filled is not None:
                    return part.filled.clone(), self.max_cache_len  # a copy, since the layers count on in place
        past, keys = super().span(new)
        if keys > self.max_cache_len:
            message = f"the cache has room for {self.max_cache_len} positions, but {past} are cached and {new} are new."
            raise InputError(message, hint=_LARGER)
        return past, keys

    def early_initialization(
        self, batch_size: int, num_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        """Make all buffers, for B, H and D, before first use, so that the first call too is compiled for any length."""
        names = ("num_decoder_layers", "decoder_layers", "num_hidden_layers")
        layers = next((count for name in names if (count := getattr(self.config, name, None)) is not None), None)
        if layers is None:
            raise InputError("how many layers there are is not known.", hint="Pass `config` to the StaticCache.")
        like = torch.empty((batch_size, num_heads, 0, head_dim), dtype=dtype, device=device)
        for index in range(layers):
            self.part(index, StaticKeyValues).allocate(like, like)
