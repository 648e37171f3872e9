"""Weights in files: safetensors, whole or in shards, checked before anything is allocated.

Tensors are mapped from the file, so that loading costs the parameters' bytes once; what is converted on the way is mapped for a
short while only, so that the file's own pages are not held beside the result. Pickles are read as plain tensors, where a model
has nothing else or they are asked for.
"""

from __future__ import annotations

import os
import re
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from transept.checkpoint.gguf import GGUFStore
from transept.checkpoint.names import Names
from transept.checkpoint.writing import write_stream
from transept.config.schema import Length, read_typed
from transept.errors import FileError, FormatError, InputError, TranseptWarning
from transept.storage.directory import replace_directory
from transept.storage.files import dump_json, open_regular, parse_json, plain_name, reason, write_text
from transept.storage.gguf import gguf_of
from transept.storage.source import Source

MAX_HEADER_BYTES = 25_000_000
# Above every checkpoint known; mixtures of experts come to some ten thousand tensors in a file.
MAX_TENSORS = 100_000
MAX_FILES = 10_000
MAX_DIMENSIONS = 16
PASSING_BYTES = 4 * 2**20
WEIGHTS_NAME = "model.safetensors"
PICKLE_NAME = "pytorch_model.bin"
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}

_KINDS = {
    b"version ": "It is a pointer to a large file that was not fetched; run `git lfs pull` beside it.",
    b"PK\x03\x04": "It is a zip archive or a PyTorch pickle; convert it to safetensors.",
    b"\x80\x02": "It is a pickle; convert it to safetensors.",
    b"GGUF": "It is a GGUF file; give it the ending .gguf, and pass its path as the model.",
    b"<": "It is a web page; download the file itself.",
}


