"""Parquet files, read with a bound on what they hold once decoded.

A value that a column repeats stands once in the file, in the dictionary of its group of rows: a file of 500 bytes can hold
gigabytes. So fewer rows are decoded at a time where a dictionary has long values, and what was decoded is counted.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

from transept.errors import FormatError, MissingExtraError
from transept.files import PathName, open_regular

MAX_BYTES = 4 * 2**30
# A file may hold so many bytes, and so many more a byte of its own, which is far above what texts are compressed to.
_FREE_BYTES, _BYTES_PER_BYTE = 2**28, 100
_ROWS, _BATCH_BYTES = 2**16, 2**26  # that are decoded at a time, at most
_FIRST_ROWS = 1024  # that are read to see a dictionary
_ROW_BYTES = 64  # which a row takes at least, however little stands in it


def parquet_batches(path: PathName) -> Iterator[Any]:
    """The rows of a Parquet file as ``pyarrow.RecordBatch``, some thousands at a time.

    Raises:
        FileError: there is no such regular file.
        FormatError: it is corrupt, or holds more than ``MAX_BYTES``, or far more than a file of its size does.
        MissingExtraError: pyarrow is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "train", "Reading Parquet files") from error
    with open_regular(path) as file:
        most = min(MAX_BYTES, _FREE_BYTES + _BYTES_PER_BYTE * os.fstat(file.fileno()).st_size)
        try:
            table = pyarrow.parquet.ParquetFile(file)
            about = table.metadata
            pages = sum(about.row_group(group).total_byte_size for group in range(about.num_row_groups))
            _check(max(pages, _ROW_BYTES * about.num_rows), most, path)
            texts = [column for column in map(table.schema.column, range(len(table.schema))) if _is_text(column)]
            coded = pyarrow.parquet.ParquetFile(file, read_dictionary=[text.path for text in texts], buffer_size=2**16)
            listed = [text.path for text in texts if text.max_repetition_level]  # of which a row can hold any number
            held = 0
            for group in range(about.num_row_groups):
                if listed and most < MAX_BYTES:
                    _check(held + _decoded_bytes(coded, group, listed), most, path)
                longest = sum(_longest(coded, group, text.path) for text in texts)
                for batch in table.iter_batches(max(1, min(_ROWS, _BATCH_BYTES // max(1, longest))), [group]):
                    held += _ROW_BYTES * len(batch) + batch.nbytes
                    _check(held, most, path)
                    yield batch
        except (pyarrow.ArrowException, OSError, UnicodeError) as error:
            raise FormatError(f"cannot be read as Parquet ({str(error)[:200]}).", path=path) from error


def _check(held: int, most: int, path: PathName) -> None:
    if held > most:
        what = f"holds more than the {most} bytes of rows allowed for a file of its size."
        raise FormatError(what, path=path, hint="Read it with pyarrow, and pass rows of your own.")


def _is_text(column: Any) -> bool:
    return bool(column.physical_type == "BYTE_ARRAY" and column.logical_type.type != "DECIMAL")


def _longest(coded: Any, group: int, column: str) -> int:
    """Bytes of the longest value in the dictionary of a column, which comes with the first value."""
    from pyarrow import compute

    for batch in coded.iter_batches(_FIRST_ROWS, [group], columns=[column]):
        for text in _texts(batch.columns):
            if len(text.dictionary):
                return int(compute.max(compute.binary_length(text.dictionary)).as_py() or 0)
    return 0


def _decoded_bytes(coded: Any, group: int, columns: list[str]) -> int:
    """Bytes of the texts of a group's columns, each counted as often as it stands there."""
    from pyarrow import compute

    total = 0
    for batch in coded.iter_batches(_ROWS, [group], columns=columns):
        for text in _texts(batch.columns):
            lengths = compute.binary_length(text.dictionary).cast("int64").take(text.indices)
            total += compute.sum(lengths).as_py() or 0
    return total


def _texts(columns: Iterable[Any]) -> Iterator[Any]:
    """The texts in columns and in their parts, each an array with a dictionary."""
    from pyarrow import types

    for column in columns:
        if types.is_dictionary(column.type):
            yield column
        elif types.is_struct(column.type):
            yield from _texts(column.flatten())
        elif types.is_map(column.type):
            first, last = column.offsets[0].as_py(), column.offsets[-1].as_py()
            yield from _texts(part.slice(first, last - first) for part in (column.keys, column.items))
        elif types.is_nested(column.type):
            yield from _texts([column.flatten()])
