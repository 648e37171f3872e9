"""What a run read, as digests: data that changed since the run began is noticed when it is resumed."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transept.files import PathName, open_regular
from transept.training.loader import kept_generators

_ROWS = 64
_SECONDS = 0.1  # rows that are slow to read, such as sounds, are looked at for so long


def digest_files(paths: Iterable[PathName]) -> dict[str, dict[str, Any]]:
    """The size and the SHA-256 digest of each file, by its absolute path (``FileError``: one cannot be read)."""
    found = {}
    for path in paths:
        with open_regular(path) as opened:
            file: Any = opened
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            found[os.path.abspath(path)] = {"size": os.fstat(file.fileno()).st_size, "sha256": digest}
    return found


def changed_files(known: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Those of the files of :func:`digest_files` that are others by now, with what is different, for a warning."""
    changes = []
    for path, entry in known.items():
        if not os.path.isfile(path):
            changes.append(f"{path} is gone")
        elif (size := os.path.getsize(path)) != entry["size"]:
            changes.append(f"{path} has {size} bytes and had {entry['size']}")
        elif digest_files([path])[path] != dict(entry):
            changes.append(f"{path} has other content")
    return changes


def digest_rows(dataset: Any, rows: Sequence[int] | None = None) -> dict[str, Any] | None:
    """The number of rows, and a digest of some of them, of a data set that is read by numbers; else ``None``.

    ``rows`` are those to look at; without, they are spread over the data set, as many as are read in a tenth of a second.
    Rows are read with seeded generators, and only counted where reading one twice gives different ones all the same.
    """
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        return None
    size = len(dataset)
    spread = list(dict.fromkeys(at * (size - 1) // max(1, min(size, _ROWS) - 1) for at in range(min(size, _ROWS))))
    digest, start, seen = hashlib.sha256(), time.perf_counter(), list[int]()
    with kept_generators() as seed:
        for row in spread if rows is None else rows:
            if row >= size or (not seen and _read(dataset, row, seed) != _read(dataset, row, seed)):
                break
            digest.update(_read(dataset, row, seed))
            seen.append(row)
            if rows is None and time.perf_counter() - start > _SECONDS:
                break
    return {"rows": size, "looked_at": seen, "sha256": digest.hexdigest()}


def _read(dataset: Any, row: int, seed: Any) -> bytes:
    seed(row)
    digest = hashlib.sha256()
    _add(digest, dataset[row])
    return digest.digest()


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
