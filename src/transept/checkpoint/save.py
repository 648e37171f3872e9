"""Writing a model: safetensors, in shards above a size, with an index, so that a crash leaves the old directory whole."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from transept.checkpoint.store import file_names
from transept.directory import replace_directory
from transept.errors import FileError, InputError
from transept.files import dump_json, write_text

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def save_checkpoint(
    state: Mapping[str, Tensor], texts: Mapping[str, str], directory: Any, *, max_shard_size: Any = "50GB", variant: Any = None
) -> None:
    """Write weights and small text files into a directory, in place of earlier weights of the same variant.

    Args:
        state: tensors under the checkpoint's names.
        texts: file names and contents, such as ``config.json``.
        directory: where to; made where needed. Other files in it stay.
        max_shard_size: bytes, or a size such as ``"5GB"``; a larger tensor has a file of its own.
        variant: part of the weights' file names, such as ``fp16``.
    """
    for name, tensor in state.items():
        if tensor.is_meta:
            raise InputError(f"the tensor {name!r} has no values (it is on the meta device).", hint="Load or initialise it.")
        if tensor.layout != torch.strided:
            raise InputError(f"the tensor {name!r} is {tensor.layout}, and only dense ones can be saved.")
    single, index = file_names(variant)
    shards = split(state, size_in_bytes(max_shard_size))
    stem, count = single.removesuffix(".safetensors"), len(shards)
    files = [single] if count == 1 else [f"{stem}-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]
    with replace_directory(directory, drop=lambda name: is_weights(name, variant)) as stage:
        for file, names in zip(files, shards, strict=True):
            _write({name: state[name] for name in names}, stage / file)
        if count > 1:
            total = sum(tensor.nbytes for tensor in state.values())
            weight_map = {name: file for file, names in zip(files, shards, strict=True) for name in names}
            write_text(stage / index, dump_json({"metadata": {"total_size": total}, "weight_map": weight_map}))
        for file, text in texts.items():
            write_text(stage / file, text)


def is_weights(name: str, variant: str | None = None) -> bool:
    """Whether a file of that name holds weights of the variant, or their index; a reader would find it beside new ones."""
    single, index = file_names(variant)
    stem = re.escape(single.removesuffix(".safetensors"))
    return name == index or re.fullmatch(rf"{stem}(-\d{{5}}-of-\d{{5}})?\.safetensors", name) is not None


def size_in_bytes(size: int | str) -> int:
    """Bytes, at least one, of a number or of a text such as ``5GB`` (10^9) or ``500 MiB`` (2^20)."""
    found = re.fullmatch(r"(\d{1,18}(?:\.\d{1,9}(?=\s*[A-Z]))?)\s*([KMGT]I?B)?", str(size).strip().upper())
    value = 0 if found is None or type(size) is bool else int(float(found[1]) * _UNITS[found[2] or ""])
    if value < 1:
        raise InputError(f"`max_shard_size` must be bytes or a size such as '5GB', but is {size!r}.")
    return value


def split(state: Mapping[str, Tensor], limit: int) -> list[list[str]]:
    """The names of a state in its order, cut where the tensors' bytes would come above a limit."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name, tensor in state.items():
        if shards[-1] and filled + tensor.nbytes > limit:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += tensor.nbytes
    return shards


def _write(state: Mapping[str, Tensor], path: Path) -> None:
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in state.items():
        dense = tensor.detach().contiguous()
        memory = dense.untyped_storage().data_ptr()
        tensors[name] = dense.clone() if memory in seen else dense  # the format keeps no tensors that share memory
        seen.add(memory)
    try:
        save_file(tensors, path, metadata={"format": "pt"})
    except (SafetensorError, OSError) as error:
        raise FileError(f"cannot be written ({str(error)[:200]}).", path=path.name) from error
    except (KeyError, ValueError) as error:
        raise InputError(f"a tensor cannot be saved ({str(error)[:200]}).", path=path.name) from error
