"""Rows in a file of Arrow that is mapped, and not read: more of them than the memory holds.

Few rows stay in memory as they are. More are written to a temporary file without a name, which the system removes
however the process ends. Texts, numbers and flat lists of numbers have Arrow's own types; all else is text in JSON.
"""

from __future__ import annotations

import json
import mmap
import os
import tempfile
import weakref
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from transept.errors import FileError
from transept.storage.files import parse_json, reason
from transept.tables.parquet import needed

BATCH_BYTES = 4 * 2**20  # about so much stays in memory
MOST_CELLS = 2**20  # of a batch
PURPOSE = "Data of more than some megabytes"
_JSON = {b"json": b"1"}  # the mark of a column of JSON


class _Column:
    """A column of a batch, by row; lists of numbers are read by NumPy, which is some 20 times as fast."""

    def __init__(self, array: Any, field: Any) -> None:
        self.array, self.is_json = array, bool(field.metadata) and b"json" in field.metadata
        self.offsets: NDArray[Any] | None = None
        types = needed(PURPOSE).types
        is_numbers = types.is_list(field.type) and types.is_primitive(field.type.value_type)
        if is_numbers and not array.null_count and not array.values.null_count:
            self.offsets, self.values = array.offsets.to_numpy(), array.values.to_numpy(zero_copy_only=False)

    def __getitem__(self, row: int) -> Any:
        if self.offsets is not None:
            return self.values[self.offsets[row] : self.offsets[row + 1]].tolist()
        value = self.array[row].as_py()
        return parse_json(value, finite=False) if self.is_json and value is not None else value

    @property
    def lengths(self) -> NDArray[Any]:
        if self.offsets is not None:
            return np.diff(self.offsets)
        return np.array([len(self[row]) for row in range(len(self.array))])


class ArrowRows(Sequence[Mapping[str, Any]]):
    """Rows of a mapped file by number.

    Args:
        file: the file, which is open as long as these rows are.
        batches: where in the file each batch of rows begins, and how many it has.
    """

    def __init__(self, file: BinaryIO, batches: Sequence[tuple[int, int]]) -> None:
        self.file, self.batches = file, batches
        weakref.finalize(self, file.close)
        self.ends = [*accumulate(count for _, count in batches)]
        self._map = needed(PURPOSE).py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        self._columns: list[dict[str, _Column] | None] = [None] * len(batches)

    def __reduce__(self) -> Any:
        """Processes that this one starts open the file through ``/proc``; where there is none, they get a copy."""
        path = f"/proc/{os.getpid()}/fd/{self.file.fileno()}"
        return (_reopened, (path, self.batches)) if os.path.exists(path) else (list, ([*self],))

    def __len__(self) -> int:
        return self.ends[-1]

    def __getitem__(self, index: Any) -> Any:
        row, columns = self._find(range(len(self))[index])
        return {name: column[row] for name, column in columns.items()}

    def value(self, index: int, name: str) -> Any:
        """One value of a row; ``None`` where it has no such column."""
        row, columns = self._find(index)
        return columns[name][row] if name in columns else None

    def lengths(self, name: str) -> NDArray[Any]:
        """The length of each row's value in a column (``KeyError``: some rows have none)."""
        return np.concatenate([self._batch(number)[name].lengths for number in range(len(self.batches))])

    def _find(self, index: int) -> tuple[int, dict[str, _Column]]:
        number = bisect_right(self.ends, index)
        return index - (self.ends[number - 1] if number else 0), self._columns[number] or self._batch(number)

    def _batch(self, number: int) -> dict[str, _Column]:
        columns = self._columns[number]
        if columns is None:
            batch = needed(PURPOSE).ipc.open_stream(self._map.slice(self.batches[number][0])).read_next_batch()
            columns = {field.name: _Column(batch.column(place), field) for place, field in enumerate(batch.schema)}
            self._columns[number] = columns
        return columns


