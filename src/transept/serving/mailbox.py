"""From the engine's thread to the event loop: one call a pass for all rows."""

from __future__ import annotations

import asyncio
from typing import Any


class Mailbox:
    """Gathers what a pass makes, and hands it to the queues of an event loop at once.

    Args:
        loop: where the queues are read.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._items: list[tuple[asyncio.Queue[Any], Any]] = []

    def put(self, queue: asyncio.Queue[Any], item: Any) -> None:
        """Gather, in the engine's thread."""
        self._items.append((queue, item))

    def flush(self) -> None:
        """Hand over, in the engine's thread; after the loop has ended there is nobody to tell."""
        items, self._items = self._items, []
        if items and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(_deliver, items)


def _deliver(items: list[tuple[asyncio.Queue[Any], Any]]) -> None:
    for queue, item in items:
        queue.put_nowait(item)
