"""Caches in main memory, of which a device has those of the layer that runs.

Shapes: B batch, H key-value heads, T new positions, S cached positions, D head size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from transept.layers.caches.cache import Cache
from transept.layers.caches.layer import KeyValues, LayerCache, Pair


class OffloadedKeyValues(KeyValues):
    """The keys and values of one layer, which stay in main memory; the layer's device has a copy only while they are used."""

    extends = False

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

    States, which are of one size however long the text is, stay on the device.

    For models in main memory it is a :class:`DynamicCache`; ``config`` is not needed.
    """

    kind = OffloadedKeyValues

    def layer(self, index: int) -> LayerCache:
        found = super().layer(index)
        for part in self.layers[(index + 1) % len(self.layers)].parts:
            if isinstance(part, OffloadedKeyValues):
                part.fetch()
        return found


def is_home(device: torch.device) -> bool:
    """Whether that is main memory, where nothing need be fetched to."""
    return device.type == "cpu"


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
