"""Rows of answers as a table: comma-separated values, or Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, BinaryIO

from transept.batch.encode import encode
from transept.errors import MissingExtraError

Rows = Callable[[], Iterable[Mapping[str, Any]]]
GROUP = 1024


def write_lines(rows: Rows, file: BinaryIO) -> None:
    for row in rows():
        file.write(f"{encode(row)}\n".encode("utf-8", "backslashreplace"))


def write_csv(rows: Rows, file: BinaryIO) -> None:
    """The columns of all rows, in the order in which they come up; mappings are columns of their own, lists are JSON."""
    columns = list(dict.fromkeys(name for row in rows() for name in flat(row)))
    text = io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", newline="")
    table = csv.DictWriter(text, columns, lineterminator="\n")
    table.writeheader()
    table.writerows({name: _cell(value) for name, value in flat(row).items()} for row in rows())
    text.detach()


def _cell(value: Any) -> Any:
    return "" if value is None else value if isinstance(value, str) else encode(value)


def write_parquet(rows: Rows, file: BinaryIO, vectors: Any = None) -> None:
    """As :func:`write_csv`, with types: a column of several kinds of values is JSON.

    Args:
        vectors: float32 (rows, size), the column ``embedding``, null where the first number is none.
    """
    pyarrow, parquet = needed()
    types: dict[str, Any] = {}
    for group in _groups(rows):
        for name, values in _columns(group).items():
            types[name] = _joined(pyarrow, types.get(name), values)
    fields = [(name, pyarrow.string() if pyarrow.types.is_null(kind) else kind) for name, kind in types.items()]
    at = 0
    if vectors is not None:
        fields.append(("embedding", pyarrow.list_(pyarrow.float32(), vectors.shape[1])))
    with parquet.ParquetWriter(file, schema := pyarrow.schema(fields)) as writer:
        for group in _groups(rows):
            columns = _columns(group)
            arrays = [_array(pyarrow, columns.get(name, [None] * len(group)), schema.field(name).type) for name in types]
            if vectors is not None:
                arrays.append(_vectors(pyarrow, vectors[at : at + len(group)]))
            at += len(group)
            writer.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))


def needed() -> tuple[Any, Any]:
    """Pyarrow and its module for Parquet (``MissingExtraError``: they are not there)."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "train", "Writing Parquet files") from error
    return pyarrow, pyarrow.parquet


def flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row whose mappings are columns of their own: ``{"answer": {"label": 1}}`` is ``{"answer.label": 1}``."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        found |= {f"{name}.{key}": item for key, item in value.items()} if isinstance(value, Mapping) else {name: value}
    return found


def _groups(rows: Rows) -> Iterator[list[dict[str, Any]]]:
    flattened = map(flat, rows())
    while group := list(islice(flattened, GROUP)):
        yield group


def _columns(group: list[dict[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for row in group for name in row)
    return {name: [row.get(name) for row in group] for name in names}


def _joined(pyarrow: Any, known: Any, values: list[Any]) -> Any:
    """The type of a column's values up to here; texts where they are of several kinds."""
    try:
        kinds = {type(value) for value in values} - {type(None)}
        found = pyarrow.float64() if kinds == {int, float} else pyarrow.array(values).type
        schemas = [pyarrow.schema([("x", kind)]) for kind in (known, found) if kind is not None]
        return pyarrow.unify_schemas(schemas, promote_options="permissive").field("x").type
    except (pyarrow.ArrowException, OverflowError):
        return pyarrow.string()


def _array(pyarrow: Any, values: list[Any], kind: Any) -> Any:
    if pyarrow.types.is_string(kind):
        values = [value if value is None or isinstance(value, str) else encode(value) for value in values]
    elif pyarrow.types.is_floating(kind):  # whole numbers among them may be too long for Arrow's own conversion
        values = [None if value is None else float(value) for value in values]
    return pyarrow.array(values, kind)


def _vectors(pyarrow: Any, rows: Any) -> Any:
    import numpy as np

    found = np.ascontiguousarray(rows)
    missing = pyarrow.array(np.isnan(found[:, 0]))
    return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(found.ravel()), found.shape[1], mask=missing)
