"""Where answers go: rows as JSON lines, CSV or Parquet, with what each answer belongs to; rankings; and arrays."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, BinaryIO

from transept.batch.encode import encode, error_of
from transept.batch.inputs import Item
from transept.batch.output_file import OutputFile
from transept.errors import FormatError, InputError, TranseptError
from transept.storage.files import parse_json
from transept.tables.parquet import needed

Pairs = Sequence[tuple[Item, Any]]
ENDINGS = (".jsonl", ".ndjson", ".csv", ".parquet")
GROUP = 1024  # rows that are written to a table at a time
# The types that columns may be declared to have, and the values that fit.
TYPES: Mapping[str, tuple[type, ...]] = {"string": (str,), "bool": (bool,), "int64": (int,), "double": (float, int)}


def row_of(item: Item, name: str, answer: Any) -> dict[str, Any]:
    """The columns of an input, and its answer or error; an input's column of such a name becomes ``input_<name>``."""
    taken = {name, "error"}
    about = {f"input_{column}" if column in taken else column: value for column, value in item.about.items()}
    return about | (error_of(answer) if isinstance(answer, TranseptError) else {name: answer})


class Rows:
    """Answers as rows in a file: lines of JSON until all are there, then what the file's ending says.

    ``begin`` gives how many inputs are answered already, ``check`` raises an ``InputError`` unless these are they,
    ``end`` does what needs all answers, and ``failed`` counts the errors. Rows without answers are an array's index.
    With a ``piece``, which is how many rows are answered together, only whole pieces are kept. ``types`` are of columns that a
    Parquet file has in any case, in this order; with one for ``error`` that column holds texts.
    """

    def __init__(
        self,
        file: OutputFile,
        name: str = "answer",
        *,
        with_answers: bool = True,
        piece: int = 0,
        types: Mapping[str, str] | None = None,
    ) -> None:
        self.file, self.name, self.with_answers, self.piece = file, name, with_answers, piece
        self.types = types or {}

    @property
    def failed(self) -> int:
        return self.file.failed

    def begin(self) -> int:
        if not self.file.resume:
            return 0
        return self.keep(_whole(sum(line.endswith(b"\n") for line in self.lines()), self.piece))

    def keep(self, count: int) -> int:
        """Go on behind so many rows, which are to be checked."""
        size = sum(map(len, islice(self.lines(), count)))
        self.file.keep(count, size)
        self.file.file.seek(0)
        return count

    def check(self, items: Sequence[Item]) -> None:
        for item in items:
            line = self.file.file.readline()
            about, _, _ = _line(row_of(item, self.name, None)).rpartition(f', "{self.name}": null'.encode())
            rest = line.removeprefix(about)
            if rest == line or not rest.startswith((f', "{self.name}": '.encode(), b', "error": {', b"}")):
                what = f"another input was answered in the place of {item.where}."
                raise InputError(what, path=self.file.path, hint="Leave out --resume to begin anew.")
            self.file.failed += rest.startswith(b', "error": {')

    def write(self, pairs: Pairs) -> None:
        self.file.write(b"".join(map(self.line, pairs)), len(pairs))
        self.file.failed += sum(isinstance(answer, TranseptError) for _, answer in pairs)

    def line(self, pair: tuple[Item, Any]) -> bytes:
        row = row_of(pair[0], self.name, pair[1])
        return _line({name: row[name] for name in row if name != self.name or self.with_answers})

    def end(self) -> None:
        if not self.file.path.lower().endswith((".jsonl", ".ndjson")):
            self.arrange(self.rows)

    def arrange(self, rows: Callable[[], Iterable[Mapping[str, Any]]]) -> None:
        """Let rows take the place of the lines, as the file's ending says."""
        ending = os.path.splitext(self.file.path)[1].lower()
        with self.file.rewritten() as file:
            if ending == ".csv":
                write_csv(rows, file)
            elif ending == ".parquet":
                write_parquet(rows, file, declared=self.types)
            else:
                file.writelines(map(_line, rows()))

    def lines(self) -> Iterator[bytes]:
        """All lines, in order."""
        self.file.file.seek(0)
        return iter(self.file.file.readline, b"")

    def rows(self) -> Iterator[Mapping[str, Any]]:
        found = (parse_json(line.decode("utf-8"), path=self.file.partial) for line in self.lines())
        return map(_with_error, found) if "error" in self.types else found


def _whole(count: int, piece: int) -> int:
    return count - count % (piece or 1)


