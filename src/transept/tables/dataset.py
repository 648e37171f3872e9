"""Rows with named columns: one class for all that is read, whatever it came from and wherever it lies."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Self, overload

import numpy as np
from numpy.typing import NDArray

from transept.errors import FormatError, InputError, InputTypeError, nearest
from transept.tables.arrow import ArrowRows

Row = dict[str, Any]
MOST_ROWS = 50_000_000
CHUNK = 1_000  # rows that are read at a time


class TableDataset(Sequence[Row]):
    """Rows by integer index, each a mapping of columns to values, as ``torch.utils.data.DataLoader`` reads them.

    Args:
        rows: the rows, or an object that gives them by integer index.
        column_names: the columns; those of the rows, in the order in which they come first, when absent.
        path: the file or folder that they were read from, for messages.
        lines: the line of the file on which each of ``rows`` begins, for messages.
        class_names: names of the classes that integers of a column stand for, by column.
        notes: sentences about how the rows were read that a person should see.
        is_one_text: whether the rows are parts of one text, one behind the other.
    """

    def __init__(
        self,
        rows: Sequence[Mapping[str, Any]],
        column_names: Sequence[str] | None = None,
        *,
        path: str | None = None,
        lines: Sequence[int] | None = None,
        class_names: Mapping[str, Sequence[str]] | None = None,
        notes: Sequence[str] = (),
        is_one_text: bool = False,
    ) -> None:
        self.rows, self.path, self.notes, self._lines = rows, path, list(notes), lines
        self.is_one_text = is_one_text
        names = (name for row in rows for name in row) if column_names is None else column_names
        self.column_names = list(dict.fromkeys(names))
        self.class_names = {name: list(names) for name, names in (class_names or {}).items()}
        self._chosen: range | NDArray[Any] = range(len(rows))  # the rows that the data set has, in their order
        for name in self.column_names:
            if not name.isascii() and any("\ud800" <= letter <= "\udfff" for letter in name):
                what = f"the name of a column, {name!r}, holds half of a surrogate pair, which is no character."
                raise (InputError if path is None else FormatError)(what, path=path)

    @property
    def lines(self) -> list[int] | None:
        """The line of the file on which each row begins."""
        return None if self._lines is None else [int(self._lines[row]) for row in self._chosen]

    def __len__(self) -> int:
        return len(self._chosen)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> TableDataset: ...
    def __getitem__(self, index: int | slice) -> Row | TableDataset:
        if isinstance(index, slice):
            return self._with(self._chosen[index])
        row = self.rows[int(self._chosen[index])]
        return {name: row.get(name) for name in self.column_names}

    def select(self, indices: Iterable[int]) -> Self:
        """The rows of these indices, in their order."""
        places = indices if isinstance(indices, Sequence | np.ndarray) else [*indices]
        return self._with(self._numbers()[np.asarray(places, np.int64)])

    def _with(self, chosen: range | NDArray[Any]) -> Self:
        part = copy.copy(self)
        part._chosen = chosen
        return part

    def _numbers(self) -> NDArray[Any]:
        """The numbers of the rows as an array, of four bytes each where that suffices."""
        rows = self._chosen
        if not isinstance(rows, range):
            return rows
        kind: Any = np.int32 if len(self.rows) < 2**31 else np.int64
        return np.arange(rows.start, rows.stop, rows.step, dtype=kind)

    @property
    def is_stored(self) -> bool:
        """Whether rows are there already, so that reading one twice gives the same."""
        return isinstance(self.rows, list | tuple | ArrowRows)

    def values(self, name: str) -> Iterator[Any]:
        """The values of a column, one after the other (``InputError``: there is no such column)."""
        if name not in self.column_names:
            raise InputError(f"there is no column {name!r}.", path=self.path, hint=nearest(name, self.column_names))
        if isinstance(self.rows, ArrowRows):
            return (self.rows.value(int(row), name) for row in self._chosen)
        return (self.rows[int(row)].get(name) for row in self._chosen)

    def column(self, name: str) -> list[Any]:
        """All values of a column (``InputError``: there is no such column); ``None`` in rows that lack it."""
        return list(self.values(name))

    def chunks(self, size: int = CHUNK) -> Iterator[TableDataset]:
        """The rows in parts of some, so that not all need be in memory at once."""
        return (self[start : start + size] for start in range(0, len(self), size))

    def lengths(self, name: str) -> NDArray[Any]:
        """The length of each row's value in a column."""
        if isinstance(self.rows, ArrowRows):
            lengths: NDArray[Any] = self.rows.lengths(name)[self._numbers()]
            return lengths
        return np.fromiter(map(len, self.values(name)), np.int64, len(self))

    def place(self, index: int) -> str:
        """Where a row stands, as ``file:line`` or ``file, row 3``; rows are counted from 1."""
        row = int(self._chosen[index])
        return f"{self.path or 'data'}, row {row + 1}" if self._lines is None else f"{self.path}:{self._lines[row]}"

    def key(self, index: int) -> bytes:
        """A hash of a row's content (8 bytes), which does not depend on where the data lie."""
        content, folder = self[index], f"{self.path}/"
        for name, value in content.items():
            if isinstance(value, str) and self.path is not None:
                content[name] = value.removeprefix(folder)
        return hashlib.blake2b(_encode(content).encode("utf-8", "surrogatepass"), digest_size=8).digest()

    def keys(self) -> NDArray[np.uint64]:
        """The hashes of all rows as numbers."""
        keys = (int.from_bytes(self.key(index)) for index in range(len(self)))
        return np.fromiter(keys, np.uint64, len(self))

    def __repr__(self) -> str:
        return f"TableDataset({len(self)} rows, columns {', '.join(self.column_names)})"


