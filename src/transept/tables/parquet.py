"""Parquet files, read with a bound on what they hold once decoded.

A value that a column repeats stands once in the file, in the dictionary of its group of rows: 500 bytes can hold
gigabytes. So texts are read as places in dictionaries, and decoded some at a time, after their size was counted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transept.errors import FormatError, MissingExtraError
from transept.storage.files import PathName, open_regular
from transept.tables.text import FIRST_GROUP, PlacedRow, unique

MAX_BYTES = 4 * 2**30  # of all rows, where they are to be kept
MAX_ROW = 2**30
# A file may hold so many bytes, and so many more a byte of its own, which is far above what texts are compressed to.
_FREE_BYTES, _BYTES_PER_BYTE = 2**28, 100
_BATCH_ROWS, _BATCH_BYTES = 2**16, 2**26  # that are decoded at a time, at most
_ROW_BYTES = 64  # which a row takes at least, however little stands in it


def needed(purpose: str) -> Any:
    """The package pyarrow with its module ``parquet`` (``MissingExtraError``: it is not there)."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "train", purpose) from error
    return pyarrow


@contextmanager
def _opened(path: PathName) -> Iterator[tuple[Any, Any]]:
    """A file and the module that reads it; errors that come of its content are a ``FormatError``."""
    pyarrow = needed("Reading and writing Parquet files")
    with open_regular(path) as file:
        try:
            yield file, pyarrow.parquet
        except (pyarrow.ArrowException, OSError, UnicodeError) as error:
            raise FormatError(f"cannot be read as Parquet ({str(error)[:200]}).", path=path) from error


def parquet_columns(path: str) -> tuple[list[str], int]:
    """The names of a Parquet file's columns, and the number of its rows; see :func:`parquet_batches` for errors."""
    with _opened(path) as (file, parquet):
        table = parquet.ParquetFile(file)
        return unique(list(table.schema_arrow.names), path), table.metadata.num_rows


def parquet_examples(path: str) -> dict[str, Any]:
    """A value of the type of each column of plain numbers, truths or texts; see :func:`parquet_batches` for errors."""
    with _opened(path) as (file, parquet):
        from pyarrow import types

        examples = {types.is_signed_integer: 0, types.is_floating: 0.0, types.is_boolean: True, types.is_string: ""}
        fields = parquet.ParquetFile(file).schema_arrow
        return {field.name: value for field in fields for is_of, value in examples.items() if is_of(field.type)}


def parquet_groups(path: str) -> list[int]:
    """How many rows each row group of a Parquet file has; see :func:`parquet_batches` for errors."""
    with _opened(path) as (file, parquet):
        metadata = parquet.ParquetFile(file).metadata
        return [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]


def read_parquet(path: str, group: int | None = None, before: int = 0) -> Iterator[list[PlacedRow]]:
    """The rows of a Parquet file, or of one row group behind so many rows, some at a time.

    See :func:`parquet_batches` for errors.
    """
    number = before
    for batch in parquet_batches(path, FIRST_GROUP, only=group):
        yield [PlacedRow(row, f"{path}:{number + place}") for place, row in enumerate(batch.to_pylist(), 1)]
        number += len(batch)


def parquet_batches(
    path: PathName, size: int = _BATCH_ROWS, *, bounded: bool = False, only: int | None = None
) -> Iterator[Any]:
    """The rows of a Parquet file, or of one row group ``only``, as ``pyarrow.RecordBatch``, ``size`` or fewer at a time.

    Raises:
        FileError: there is no such regular file.
        FormatError: it is corrupt, has a row of more than ``MAX_ROW`` bytes, or, where it is ``bounded``, holds more
            than ``MAX_BYTES`` or far more than a file of its size does.
        MissingExtraError: pyarrow is not installed.
    """
    with _opened(path) as (file, parquet):
        table, size_read = parquet.ParquetFile(file), 0
        metadata = table.metadata
        limit = min(MAX_BYTES, _FREE_BYTES + _BYTES_PER_BYTE * os.fstat(file.fileno()).st_size) if bounded else None
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        _check(max(sum(group.total_byte_size for group in groups), _ROW_BYTES * metadata.num_rows), limit, path)
        unique(table.schema_arrow.names, str(path))
        schema = _plain(table.schema_arrow)
        texts = [column.path for column in map(table.schema.column, range(len(table.schema))) if _is_text(column)]
        coded = parquet.ParquetFile(file, read_dictionary=texts, buffer_size=2**16)
        for number, group in enumerate(groups):
            if only is not None and number != only:
                continue
            row_bytes = group.total_byte_size // max(1, group.num_rows)
            for batch in coded.iter_batches(max(1, min(size, _BATCH_BYTES // max(1, row_bytes))), [number]):
                size_read += _ROW_BYTES * len(batch) + _decoded_bytes(batch)
                _check(size_read, limit, path)
                for part in _parts(batch):
                    if _decoded_bytes(part) > MAX_ROW:
                        raise FormatError(f"has a row of more than {MAX_ROW} bytes.", path=path)
                    yield part.cast(schema)


def _check(size: int, limit: int | None, path: PathName) -> None:
    if limit is not None and size > limit:
        what = f"holds more than the {limit} bytes of rows allowed for a file of its size."
        raise FormatError(what, path=path, hint="Read it with pyarrow, and pass rows of your own.")


def _plain(schema: Any) -> Any:
    """A schema in which columns with dictionaries have the types of their values."""
    import pyarrow

    is_coded = pyarrow.types.is_dictionary
    return pyarrow.schema([part.with_type(part.type.value_type) if is_coded(part.type) else part for part in schema])


def _is_text(column: Any) -> bool:
    return bool(column.physical_type == "BYTE_ARRAY" and column.logical_type.type != "DECIMAL")


def _parts(batch: Any) -> Iterator[Any]:
    """A batch in halves of halves, until each takes little memory or is one row."""
    if len(batch) <= 1 or _decoded_bytes(batch) <= _BATCH_BYTES:
        yield batch
    else:
        middle = len(batch) // 2
        yield from _parts(batch.slice(0, middle))
        yield from _parts(batch.slice(middle))


def _decoded_bytes(data: Any) -> int:
    """What a batch or an array takes in memory once its texts are decoded."""
    from pyarrow import RecordBatch, compute, types

    if isinstance(data, RecordBatch):
        return sum(map(_decoded_bytes, data.columns))
    kind = data.type
    if types.is_dictionary(kind):
        lengths = compute.binary_length(data.dictionary).cast("int64").take(data.indices)
        return int(compute.sum(lengths).as_py() or 0) + 8 * len(data)
    if types.is_struct(kind):
        return sum(map(_decoded_bytes, data.flatten()))
    if types.is_map(kind):
        first, last = data.offsets[0].as_py(), data.offsets[-1].as_py()
        return sum(_decoded_bytes(part.slice(first, last - first)) for part in (data.keys, data.items))
    return _decoded_bytes(data.flatten()) + 8 * len(data) if types.is_nested(kind) else int(data.nbytes)
