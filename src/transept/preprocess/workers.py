"""Preparing the items of a batch side by side, in order, with each error saying which item it is about."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from transept.errors import FileError, FormatError, InputError, UnsupportedError

Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_THREADS = 8


def in_order(function: Callable[[Item], Result], items: Sequence[Item], noun: str, *, parallel: bool = True) -> list[Result]:
    """``[function(item) for item in items]``, on several threads where that pays.

    Decoders, resizing and resampling release the interpreter's lock, so threads do use several cores.

    Args:
        function: what to do with one item.
        items: the batch.
        noun: what an item is called in messages.
        parallel: false keeps everything on this thread, for work that is too short to share.

    Raises:
        TranseptError: the first item's error, with the item's position in front when there are several.
    """

    def one(index: int) -> Result:
        try:
            return function(items[index])
        except (InputError, FileError, FormatError, UnsupportedError) as error:
            if len(items) > 1:
                error.message = f"{noun} {index} of the batch: {error.message}"
            raise

    threads = min(len(items), _cores(), MAX_THREADS)
    if not parallel or threads < 2:
        return [one(index) for index in range(len(items))]
    with ThreadPoolExecutor(threads, thread_name_prefix="transept-media") as pool:
        return list(pool.map(one, range(len(items))))


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