def _digest(value: Any) -> str:
    """What stands for a value that JSON does not have: bytes and arrays by their content."""
    if not isinstance(value, bytes):
        value = value.tobytes() if hasattr(value, "tobytes") else repr(value).encode()
    return hashlib.blake2b(value, digest_size=16).hexdigest()


_encode = json.JSONEncoder(sort_keys=True, ensure_ascii=False, default=_digest).encode


def as_dataset(source: Any) -> TableDataset:
    """Rows of any object that offers them.

    Args:
        source: a :class:`TableDataset`; an object with ``column_names`` and integer indexing, as of ``datasets``;
            a mapping of columns to equally long lists; a sequence or any other iterable of mappings.

    Raises:
        InputTypeError: it offers nothing of that.
        InputError: a collection of several splits, columns of unequal lengths, no rows, or rows without end.
    """
    if isinstance(source, TableDataset):
        return source
    if isinstance(source, Mapping):
        return _from_mapping(source)
    if isinstance(names := getattr(source, "column_names", None), list) and hasattr(source, "__getitem__"):
        return TableDataset(source, names, class_names=_class_names(source))
    if isinstance(source, str | bytes) or not isinstance(source, Iterable):
        hint = "Pass rows, or the path of a file to load_dataset_file."
        raise InputTypeError(f"a data set is a collection of rows, not {source!r:.80}.", hint=hint)
    rows: list[Any] = []
    for number, row in enumerate(source):
        if not isinstance(row, Mapping) or not all(isinstance(name, str) for name in row):
            raise InputTypeError(f"row {number + 1} is {type(row).__name__}, not a mapping of columns to values.")
        if number >= MOST_ROWS:
            raise InputError(f"there are more than {MOST_ROWS} rows.", hint="Pass a data set that is read by index.")
        rows.append(row)
    return TableDataset(rows)


def _from_mapping(source: Mapping[Any, Any]) -> TableDataset:
    """A mapping of columns to lists, which collections of splits resemble."""
    if source and all(hasattr(value, "column_names") for value in source.values()):
        names = ", ".join(map(repr, source))
        what = f"this is a collection of splits ({names}), not one data set."
        raise InputError(what, hint="Pass one: data['train'].")
    lengths = {str(name): len(values) if isinstance(values, Sequence) else -1 for name, values in source.items()}
    if len(set(lengths.values())) != 1 or -1 in lengths.values():
        columns = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise InputError(f"the columns are not lists of one length: {columns}.")
    return TableDataset([dict(zip(lengths, values)) for values in zip(*source.values())], list(lengths))


def _class_names(source: Any) -> dict[str, list[str]]:
    """The names of classes that a data set's description of its columns tells."""
    features = getattr(source, "features", None)
    described = features.items() if isinstance(features, Mapping) else ()
    pairs = ((name, getattr(getattr(kind, "feature", kind), "names", None)) for name, kind in described)
    return {name: list(names) for name, names in pairs if isinstance(names, list)}


