"""GGUF files (versions 2 and 3), llama.cpp's format: settings, a tokenizer and tensors in one file. No torch here.

Every count, length and place is checked against the size of the file before it is believed, so that reading the head takes
memory in proportion to that size at most. Tensors are found here and read by :mod:`transept.checkpoint.gguf`.
"""

from __future__ import annotations

import math
import mmap
import os
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from transept.errors import FileError, FormatError
from transept.storage.files import open_regular, reason
from transept.storage.gguf_encodings import ENCODINGS, Encoding
from transept.storage.source import Source

MAGIC = b"GGUF"
MAX_TENSORS, MAX_SETTINGS, MAX_FILES = 100_000, 10_000, 1_000
MAX_NAME, MAX_DIMENSIONS, MAX_SIZE = 512, 4, 2**40
MAX_SMALL = 2**16  # bytes of a tensor that settings are read from
_VERSIONS = (2, 3)
# The format's numbers of types: of values of a fixed size, as NumPy writes them; then that of texts and that of arrays.
_NUMBERS = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "|b1", 10: "<u8", 11: "<i8", 12: "<f8"}
_TEXT, _ARRAY = 8, 9
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


# Those whose names are known and which are not read.
_OTHERS = {16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S", 29: "IQ1_M"}
_OTHERS |= {24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 34: "TQ1_0", 35: "TQ2_0", 40: "NVFP4"}


@dataclass(frozen=True)
class Stored:
    """Where a tensor lies.

    ``shape`` has the outermost axis first, as everywhere but in the file; ``start`` is in bytes from the beginning of the file.
    """

    path: Path
    encoding: Encoding
    shape: tuple[int, ...]
    start: int
    size: int


@dataclass(frozen=True)
class GGUF:
    """The head of a file, or of all files of a model that is split."""

    paths: tuple[Path, ...]
    settings: Mapping[str, Any]
    tensors: Mapping[str, Stored]

    @property
    def architecture(self) -> str:
        """The format's name of the family, such as ``llama`` (``FormatError``: the file has none)."""
        name = self.settings.get("general.architecture")
        if not isinstance(name, str) or not name:
            raise FormatError("names no `general.architecture`.", path=self.paths[0], hint="It may be no language model.")
        return name

    def get(self, name: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """A setting, which must be of a kind where it is there (``FormatError``)."""
        value = self.settings.get(name, default)
        if value is not default and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)):
            raise FormatError(f"`{name}` cannot be {str(value)[:80]!r}.", path=self.paths[0])
        return value


def read_gguf(path: str | os.PathLike[str]) -> GGUF:
    """The head of a file, and of those that belong to it where a model is split (``x-00001-of-00003.gguf``).

    Raises:
        FileError: a file cannot be read.
        FormatError: it is no GGUF file of version 2 or 3, is truncated, or contradicts itself.
    """
    paths = tuple(Path(path).with_name(name) for name in shard_names(Path(path).name))
    identities = []
    for each in paths:
        with open_regular(each) as file:
            found = os.fstat(file.fileno())
        identities.append((found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns))
    return _read(paths, tuple(identities))


def gguf_of(source: Source) -> GGUF | None:
    """The head of the file that a source names as ``gguf_file``; ``None`` where it names none. Errors of :func:`read_gguf`."""
    if source.gguf_file is None:
        return None
    folder, _, name = source.gguf_file.rpartition("/")
    paths = [source.need(f"{folder}/{each}".lstrip("/")) for each in shard_names(name)]
    return read_gguf(paths[0])


@lru_cache(maxsize=4)
def _read(paths: tuple[Path, ...], identities: tuple[tuple[int, ...], ...]) -> GGUF:
    """Read the files with these identities: a config, a tokenizer and weights ask for one head."""
    heads = [_head(path) for path in paths]
    tensors: dict[str, Stored] = {}
    for head in heads:
        for name, stored in head.tensors.items():
            if name in tensors:
                other = tensors[name].path.name
                raise FormatError(f"holds the tensor {name[:200]!r}, which {other} holds too.", path=stored.path)
            tensors[name] = stored
    count = heads[0].get("split.tensors.count", int)
    if count is not None and count != len(tensors):
        raise FormatError(f"is of a model of {count} tensors, but its files hold {len(tensors)}.", path=paths[0])
    return GGUF(paths, heads[0].settings, tensors)


