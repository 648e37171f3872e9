"""Preparing the items of a batch side by side, in order, with each error saying which item it is about."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import current_thread
from typing import TypeVar

from transept.errors import FileError, FormatError, InputError, UnsupportedError

Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_THREADS = 8
_NAME = "transept-media"


def in_order(
    function: Callable[[Item], Result], items: Sequence[Item], noun: str, *, parallel: bool = True, first: int = 0
) -> list[Result]:
    """``[function(item) for item in items]``, on several threads where that pays.

    Decoders, resizing, resampling and transforms release the interpreter's lock, so threads do use several cores. ``parallel``
    is false for work that is too short to share; what such a thread shares in turn it does alone. Of several items' errors the
    first is raised, with the item's ``noun`` and position; ``first`` is that of the first item.
    """

    def one(index: int) -> Result:
        try:
            return function(items[index])
        except (InputError, FileError, FormatError, UnsupportedError) as error:
            if len(items) > 1 or first:
                error.message = f"{noun} {first + index} of the batch: {error.message}"
            raise

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = min(len(items), cores, MAX_THREADS)
    if not parallel or threads < 2 or current_thread().name.startswith(_NAME):
        return [one(index) for index in range(len(items))]
    with ThreadPoolExecutor(threads, thread_name_prefix=_NAME) as pool:
        return list(pool.map(one, range(len(items))))
