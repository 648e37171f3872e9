"""Files of tensors are written here, and digested at once where that is wanted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transept.errors import InputError

_ALIGNMENT = 8
_CHUNK = 2**16
_NAMES = {
    getattr(torch, ours): name
    for ours, name in {
        "float64": "F64",
        "float32": "F32",
        "float16": "F16",
        "bfloat16": "BF16",
        "complex64": "C64",
        "bool": "BOOL",
        **{f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
        **{f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
        **{f"float8_{kind}": f"F8_{kind.removesuffix('fn').upper()}" for kind in ("e4m3fn", "e5m2")},
        **{f"float8_{kind}": f"F8_{kind.upper()}" for kind in ("e4m3fnuz", "e5m2fnuz")},
        "float8_e8m0fnu": "F8_E8M0",
    }.items()
}


def save_file(tensors: Mapping[str, Tensor], path: Path, digest: Any = None) -> None:
    """Write tensors as safetensors, those of the largest elements first, so that all begin where their type may begin.

    Args:
        digest: an object of ``hashlib``, which is fed with the file's bytes by another thread while they are written.

    Raises:
        InputError: a tensor of a type that the format does not have.
        OSError: the file cannot be written.
    """
    with open(path, "wb") as file, ThreadPoolExecutor(1) as beside:
        for part in _parts(tensors):
            if digest is not None:
                beside.submit(_feed, digest, part)
            file.write(part)


def _feed(digest: Any, part: Any) -> None:
    """Digest bytes by way of copies that stay in the processor's cache, which takes less time than from where they are."""
    for start in range(0, len(part), _CHUNK):
        digest.update(bytes(part[start : start + _CHUNK]))


def _parts(tensors: Mapping[str, Tensor]) -> Iterator[Any]:
    """The bytes of a file: its header, and one tensor after the other."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end, order = 0, sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    for name in order:
        tensor = tensors[name]
        if tensor.dtype not in _NAMES:
            raise InputError(f"the tensor {name!r} is of {tensor.dtype}, which safetensors files do not hold.")
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % _ALIGNMENT)
    yield len(text).to_bytes(8, "little") + text
    for name in order:
        yield tensors[name].cpu().reshape(-1).view(torch.uint8).numpy().data