def shard_names(name: str) -> tuple[str, ...]:
    """The names of all files of a split model, given any of them; of a whole one its own name."""
    found = _SHARD.fullmatch(name)
    if found is None:
        return (name,)
    count = int(found["count"])
    if not 1 <= count <= MAX_FILES or not 1 <= int(found["number"]) <= count:
        raise FormatError(f"cannot be file {int(found['number'])} of {count} (at most {MAX_FILES}).", path=name)
    return tuple(f"{found['stem']}-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1))


def _head(path: Path) -> GGUF:
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size < 24:
            raise FormatError(f"is no GGUF file: it has {size} bytes.", path=path)
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Reader(path, data).head()
        except OSError as error:
            raise FileError(f"cannot be mapped ({reason(error)}).", path=path) from error


class _Reader:
    """Reads the head of a file from its beginning on."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.place, self.end = path, data, 0, len(data)

    def head(self) -> GGUF:
        if self._take(4) != MAGIC:
            raise self._wrong("begins with other letters than GGUF")
        version, tensors, settings = self._number("<I"), self._number("<Q"), self._number("<Q")
        if version not in _VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            kind = "is written for big-endian machines" if swapped in _VERSIONS else f"is of version {version}"
            raise self._wrong(f"{kind}, and versions 2 and 3 of little-endian ones are read")
        if tensors > MAX_TENSORS or settings > MAX_SETTINGS:
            raise self._wrong(f"claims {tensors} tensors and {settings} settings (at most {MAX_TENSORS} and {MAX_SETTINGS})")
        values: dict[str, Any] = {}
        for _ in range(settings):
            name = self._name()
            if name in values:
                raise self._wrong(f"has the setting {name!r} twice")
            values[name] = self._value(self._number("<I"), name)
        places = self._tensors(tensors)
        alignment = values.get("general.alignment", 32)
        if type(alignment) is not int or not 0 < alignment <= 2**20 or alignment & (alignment - 1):
            raise self._wrong(f"has an alignment of {str(alignment)[:40]} bytes")
        begin = -(-self.place // alignment) * alignment
        return GGUF((self.path,), values, self._placed(places, begin, alignment))

    def _tensors(self, count: int) -> dict[str, tuple[int, tuple[int, ...], int]]:
        """Number of the encoding, shape and place of each tensor."""
        found: dict[str, tuple[int, tuple[int, ...], int]] = {}
        for _ in range(count):
            name, axes = self._name(), self._number("<I")
            if name in found:
                raise self._wrong(f"holds the tensor {name!r} twice")
            if axes > MAX_DIMENSIONS:
                raise self._wrong(f"gives the tensor {name!r} {axes} axes")
            shape = tuple(self._number("<Q") for _ in range(axes))[::-1]
            if any(size > MAX_SIZE for size in shape):
                raise self._wrong(f"gives the tensor {name!r} the sizes {shape} (at most {MAX_SIZE})")
            found[name] = self._number("<I"), shape, self._number("<Q")
        return found

    def _placed(self, tensors: Mapping[str, tuple[int, tuple[int, ...], int]], begin: int, alignment: int) -> dict[str, Stored]:
        """Where the tensors are, which must lie in the file, apart from each other."""
        placed: dict[str, Stored] = {}
        for name, (number, shape, offset) in tensors.items():
            if (encoding := ENCODINGS.get(number)) is None:
                what = f"holds the tensor {name!r} as {_OTHERS.get(number, f'type {number}')}, which is not read"
                raise self._wrong(what, hint=f"Take a file of one of {', '.join(kind.name for kind in ENCODINGS.values())}.")
            count = math.prod(shape)
            if (shape[-1] if shape else 1) % encoding.block:
                raise self._wrong(f"holds the tensor {name!r} of {shape} in blocks of {encoding.block}")
            size = count // encoding.block * encoding.size
            if offset % alignment or begin + offset + size > self.end:
                what = f"places the tensor {name!r} of {size} bytes at {begin + offset}, but has {self.end} bytes"
                raise self._wrong(what, hint="The file may be truncated; fetch it again.")
            placed[name] = Stored(self.path, encoding, shape, begin + offset, size)
        reached = begin
        for name, stored in sorted(placed.items(), key=lambda item: (item[1].start, item[1].size)):
            if stored.start < reached:
                raise self._wrong(f"places the tensor {name!r} over another one")
            reached = stored.start + stored.size
        return placed

    def _value(self, kind: int, name: str) -> Any:
        """A number, a text, or an array of these: numbers as an array of NumPy, texts as a list."""
        if kind in _NUMBERS:
            return self._numbers(kind, 1, name)[0].item()
        if kind == _TEXT:
            return self._text(name)
        if kind != _ARRAY:
            raise self._wrong(f"has the setting {name!r} of an unknown type {kind}")
        inner, count = self._number("<I"), self._number("<Q")
        if inner in _NUMBERS:
            return self._numbers(inner, count, name)
        if inner != _TEXT:
            raise self._wrong(f"has the setting {name!r}, an array of an unknown type {inner}")
        if count > (self.end - self.place) // 8:  # each text has a length before it
            raise self._wrong(f"has the setting {name!r} of {count} texts, more than there is room for")
        return [self._text(name) for _ in range(count)]

    def _numbers(self, kind: int, count: int, name: str) -> Any:
        import numpy as np  # not at the top: a tokenizer of plain files needs none of it

        dtype = np.dtype(_NUMBERS[kind])
        if count > (self.end - self.place) // dtype.itemsize:
            raise self._wrong(f"has the setting {name!r} of {count} numbers, more than there is room for")
        taken = self._take(count * dtype.itemsize)
        if kind == 7:
            return np.frombuffer(taken, np.uint8) != 0
        return np.frombuffer(taken, dtype)

    def _name(self) -> str:
        length = self._number("<Q")
        if not 0 < length <= MAX_NAME:
            raise self._wrong(f"has a name of {length} bytes (1 to {MAX_NAME})")
        try:
            name = self._take(length).decode()
        except UnicodeDecodeError as error:
            raise self._wrong("has a name that is no UTF-8 text") from error
        if not name.isprintable():
            raise self._wrong(f"has the name {name!r}, with characters that cannot be printed")
        return name

    def _text(self, name: str) -> str:
        """A text; bytes of a token that are no UTF-8 become the replacement character, as in llama.cpp."""
        return self._take(self._number("<Q")).decode("utf-8", "replace")

    def _number(self, form: str) -> int:
        number: int = struct.unpack(form, self._take(struct.calcsize(form)))[0]
        return number

    def _take(self, size: int) -> bytes:
        if size > self.end - self.place:
            raise self._wrong(f"ends at {self.end} bytes, within its head", hint="The file may be truncated; fetch it again.")
        self.place += size
        return self.data[self.place - size : self.place]

    def _wrong(self, what: str, hint: str | None = None) -> FormatError:
        return FormatError(f"{what}.", path=self.path, hint=hint)


def numbers_of(gguf: GGUF, name: str) -> list[float] | None:
    """The numbers of a small tensor of float32; ``None`` where there is none of that name (``FormatError``: another type)."""
    if (stored := gguf.tensors.get(name)) is None:
        return None
    if stored.encoding.name != "F32" or stored.size > MAX_SMALL:
        raise FormatError(f"holds the tensor {name!r} as {stored.encoding.name}, but as float32 it is read.", path=stored.path)
    with open_regular(stored.path) as file:
        file.seek(stored.start)
        data = file.read(stored.size)
    return list(struct.unpack(f"<{len(data) // 4}f", data))
