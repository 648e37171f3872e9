"""The caches of rows that stand one behind the other in a batch, each of which has its own past."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

from torch import Tensor

from transept.errors import InputError, InputTypeError
from transept.layers.caches.cache import Cache, DynamicCache, Kinds
from transept.layers.caches.layer import KeyValues, LayerCache, Pair


class RoomyKeyValues(KeyValues):
    """Keys and values in a buffer that has ``room`` for so many positions from the start, as long as they are enough."""

    room = 0

    def append(self, keys: Tensor, values: Tensor, window: int | None = None) -> Pair:
        if self.buffers is None:
            self.buffers = self._empty(keys, 0), self._empty(values, 0)
        return super().append(keys, values, window)

    def _size(self, end: int) -> int:
        return max(end, self.room) if self.room else super()._size(end)

    def prefix(self, length: int, room: int) -> RoomyKeyValues:
        """A copy of the first positions, with room for others."""
        twin = type(self)()
        twin.room = room
        if (pair := self.pair) is not None:
            twin.append(pair[0][:, :, :length], pair[1][:, :, :length])
        return twin


class RowCache(DynamicCache):
    """The cache of one row, whose owner says how many positions there is memory for."""

    kind = RoomyKeyValues
    room = 0

    def reserve(self, room: int) -> None:
        """Have room for so many positions from the next one on."""
        self.room = room
        for layer in self.layers:
            if isinstance(layer, RoomyKeyValues):
                layer.room = room

    def make(self, kind: type[LayerCache]) -> LayerCache:
        made = super().make(kind)
        if isinstance(made, RoomyKeyValues):
            made.room = self.room
        return made

    def prefix(self, length: int, room: int) -> RowCache:
        """A copy of the first positions, with room for others."""
        twin = RowCache()
        twin.room, twin.kinds = room, self.kinds
        twin.layers = [layer.prefix(length, room) for layer in self.layers if isinstance(layer, RoomyKeyValues)]
        return twin


class RowCaches(Cache):
    """A cache for each row of a batch without padding.

    ``lengths`` says how many positions of each row are new; they are appended to the row's own cache. What rows share a pass
    may change from one pass to the next.

    Args:
        rows: the caches, each of one row; no cache may come twice.
    """

    def __init__(self, rows: Iterable[Cache] = ()) -> None:
        super().__init__()
        self.rows = list(rows)
        for row in self.rows:
            if not isinstance(row, DynamicCache) or isinstance(row, RowCaches):
                raise InputTypeError(f"rows need a DynamicCache each, but one has {type(row).__name__}.")
        if len({id(row) for row in self.rows}) < len(self.rows):
            raise InputError("two rows have the same cache.", hint="Give each row a cache of its own.")

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """The length of the longest row."""
        return max((row.get_seq_length(layer_idx) for row in self.rows), default=0)

    def get_memory_footprint(self) -> int:
        return sum(row.get_memory_footprint() for row in self.rows)

    def check(self, kinds: Kinds, batch: int) -> None:
        """Refuse rows of another model, or another number of rows (``InputError``)."""
        if batch != len(self.rows):
            raise InputError(f"there are caches of {len(self.rows)} rows, but `lengths` names {batch}.")
        for row in self.rows:
            row.check(kinds, 1)

    def take_apart(self) -> tuple[list[Tensor | None], Any]:
        raise InputTypeError("the caches of rows cannot go into a graph.", hint="Compile the model for a padded batch.")

    @classmethod
    def put_together(cls, parts: Iterable[Any], sizes: Any) -> Self:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rows={len(self.rows)}, positions={[row.get_seq_length() for row in self.rows]})"
