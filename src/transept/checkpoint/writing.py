"""Writing safetensors files one tensor after the other, so that none but the one that is written need be in memory.

The files are those that the library of the format writes, byte for byte.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transept.errors import FileError, InputError
from transept.storage.files import reason

# The types of the format, in the order in which a file has its tensors.
_TYPES = {
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float32: "F32",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e8m0fnu: "F8_E8M0",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}

_ALIGNMENT = 8


def in_order(entries: Mapping[str, Any]) -> list[str]:
    """The names of tensors in the order in which a safetensors file has them: by type, and then by name.

    Raises:
        InputError: a tensor of a type that the format does not have.
    """
    kinds = list(_TYPES)
    for name, entry in entries.items():
        if entry.dtype not in _TYPES:
            raise InputError(f"the tensor {name!r} is of {entry.dtype}, which safetensors files do not hold.")
    return sorted(entries, key=lambda name: (kinds.index(entries[name].dtype), name))


def write_stream(entries: Mapping[str, Any], tensor: Callable[[str], Tensor], path: Path) -> None:
    """Write a safetensors file, of which each tensor is asked for by name when its turn has come.

    Args:
        entries: what has the shape, the type and the bytes of each tensor; the tensors themselves do.
        tensor: gives them.
        path: of the file, which is made or replaced.

    Raises:
        InputError: a tensor of a type that the format does not have.
        FileError: the file cannot be written.
    """
    try:
        _write(entries, tensor, path)
    except OSError as error:
        raise FileError(f"cannot be written ({reason(error)}).", path=path.name) from error
    except UnicodeEncodeError as error:
        raise InputError(f"a tensor cannot be saved ({str(error)[:200]}).", path=path.name) from error


def _write(entries: Mapping[str, Any], tensor: Callable[[str], Tensor], path: Path) -> None:
    with path.open("wb") as file:
        for part in _parts(entries, tensor):
            file.write(part)


def _parts(entries: Mapping[str, Any], tensor: Callable[[str], Tensor]) -> Iterator[Any]:
    """The bytes of a file: its header, and one tensor after the other."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name in (names := in_order(entries)):
        entry = entries[name]
        place = [at, at + entry.nbytes]
        header[name] = {"dtype": _TYPES[entry.dtype], "shape": list(entry.shape), "data_offsets": place}
        at = place[1]
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        dense = tensor(name).detach().cpu().contiguous()
        yield dense.view(-1).view(torch.uint8).numpy().data