def rows_of_document(document: Any, path: str) -> list[Row]:
    """The rows of a document.

    - a list of objects: these;
    - an object with a list below ``data``: that list; where its parts have ``paragraphs`` (SQuAD, Rajpurkar et al.
      2016), a row for each question: ``question``, ``context``, ``answers`` (``text`` and ``answer_start``), ``id``;
    - an object with ``images``, ``annotations`` and ``categories`` (COCO, Lin et al. 2014): a row for each image with
      ``image``, the file's name, and ``objects``: ``bbox`` (x, y, width, height in pixels) and ``category`` (names);
    - an object of lists of one length: a row for each place in them.

    Raises:
        FormatError: none of these, or one of which a part is missing.
    """
    rows = document
    if isinstance(document, dict):
        try:
            rows = _flattened(document)
        except (KeyError, TypeError, AttributeError) as error:
            raise FormatError(f"a part of its layout is missing or of another kind ({error}).", path=path) from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        hint = "It may hold a list of objects, an object of columns, or an object a line."
        raise FormatError("holds no rows: its JSON is not a list of objects.", path=path, hint=hint)
    return rows


def _flattened(document: dict[str, Any]) -> Any:
    if {"images", "annotations", "categories"} <= document.keys():
        return list(_images(document))
    if isinstance(data := document.get("data"), list):
        is_squad = any(isinstance(article, dict) and "paragraphs" in article for article in data)
        return list(_questions(data)) if is_squad else data
    columns = list(document.values())
    if columns and all(isinstance(column, list) for column in columns) and len(set(map(len, columns))) == 1:
        return [dict(zip(document, values)) for values in zip(*columns)]
    return document


def _questions(articles: list[Any]) -> Iterator[Row]:
    for article in articles:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                answers = question.get("answers", [])
                columns = {name: [answer[name] for answer in answers] for name in ("text", "answer_start")}
                row = {"id": question.get("id"), "question": question["question"], "context": paragraph["context"]}
                yield row | {"answers": columns}


def _images(document: dict[str, Any]) -> Iterator[Row]:
    names = {category["id"]: category["name"] for category in document["categories"]}
    boxes: dict[Any, list[Any]] = {}
    for box in document["annotations"]:
        if not box.get("iscrowd"):
            boxes.setdefault(box["image_id"], []).append(box)
    for image in document["images"]:
        inside = boxes.get(image["id"], [])
        objects = {"bbox": [box["bbox"] for box in inside], "category": [names[box["category_id"]] for box in inside]}
        yield {"image": image["file_name"], "objects": objects}


def split_by_hash(dataset: TableDataset, *shares: float) -> tuple[TableDataset, ...]:
    """Split rows by a hash of their content: a row keeps its part when rows are added, and equal rows stay together.

    Args:
        dataset: the rows.
        shares: the share of the rows for each part after the first, which gets the rest; together below 1.

    Returns:
        ``1 + len(shares)`` data sets. A part that would be empty gets a row of the largest one.

    Raises:
        InputError: shares that leave nothing, or fewer different rows than parts.
    """
    if not all(0 < share < 1 for share in shares) or sum(shares) >= 1:
        what = f"shares of the rows lie between 0 and 1 and leave a rest, but are {', '.join(map(str, shares))}."
        raise InputError(what)
    keys = dataset.keys()
    if len(np.unique(keys[:CHUNK])) <= len(shares) and (different := len(np.unique(keys))) <= len(shares):
        what = f"{different} different rows cannot be split in {1 + len(shares)}."
        raise InputError(what, path=dataset.path, hint="Pass data for the evaluation of their own.")
    numbers = np.zeros(len(keys), np.int8)  # of each row's part, of which the last one is the rest
    for edge in accumulate(shares):
        numbers += keys >= np.uint64(edge * 2.0**64)
    order = [len(shares), *range(len(shares))]
    for part in order:
        if not (numbers == part).any():
            largest = max(order, key=lambda other: len(np.unique(keys[numbers == other])))
            numbers[keys == keys[numbers == largest].min()] = part
    return tuple(dataset.select(np.flatnonzero(numbers == part)) for part in order)