def check_header(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a safetensors header and check it against the file's size, before anything is allocated for tensors.

    It holds for each tensor its ``dtype``, ``shape`` and ``data_offsets``.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > min(MAX_HEADER_BYTES, size - 8):
            hint = next((hint for mark, hint in _KINDS.items() if start.startswith(mark)), "The file may be truncated.")
            what = f"a header of {length} bytes (at most {MAX_HEADER_BYTES}) does not fit into {size}"
            raise FormatError(f"is not a safetensors file: {what}.", path=path, hint=hint)
        data = file.read(length)
    if data.count(b'"data_offsets"') > MAX_TENSORS:
        raise FormatError(f"has a safetensors header of more than {MAX_TENSORS} tensors.", path=path)
    header = parse_json(data.decode("utf-8", "replace"), path=path, max_values=16 * MAX_TENSORS)
    if not isinstance(header, dict):
        raise FormatError("has a safetensors header that is no JSON object.", path=path)
    header.pop("__metadata__", None)
    for name, entry in header.items():
        if not _is_entry(entry):
            raise FormatError(f"describes the tensor {name[:200]!r} in a way that cannot be: {str(entry)[:200]}.", path=path)
    reached, available = 0, size - 8 - length  # the tensors must lie one behind the other and fill the file
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        if begin != reached or end > available:
            where = f"at {begin} to {end}, where {reached} to at most {available} were due"
            raise FormatError(f"holds the tensor {name[:200]!r} {where}.", path=path, hint="The file may be truncated.")
        reached = end
    if reached != available:
        raise FormatError(f"holds {available - reached} bytes behind its last tensor.", path=path)
    return header


def _is_entry(entry: Any) -> bool:
    match entry:
        case {"dtype": str(), "shape": [*shape], "data_offsets": [begin, end], **more} if not more:
            for number in (begin, end, *shape):
                if type(number) is not int or not 0 <= number < 2**63:
                    return False
            return len(shape) <= MAX_DIMENSIONS and begin <= end
    return False


def _names_of(self: Any, model: Any) -> Names:
    """The names of a model's tensors in the files."""
    names: Names = model.checkpoint_names()
    return names


class TensorStore(Mapping[str, Tensor]):
    """The tensors of one or more safetensors files by name, each of which may stand in one file only.

    ``weight_map`` says which file must hold which name, where an index does. A file that is replaced meanwhile is an error.
    """

    def __init__(self, files: Iterable[Path], weight_map: Mapping[str, Path] | None = None) -> None:
        self._file: dict[str, Path] = {}
        self._sizes: dict[str, int] = {}  # in bytes
        self._mapped: dict[Path, Any] = {}
        self._passing: tuple[Path, Any] | None = None
        self._passed = 0
        self.files = tuple(dict.fromkeys(files))
        self._identities = {path: _identity(path) for path in self.files}
        for path in self.files:
            for name, entry in check_header(path).items():
                self._sizes[name] = entry["data_offsets"][1] - entry["data_offsets"][0]
                if (other := self._file.setdefault(name, path)) != path:
                    raise FormatError(f"holds the tensor {name[:200]!r}, which {other.name} holds too.", path=path)
            self._mapped[path] = _open(path)
        for path in self.files:
            self._check_unchanged(path)
        for name, path in (weight_map or {}).items():
            if self._file.get(name) != path:
                raise FormatError(f"does not hold the tensor {name[:200]!r}, which the index places there.", path=path)

    def __getitem__(self, name: str) -> Tensor:
        """The tensor as it lies in the file: mapped, so that reading it twice gives the same memory."""
        return _read(self._mapped[self._file[name]], name, self._file[name])

    names = _names_of

    def passing(self, name: str) -> Tensor:
        """The tensor to be converted or compared and dropped: in a map that is given up after a while, with its pages."""
        path = self._file[name]
        if self._passing is None or self._passing[0] != path or self._passed > max(PASSING_BYTES, path.stat().st_size // 64):
            self._passing, self._passed = (path, _open(path)), 0
            self._check_unchanged(path)
        tensor = _read(self._passing[1], name, path)
        self._passed += tensor.nbytes
        return tensor

    def metadata(self, path: Path) -> dict[str, str]:
        """The texts that one of the files holds beside its tensors."""
        return dict(self._mapped[path].metadata() or {})

    def _check_unchanged(self, path: Path) -> None:
        """Refuse a file that is another one by now: weights of two saves would be mixed."""
        if _identity(path) != self._identities[path]:
            raise FileError("was replaced while the model was loaded.", path=path, hint="Load the model again.")

    def reading_order(self, names: Iterable[str]) -> list[str]:
        """Names by file, and large tensors first, while little else is in memory."""
        order = {path: index for index, path in enumerate(self.files)}
        return sorted(names, key=lambda name: (order[self._file[name]], -self._sizes[name]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._file)

    def __len__(self) -> int:
        return len(self._file)


def _read(file: Any, name: str, path: Path) -> Tensor:
    try:
        tensor: Tensor = file.get_tensor(name)
    except (SafetensorError, OSError, ValueError, RuntimeError, TypeError) as error:
        what = f"holds the tensor {name[:200]!r}, which cannot be read ({str(error)[:200]})."
        raise FormatError(what, path=path) from error
    return tensor


def _identity(path: Path) -> tuple[int, ...]:
    """What tells a file from another one that is put in its place."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise FileError(f"cannot be read ({reason(error)}).", path=path) from error
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, ValueError) as error:
        what = f"is not a valid safetensors file ({str(error)[:200]})."
        raise FormatError(what, path=path, hint="The file may be truncated.") from error
    except OSError as error:
        raise FileError(f"cannot be read ({reason(error)}).", path=path) from error
    except RuntimeError as error:  # PyTorch's, where the system maps no file that is larger than its memory
        what = f"of {path.stat().st_size} bytes cannot be mapped ({str(error)[:200]})."
        raise FileError(what, path=path, hint="It needs more memory, or to be saved in smaller shards.") from error


class PickleStore(dict[str, Tensor]):
    """The tensors of ``pytorch_model.bin`` files, read by PyTorch's weights-only reader, which must hold nothing else."""

    def __init__(self, files: Iterable[Path]) -> None:
        super().__init__()
        self.files = tuple(dict.fromkeys(files))
        for path in self.files:
            try:
                # Files from before PyTorch 1.6 are no archives and cannot be mapped.
                state = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
            except Exception as error:  # the reader raises many kinds for one cause, with advice to read whatever it is
                what = f"is corrupt or holds more than weights ({type(error).__name__}), and is not read."
                raise FormatError(what, path=path) from error
            if not isinstance(state, dict):
                raise FormatError(f"must hold a dictionary of tensors, but holds {type(state).__name__}.", path=path)
            for name, tensor in state.items():
                if not isinstance(name, str) or not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
                    what = f"{type(tensor).__name__} under {str(name)[:200]!r}"
                    raise FormatError(f"must hold dense tensors under their names, but holds {what}.", path=path)
                if name in self:
                    raise FormatError(f"holds the tensor {name[:200]!r}, which another file holds too.", path=path)
                self[name] = tensor

    passing = dict.__getitem__
    names = _names_of

    def reading_order(self, names: Iterable[str]) -> list[str]:
        return sorted(names, key=lambda name: -self[name].nbytes)


Stored = TensorStore | PickleStore | GGUFStore


def file_names(variant: Any, *, pickle: bool = False) -> tuple[str, str]:
    """The names of a single file of weights and of the index of shards; a variant must be a plain word."""
    if variant is not None and not (isinstance(variant, str) and re.fullmatch(r"[A-Za-z0-9_-]{1,64}", variant)):
        raise InputError(f"`variant` must be a plain word such as 'fp16', but is {str(variant)[:80]!r}.")
    name = PICKLE_NAME if pickle else WEIGHTS_NAME
    stem, _, suffix = name.rpartition(".")
    return (f"{stem}.{variant}.{suffix}", f"{name}.index.{variant}.json") if variant else (name, f"{name}.index.json")


def open_store(source: Source, *, variant: str | None = None, safe: bool | None = None) -> Stored:
    """Find and open a model's weights: safetensors, or the older ``pytorch_model.bin``.

    With ``safe`` only the first counts, with ``safe=False`` only the second, and else the second where there is no first, with
    a warning.

    Raises:
        InputError: ``variant``, which becomes a part of the file names such as ``fp16``, is not a plain word.
        FileError: there are no weights; says which ones of another kind are there.
        FormatError: a corrupt file or index.
    """
    if (gguf := gguf_of(source)) is not None:
        return GGUFStore(gguf)
    for pickle in (False, True):
        if safe is not None and safe is pickle:
            continue
        single, index = file_names(variant, pickle=pickle)
        path = source.find(single)
        if path is None and (path := source.find(index)) is None:
            continue
        if pickle and safe is None:
            what = f"{source.name} has no {file_names(variant)[0]}; its pickle {path.name} is read, as tensors alone."
            warnings.warn(f"{what} save_pretrained() writes safetensors.", TranseptWarning, stacklevel=3)
        if path.name == single:
            return PickleStore([path]) if pickle else TensorStore([path])
        weight_map = read_index(path)
        files = {file: source.need(file) for file in dict.fromkeys(weight_map.values())}
        mapped = {tensor: files[file] for tensor, file in weight_map.items()}
        return PickleStore(files.values()) if pickle else TensorStore(files.values(), mapped)
    raise source.missing(file_names(variant, pickle=safe is False)[0], hint=_other_weights(source, variant, safe))


def _other_weights(source: Source, variant: str | None, safe: bool | None) -> str | None:
    """What to do where the wanted weights are not there but others are."""
    if variant is not None and any(source.find(name) is not None for name in file_names(None, pickle=safe is False)):
        return "It has weights without a variant; leave `variant` out to read them."
    if safe is False:
        return None
    files = sorted(path.name for path in source.directory.glob("model.*.safetensors")) if source.directory else []
    found = (re.fullmatch(r"model\.([A-Za-z0-9_-]{1,64}?)(?:-\d{5}-of-\d{5})?\.safetensors", name) for name in files)
    if variant is None and (name := next((match[1] for match in found if match), None)):
        return f"It has weights of the variant {name!r}; pass variant={name!r} to read them."
    if any(source.find(name) is not None for name in file_names(variant, pickle=True)):
        return f"It has {PICKLE_NAME}, a pickle; leave use_safetensors out to read it, or convert it."
    return None


@dataclass(frozen=True)
class _Index:
    """What is read of an index file: the names of tensors, and the file of each."""

    weight_map: Annotated[dict[str, str], Length(1)]


def read_index(path: Path) -> dict[str, str]:
    """The ``weight_map`` of an index file, tensor names to plain file names; a ``FormatError`` where it is no such thing."""
    weight_map = read_typed(path, _Index).weight_map
    files = {*weight_map.values()}
    if len(files) > MAX_FILES:
        raise FormatError(f"names more than {MAX_FILES} files.", path=path)
    for file in files:
        plain_name(file, path)
    return weight_map


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
    sizes = {name: tensor.nbytes for name, tensor in state.items()}
    shards = split(sizes, size_in_bytes(max_shard_size))

    def write(names: list[str], path: Path) -> None:
        write_tensors({name: state[name] for name in names}, path)

    write_checkpoint(shards, sizes, texts, directory, write, variant=variant)


def write_checkpoint(
    shards: Sequence[list[str]],
    sizes: Mapping[str, int],
    texts: Mapping[str, str],
    directory: Any,
    write: Callable[[list[str], Path], None],
    *,
    variant: Any = None,
) -> None:
    """Write the names of each shard by ``write``, with an index where there are several; the others as for one at once.

    ``sizes`` are the tensors' bytes.
    """
    single, index = file_names(variant)
    stem, count = single.removesuffix(".safetensors"), len(shards)
    files = [single] if count == 1 else [f"{stem}-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]
    with replace_directory(directory, drop=lambda name: is_weights(name, variant)) as stage:
        for file, names in zip(files, shards, strict=True):
            write(names, stage / file)
        if count > 1:
            total = sum(sizes.values())
            weight_map = {name: file for file, names in zip(files, shards, strict=True) for name in names}
            write_text(stage / index, dump_json({"metadata": {"total_size": total}, "weight_map": weight_map}))
        for file, text in texts.items():
            write_text(stage / file, text)


def save_tensors(state: Mapping[str, Tensor], name: str, texts: Mapping[str, str], directory: Any) -> None:
    """Write one file of tensors and small text files into a directory, in place of those of these names."""
    with replace_directory(directory) as stage:
        write_tensors(state, stage / name)
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


def split(sizes: Mapping[str, int], limit: int) -> list[list[str]]:
    """The names of tensors in their order, cut where their bytes would come above a limit."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if shards[-1] and filled + size > limit:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    return shards


def write_tensors(state: Mapping[str, Tensor], path: Path) -> None:
    """Write a file of tensors."""
    write_stream(state, lambda name: state[name], path)