def _with_error(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "error": row["error"]["message"] if "error" in row else None}


def _line(row: Mapping[str, Any]) -> bytes:
    return f"{encode(row)}\n".encode("utf-8", "backslashreplace")


class Ranking(Rows):
    """Passages by their scores, the best first; those that failed are left out."""

    def __init__(self, file: OutputFile, top_k: int | None, **rows: Any) -> None:
        super().__init__(file, "score", **rows)
        self.top_k = top_k

    def end(self) -> None:
        places, at = list[tuple[float, int, int]](), 0
        for index, line in enumerate(self.lines()):
            if isinstance(score := parse_json(line.decode("utf-8")).get("score"), float):
                places.append((score, index, at))
            at += len(line)
        places = sorted(places, key=lambda place: -place[0])[: self.top_k]
        self.arrange(lambda: (ranked(rank, index, self._at(at)) for rank, (_, index, at) in enumerate(places, 1)))

    def _at(self, place: int) -> Mapping[str, Any]:
        self.file.file.seek(place)
        row: Mapping[str, Any] = parse_json(self.file.file.readline().decode("utf-8"))
        return row


def ranked(rank: int, index: int, row: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a passage that is the ``rank``-th best and stands at ``index``."""
    about = {name: value for name, value in row.items() if name != "number"}
    return {"rank": rank, "score": row["score"], "index": index, **about}


class Vectors:
    """Vectors (N, ``size``) in a ``.npy`` file that grows, with NaN where an input failed, and their index, of :class:`Rows`.

    With the ending ``.parquet`` they become one table at the end. ``store`` is the type of their numbers.
    """

    def __init__(self, file: OutputFile, index: OutputFile, size: int, *, store: str | None = None, **rows: Any) -> None:
        self.file, self.index, self.size = file, Rows(index, "embedding", with_answers=False, **rows), size
        self.dtype = "<f2" if store == "float16" else "<f4"

    @property
    def failed(self) -> int:
        return self.index.failed

    def begin(self) -> int:
        import numpy as np

        if not self.file.resume or not self.file.size:  # it may have been killed before it had begun
            self.file.write(self._header())
            return self.index.keep(0)
        vectors: Any = None
        with suppress(OSError, ValueError, EOFError):
            vectors = np.load(self.file.partial, mmap_mode="r", allow_pickle=False)
        if vectors is None or vectors.dtype != np.dtype(self.dtype) or vectors.ndim != 2 or vectors.shape[1] != self.size:
            wrong = f"holds no {np.dtype(self.dtype)} vectors of {self.size} numbers, as this model makes them."
            raise FormatError(wrong, path=self.file.partial, hint="Use the model that it was begun with.")
        count = _whole(min(len(vectors), self.index.begin()), self.index.piece)
        self.file.keep(count, vectors.offset + count * self.size * vectors.itemsize)
        return self.index.keep(count)

    def check(self, items: Sequence[Item]) -> None:
        self.index.check(items)

    def _header(self) -> bytes:
        """Of one length, since numpy leaves room in it for the first axis to grow."""
        import numpy as np

        header, shape = io.BytesIO(), (self.file.rows, self.size)
        np.lib.format.write_array_header_1_0(header, {"descr": self.dtype, "fortran_order": False, "shape": shape})
        return header.getvalue()

    def write(self, pairs: Pairs) -> None:
        import numpy as np

        rows = np.full((len(pairs), self.size), np.nan, self.dtype)
        for row, (_, answer) in zip(rows, pairs, strict=True):
            if not isinstance(answer, TranseptError):
                row[:] = answer
        self.index.write(pairs)
        self.file.write(rows.tobytes(), len(rows))
        self.file.rewrite(self._header())  # so that an interrupted file is whole too

    def end(self) -> None:
        import numpy as np

        self.file.failed = self.failed
        if self.file.path.lower().endswith(".parquet"):
            with self.file.rewritten() as file:
                vectors = np.load(self.file.partial, mmap_mode="r", allow_pickle=False)
                write_parquet(self.index.rows, file, vectors, self.index.types)
            self.index.file.kept = False


def write_csv(rows: Callable[[], Iterable[Mapping[str, Any]]], file: BinaryIO) -> None:
    """Write all columns in the order in which they come up; mappings are columns of their own, lists are JSON."""
    columns = list(dict.fromkeys(name for row in rows() for name in flat(row)))
    text = io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", newline="")
    table = csv.DictWriter(text, columns, lineterminator="\n")
    table.writeheader()
    for row in rows():
        table.writerow({name: _text(value) for name, value in flat(row).items()})  # None is an empty cell
    text.detach()


def _text(value: Any) -> Any:
    return value if value is None or isinstance(value, str) else encode(value)


def write_parquet(
    rows: Callable[[], Iterable[Mapping[str, Any]]],
    file: BinaryIO,
    vectors: Any = None,
    declared: Mapping[str, str] | None = None,
) -> None:
    """As :func:`write_csv`, with types: a column of several kinds of values is JSON.

    Args:
        vectors: float32 or float16 (rows, size), the column ``embedding``, null where the first number is none.
        declared: types of columns, which are there in any case; other values are null.
    """
    pyarrow, declared = needed("Writing Parquet files"), declared or {}
    types: dict[str, Any] = {name: pyarrow.type_for_alias(kind) for name, kind in declared.items()}
    for _, columns in _groups(rows()):
        for name, values in columns.items():
            if name not in declared:
                types[name] = _joined(pyarrow, types.get(name), values)
    fields = [(name, pyarrow.string() if pyarrow.types.is_null(kind) else kind) for name, kind in types.items()]
    if vectors is not None:
        fields.append(("embedding", pyarrow.list_(pyarrow.from_numpy_dtype(vectors.dtype), vectors.shape[1])))
    schema, start = pyarrow.schema(fields), 0
    with pyarrow.parquet.ParquetWriter(file, schema) as writer:
        for count, columns in _groups(rows()):
            for name in declared.keys() & columns.keys():
                columns[name] = [value if fits(value, declared[name]) else None for value in columns[name]]
            arrays = [_array(pyarrow, columns.get(name, [None] * count), schema.field(name).type) for name in types]
            if vectors is not None:
                arrays.append(_vectors(pyarrow, vectors[start : start + count]))
            start += count
            writer.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))


def fits(value: Any, kind: str) -> bool:
    """Whether a value is of a declared type; any is a text."""
    in_range = kind != "int64" or not isinstance(value, int) or -(2**63) <= value < 2**63
    return value is None or kind == "string" or (type(value) in TYPES[kind] and in_range)


def type_of(values: Iterable[Any]) -> str | None:
    """The type that holds all values of a column, which is texts where there are none; ``None`` for lists and other objects."""
    kinds = {type(value) for value in values} - {type(None)}
    is_plain = kinds <= {str, bool, int, float}
    return next((name for name, fitting in TYPES.items() if kinds <= {*fitting}), "string" if is_plain else None)


def flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row whose mappings are columns of their own: ``{"answer": {"label": 1}}`` is ``{"answer.label": 1}``."""
    columns: dict[str, Any] = {}
    for name, value in row.items():
        is_nested = isinstance(value, Mapping)
        columns |= {f"{name}.{key}": item for key, item in value.items()} if is_nested else {name: value}
    return columns


def _groups(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, dict[str, list[Any]]]]:
    """The columns of some rows at a time, and how many these are."""
    flattened = map(flat, rows)
    while group := list(islice(flattened, GROUP)):
        names = dict.fromkeys(name for row in group for name in row)
        yield len(group), {name: [row.get(name) for row in group] for name in names}


def _joined(pyarrow: Any, before: Any, values: list[Any]) -> Any:
    """The type of a column's values up to here; texts where they are of several kinds."""
    try:
        kinds = {type(value) for value in values} - {type(None)}
        kind = pyarrow.float64() if kinds == {int, float} else pyarrow.array(values).type
        schemas = [pyarrow.schema([("x", kind)]) for kind in (before, kind) if kind is not None]
        return pyarrow.unify_schemas(schemas, promote_options="permissive").field("x").type
    except (pyarrow.ArrowException, OverflowError):
        return pyarrow.string()


def _array(pyarrow: Any, values: list[Any], kind: Any) -> Any:
    if pyarrow.types.is_string(kind):
        values = [_text(value) for value in values]
    elif pyarrow.types.is_floating(kind):  # whole numbers among them may be too long for Arrow's own conversion
        values = [None if value is None else float(value) for value in values]
    return pyarrow.array(values, kind)


def _vectors(pyarrow: Any, rows: Any) -> Any:
    import numpy as np

    vectors = np.ascontiguousarray(rows)
    missing = pyarrow.array(np.isnan(vectors[:, 0]))
    return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(vectors.ravel()), vectors.shape[1], mask=missing)
