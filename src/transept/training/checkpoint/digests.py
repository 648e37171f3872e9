"""A digest of some rows of a data set: data that changed since a run began is noticed when it is resumed."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from transept.config.fields import Range
from transept.training.data.loader import reads_by_number
from transept.training.data.order import kept_generators

_ROWS = 64
_SECONDS = 0.1  # rows that are slow to read, such as sounds, are looked at for so long


@dataclass(frozen=True)
class RowsDigest:
    rows: Annotated[int, Range(0)]  # of the data set
    looked_at: list[Annotated[int, Range(0)]]
    sha256: str  # of the rows that were looked at


def digest_rows(dataset: Any, rows: Sequence[int] | None = None) -> RowsDigest | None:
    """The number of rows, and a digest of some of them, of a data set that is read by numbers; else ``None``.

    ``rows`` are those to look at; without, as many as are read in a tenth of a second, spread over the data set. Rows
    are read with seeded generators, and only counted where reading one twice gives different ones all the same.
    """
    if not reads_by_number(dataset):
        return None
    size = len(dataset)
    spread = list(dict.fromkeys(at * (size - 1) // max(1, min(size, _ROWS) - 1) for at in range(min(size, _ROWS))))
    digest, start, seen = hashlib.sha256(), time.perf_counter(), list[int]()
    with kept_generators() as seed:

        def read(row: int) -> bytes:
            seed(row)
            _add(of_row := hashlib.sha256(), dataset[row])
            return of_row.digest()

        for row in spread if rows is None else rows:
            if row >= size or (not seen and read(row) != read(row)):
                break
            digest.update(read(row))
            seen.append(row)
            if rows is None and time.perf_counter() - start > _SECONDS:
                break
    return RowsDigest(size, seen, digest.hexdigest())


def _add(digest: Any, value: Any) -> None:
    """Add a value to a digest; of an object that is none of the plain kinds only its class counts."""
    if isinstance(value, Tensor):
        value = value.detach().cpu().contiguous()
        digest.update(f"tensor {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    elif isinstance(value, np.ndarray):
        digest.update(f"array {value.dtype} {value.shape}".encode() + value.tobytes())
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            digest.update(f"key {key}".encode())
            _add(digest, value[key])
    elif isinstance(value, list | tuple):
        digest.update(f"list {len(value)}".encode())
        for item in value:
            _add(digest, item)
    elif isinstance(value, str | bytes | int | float | bool | np.generic | None):
        digest.update(f"{type(value).__name__} {value!r}".encode())
    else:
        digest.update(type(value).__name__.encode())
