"""Weights that are written one tensor after the other, into the very files that writing all at once makes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from transept.errors import FileError
from transept.files import reason

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
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class Entry(NamedTuple):
    """The shape and the type of a tensor in a file."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def in_order(entries: Mapping[str, Entry]) -> list[str]:
    """The names of tensors in the order in which a safetensors file has them: by type, and then by name."""
    kinds = list(_TYPES)
    return sorted(entries, key=lambda name: (kinds.index(entries[name].dtype), name))


def write_stream(entries: Mapping[str, Entry], tensor: Callable[[str], Tensor], path: Path) -> None:
    """Write a safetensors file, of which each tensor is asked for by name when its turn has come.

    Raises:
        FileError: the file cannot be written.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name in (names := in_order(entries)):
        entry = entries[name]
        place = [at, at + entry.nbytes]
        header[name] = {"dtype": _TYPES[entry.dtype], "shape": list(entry.shape), "data_offsets": place}
        at = place[1]
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    try:
        with path.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for name in names:
                dense = tensor(name).detach().cpu().contiguous()
                file.write(dense.view(-1).view(torch.uint8).numpy().data)
    except OSError as error:
        raise FileError(f"cannot be written ({reason(error)}).", path=path.name) from error
