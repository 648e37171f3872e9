"""Reading weights: safetensors files, whole or in shards, checked before anything is allocated.

``TensorStore`` presents all shards of a model as one mapping of names to tensors. Tensors are mapped from the file and not
read, so that loading costs the parameters' bytes once. ``.bin`` files hold pickles: they are read only when they are asked for,
and then by PyTorch's reader of weights alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from transept.errors import FileError, FormatError
from transept.files import load_object, parse_json
from transept.source import Source

MAX_HEADER_BYTES = 100 * 2**20
MAX_TENSORS = 10**6
WEIGHTS_NAME = "model.safetensors"
PICKLE_NAME = "pytorch_model.bin"


def check_header(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a safetensors header and check it against the file's size, before anything is allocated for tensors.

    Raises:
        FormatError: naming the tensor and what is wrong with it.
    """
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(MAX_HEADER_BYTES, size - 8):
                raise FormatError(
                    f"is not a safetensors file: a header of {length} bytes does not fit into {size}.",
                    path=path,
                    hint="The file may be truncated, or a pointer to a large file that was not fetched.",
                )
            text = file.read(length)
    except OSError as error:
        raise FileError(f"cannot be read ({error.strerror}).", path=path) from error
    try:
        header = parse_json(text.decode("utf-8"), path=path)
    except UnicodeDecodeError as error:
        raise FormatError("has a safetensors header that is not UTF-8.", path=path) from error
    if not isinstance(header, dict) or len(header) > MAX_TENSORS:
        raise FormatError(f"has a safetensors header that is not an object of at most {MAX_TENSORS} tensors.", path=path)
    header.pop("__metadata__", None)
    for name, entry in header.items():
        _check_entry(name, entry, size - 8 - length, path)
    return header


def _check_entry(name: str, entry: Any, available: int, path: str | os.PathLike[str]) -> None:
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    shape = entry.get("shape") if isinstance(entry, dict) else None
    whole = all(isinstance(numbers, list) and all(type(n) is int and n >= 0 for n in numbers) for numbers in (offsets, shape))
    if not whole or len(offsets) != 2 or not offsets[0] <= offsets[1] <= available:
        raise FormatError(f"describes the tensor {name[:200]!r} outside of the file: {str(entry)[:200]}.", path=path)


class TensorStore(Mapping[str, Tensor]):
    """The tensors of one or more safetensors files by name.

    Args:
        files: the files; a name may stand in one of them only.
        weight_map: which file must hold which name, where an index says so.

    Raises:
        FormatError: a corrupt file, a name in two files, or one that is not where the index says.
    """

    def __init__(self, files: Iterable[Path], weight_map: Mapping[str, Path] | None = None) -> None:
        self._file: dict[str, Path] = {}
        self._open: dict[Path, Any] = {}
        self.files = tuple(dict.fromkeys(files))
        for path in self.files:
            for name in check_header(path):
                if name in self._file:
                    raise FormatError(f"holds the tensor {name!r}, which {self._file[name].name} holds too.", path=path)
                self._file[name] = path
            try:
                self._open[path] = safe_open(path, framework="pt", device="cpu")
            except (SafetensorError, OSError, ValueError) as error:
                raise FormatError(f"is not a valid safetensors file ({error}).", path=path) from error
        for name, path in (weight_map or {}).items():
            if self._file.get(name) != path:
                raise FormatError(f"does not hold the tensor {name!r}, which the index places there.", path=path)

    def __getitem__(self, name: str) -> Tensor:
        path = self._file[name]
        try:
            tensor: Tensor = self._open[path].get_tensor(name)
        except (SafetensorError, OSError, ValueError, RuntimeError) as error:
            raise FormatError(f"holds the tensor {name!r}, which cannot be read ({error}).", path=path) from error
        return tensor

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, without reading it."""
        return tuple(self._open[self._file[name]].get_slice(name).get_shape())

    def __iter__(self) -> Iterator[str]:
        return iter(self._file)

    def __len__(self) -> int:
        return len(self._file)


class PickleStore(dict[str, Tensor]):
    """The tensors of ``pytorch_model.bin`` files, read by PyTorch's weights-only reader."""

    def __init__(self, files: Iterable[Path]) -> None:
        super().__init__()
        self.files = tuple(files)
        for path in self.files:
            try:
                state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            except Exception as error:  # the reader raises many kinds for one cause: not a file of weights
                raise FormatError(f"is not a file of weights alone ({str(error)[:200]}).", path=path) from error
            if not isinstance(state, dict):
                raise FormatError(f"must hold a dictionary of tensors, but holds {type(state).__name__}.", path=path)
            self.update({str(name): tensor for name, tensor in state.items() if isinstance(tensor, Tensor)})

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor."""
        return tuple(self[name].shape)


Store = TensorStore | PickleStore


def open_store(source: Source, *, variant: str | None = None, pickle: bool = False) -> Store:
    """Find and open a model's weights.

    Args:
        source: where the model is.
        variant: the part of the file names that tells variants apart, such as ``fp16``.
        pickle: read ``pytorch_model.bin`` and not safetensors.

    Raises:
        FileError: there are none; says which files of another kind are there.
        FormatError: a corrupt file or index.
    """
    name = PICKLE_NAME if pickle else WEIGHTS_NAME
    stem, _, suffix = name.rpartition(".")
    single = f"{stem}.{variant}.{suffix}" if variant else name
    if (path := source.find(single)) is not None:
        return PickleStore([path]) if pickle else TensorStore([path])
    index = source.find(f"{name}.index.{variant}.json" if variant else f"{name}.index.json")
    if index is not None:
        weight_map = read_index(index)
        files = {file: source.need(file) for file in dict.fromkeys(weight_map.values())}
        if pickle:
            return PickleStore(files.values())
        return TensorStore(files.values(), {tensor: files[file] for tensor, file in weight_map.items()})
    hint = None
    if not pickle and source.find(PICKLE_NAME) is not None:
        hint = f"It has {PICKLE_NAME}, a pickle; pass use_safetensors=False to read it, or convert it."
    raise FileError(f"{single!r} and its index are not in {source.name}.", path=source.name, hint=hint)


def read_index(path: Path) -> dict[str, str]:
    """The ``weight_map`` of an index file: tensor names to file names.

    Raises:
        FormatError: it is missing or not a mapping of names to names.
    """
    weight_map = load_object(path).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise FormatError("must hold `weight_map`, an object of tensor names and file names.", path=path)
    return weight_map
