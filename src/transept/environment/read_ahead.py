"""Reading of large files ahead of their use."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch

from transept.environment.memory import memory_left
from transept.storage.files import open_regular

_SMALL = 2**26  # bytes that come at once anyway
_STEP = 2**17  # as many bytes the system reads for an advice, and leaves the rest


def read_ahead(paths: Sequence[Path]) -> None:
    """Ask the system to read files that will be mapped, in a thread of its own, where memory has room for twice as much.

    Else each part of a file is read when a tensor is first touched, and the disk waits while the processor works.
    """
    if hasattr(os, "posix_fadvise") and (size := sum(path.stat().st_size for path in paths)) > _SMALL:
        room = memory_left(torch.device("cpu"))
        if room is None or 2 * size < room:
            threading.Thread(target=_advise, args=(paths,), daemon=True).start()


def _advise(paths: Sequence[Path]) -> None:
    with suppress(OSError):  # what cannot be read is found where it is used
        for path in paths:
            with open_regular(path) as file:
                for start in range(0, os.fstat(file.fileno()).st_size, _STEP):
                    os.posix_fadvise(file.fileno(), start, _STEP, os.POSIX_FADV_WILLNEED)