def _reopened(path: str, batches: Sequence[tuple[int, int]]) -> ArrowRows:
    return ArrowRows(open(path, "rb"), batches)


class RowWriter:
    """Takes rows one after the other, and gives them back by number: few from memory, more from a mapped file."""

    def __init__(self) -> None:
        self.rows: list[Mapping[str, Any]] = []
        self.bytes = 0
        self.columns: dict[str, None] = {}  # of all rows, in the order in which they came
        self._kinds: dict[str, Any] = {}
        self._file: BinaryIO | None = None
        self._batches: list[tuple[int, int]] = []

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row (``FileError``: the disk is full; ``MissingExtraError``: many rows need pyarrow)."""
        self.rows.append(dict(row))
        self.bytes += _bytes(row)
        if not row.keys() <= self.columns.keys():
            self.columns |= dict.fromkeys(row)
        if self.bytes > BATCH_BYTES or len(self.rows) * len(self.columns) > MOST_CELLS:
            self._flush()

    def add_batch(self, batch: Any) -> None:
        """Add rows that are a batch of Arrow already."""
        self.columns |= dict.fromkeys(batch.schema.names)
        with _writing():
            if self._file is None:
                self._file = cast("BinaryIO", tempfile.TemporaryFile())  # noqa: SIM115  # its rows close it
            self._batches.append((self._file.tell(), len(batch)))
            with needed(PURPOSE).ipc.new_stream(self._file, batch.schema) as stream:
                stream.write_batch(batch)

    def finish(self) -> Sequence[Mapping[str, Any]]:
        """All rows."""
        if self._file is None:
            return self.rows
        if self.rows:
            self._flush()
        with _writing():
            self._file.flush()
        return ArrowRows(self._file, self._batches)

    def _flush(self) -> None:
        package = needed(PURPOSE)
        arrays, fields = [], []
        for name in self.columns:
            array, is_json = self._array([row.get(name) for row in self.rows], name)
            arrays.append(array)
            fields.append(package.field(name, array.type, metadata=_JSON if is_json else None))
        self.add_batch(package.RecordBatch.from_arrays(arrays, schema=package.schema(fields)))
        self.rows, self.bytes = [], 0

    def _array(self, values: list[Any], name: str) -> tuple[Any, bool]:
        """A column as an array, and whether it is JSON, which it stays once a batch was of another kind."""
        package = needed(PURPOSE)
        before, kind = self._kinds.get(name), _kind(values, package)
        kind = before if kind is None else kind
        if kind is not None and kind != "json" and before in (None, kind):
            try:
                array = package.array(values, kind)
                self._kinds[name] = kind
                return array, False
            except (package.ArrowException, OverflowError):  # numbers that are too large
                pass
        self._kinds[name] = "json"
        texts = [None if value is None else json.dumps(value, ensure_ascii=False) for value in values]
        return package.array(texts, package.large_string()), True


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        what, hint = f"cannot be written ({reason(error)}).", "TMPDIR names another folder."
        raise FileError(what, path=tempfile.tempdir, hint=hint) from error


def _bytes(value: Any) -> int:
    """About how much memory a value takes."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_bytes, value.values()))
    if isinstance(value, list | tuple) and value:
        return sum(map(_bytes, value)) if isinstance(value[0], list | tuple | str | Mapping) else 8 * len(value)
    return 8


def _kind(values: list[Any], package: Any) -> Any:
    """The type of Arrow for the values of a column, ``json`` where there is none; ``None``: all are missing."""
    kinds = {type(value) for value in values} - {type(None)}
    known: dict[Any, Any] = {str: package.large_string(), bool: package.bool_()}
    known |= {int: package.int64(), float: package.float64()}
    if kinds == {list}:
        kinds = {type(part) for value in values if value for part in value} or {list}
        known = {int: package.list_(package.int32()), float: package.list_(package.float64())}
    if len(kinds) > 1:
        return "json"
    return known.get(kinds.pop(), "json") if kinds else None
