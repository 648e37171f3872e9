"""A key-value cache in main memory, for texts that a device has no room for.

Shapes: B batch, H key-value heads, T new positions, S cached positions, D head size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from transept.config import Config
from transept.layers.cache import Cache, KeyValues


class OffloadedKeyValues(KeyValues):
    """The keys and values of one layer, which stay in main memory; the layer's device has a copy only while they are used."""

    def __init__(self) -> None:
        super().__init__()
        self._device: torch.device | None = None
        self._ahead: tuple[Tensor, Tensor] | None = None

    def fetch(self) -> None:
        """Start to copy to the device what is held, if that has not been done."""
        if self._device is None or self._ahead is not None or self._keys is None or self._values is None:
            return
        keys, values, device = self._keys[:, :, : self.held], self._values[:, :, : self.held], self._device
        if device.type != "cuda":
            self._ahead = keys.to(device, copy=True), values.to(device, copy=True)
            return
        with torch.cuda.stream(_stream(device)):
            self._ahead = keys.to(device, non_blocking=True), values.to(device, non_blocking=True)

    def append(self, keys: Tensor, values: Tensor, window: int | None = None) -> tuple[Tensor, Tensor]:
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
        """As in every kind."""
        self._ahead = None
        super().crop(length)

    def reset(self) -> None:
        """Forget everything."""
        self._ahead = None
        super().reset()

    def change(self, function: Callable[[Tensor], Tensor]) -> None:
        """As in every kind."""
        self._ahead = None
        super().change(function)


class OffloadedCache(Cache):
    """A cache in main memory: the device holds the keys and values of the layer that runs, and gets those of the next.

    For models in main memory it is a :class:`DynamicCache`.

    Args:
        config: taken since other kinds need one; this one finds out all that it must know.
    """

    layers: list[OffloadedKeyValues]  # type: ignore[assignment]

    def __init__(self, config: Config | None = None) -> None:
        super().__init__()

    def make(self, index: int) -> KeyValues:
        """Key-values that stay in main memory."""
        return OffloadedKeyValues()

    def layer(self, index: int) -> KeyValues:
        """The self-attention cache of one layer; that of the next is fetched meanwhile."""
        found = super().layer(index)
        self.layers[(index + 1) % len(self.layers)].fetch()
        return found


def is_home(device: torch.device) -> bool:
    """Whether that is main memory, where nothing need be fetched to."""
    return device.type == "cpu"


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """What copies to a device while that computes."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
