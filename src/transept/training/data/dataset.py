"""Rows with named columns: one class for all that is read, whatever it came from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Self, overload

from transept.errors import InputError, InputTypeError, nearest

Row = dict[str, Any]
MOST_ROWS = 50_000_000


class TableDataset(Sequence[Row]):
    """Rows by integer index, each a mapping of columns to values, as ``torch.utils.data.DataLoader`` reads them.

    Args:
        rows: the rows, or an object that gives them by integer index.
        column_names: the columns; those of the rows, in the order in which they come first, when absent.
        path: the file or folder that they were read from, for messages.
        lines: the line of the file on which each row begins, for messages.
        class_names: names of the classes that integers of a column stand for, by column.
        notes: sentences about how the rows were read that a person should see.
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
    ) -> None:
        self.rows, self.path, self.lines, self.notes = rows, path, lines, list(notes)
        found = {name: None for row in rows for name in row} if column_names is None else dict.fromkeys(column_names)
        self.column_names = list(found)
        self.class_names = {name: list(names) for name, names in (class_names or {}).items()}

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> TableDataset: ...
    def __getitem__(self, index: int | slice) -> Row | TableDataset:
        if isinstance(index, slice):
            return self.select(range(*index.indices(len(self))))
        row = self.rows[index]
        return {name: row.get(name) for name in self.column_names}

    def column(self, name: str) -> list[Any]:
        """All values of a column (``InputError``: there is no such column); ``None`` in rows that lack it."""
        if name not in self.column_names:
            raise InputError(f"there is no column {name!r}.", path=self.path, hint=nearest(name, self.column_names))
        return [self.rows[index].get(name) for index in range(len(self))]

    def select(self, indices: Iterable[int]) -> Self:
        """The rows of these indices, in their order."""
        chosen = list(indices)
        lines = None if self.lines is None else [self.lines[index] for index in chosen]
        about: dict[str, Any] = {"path": self.path, "lines": lines, "class_names": self.class_names, "notes": self.notes}
        return type(self)([self.rows[index] for index in chosen], self.column_names, **about)

    def place(self, index: int) -> str:
        """Where a row stands, as ``file:line`` or ``file, row 3``; rows are counted from 1."""
        if self.lines is not None:
            return f"{self.path}:{self.lines[index]}"
        return f"{self.path or 'data'}, row {index + 1}"

    def key(self, index: int) -> bytes:
        """A hash of a row's content (8 bytes), which does not depend on where the data lie."""
        before = f"{self.path}/" if self.path is not None else None

        def held(value: Any) -> Any:
            if isinstance(value, str) and before is not None:
                return value.removeprefix(before)
            return value

        content = {name: held(value) for name, value in self[index].items()}
        text = json.dumps(content, sort_keys=True, ensure_ascii=False, default=_digest)
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()

    def __repr__(self) -> str:
        return f"TableDataset({len(self)} rows, columns {', '.join(self.column_names)})"


def _digest(value: Any) -> str:
    """What stands for a value that JSON does not have: bytes and arrays by their content."""
    content = value if isinstance(value, bytes) else value.tobytes() if hasattr(value, "tobytes") else repr(value).encode()
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def as_dataset(source: Any) -> TableDataset:
    """Rows of any object that offers them.

    Args:
        source: a :class:`TableDataset`; an object with ``column_names`` and integer indexing, as the ``datasets`` library has
            them; a mapping of columns to equally long lists; a sequence or any other iterable of mappings.

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
        raise InputError(f"this is a collection of splits ({names}), not one data set.", hint="Pass one: data['train'].")
    lengths = {str(name): len(values) if isinstance(values, Sequence) else -1 for name, values in source.items()}
    if len(set(lengths.values())) != 1 or -1 in lengths.values():
        told = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise InputError(f"the columns are not lists of one length: {told}.")
    return TableDataset([dict(zip(lengths, values)) for values in zip(*source.values())], list(lengths))


def _class_names(source: Any) -> dict[str, list[str]]:
    """The names of classes that a data set's description of its columns tells."""
    features = getattr(source, "features", None)
    described = features.items() if isinstance(features, Mapping) else ()
    pairs = ((name, getattr(getattr(kind, "feature", kind), "names", None)) for name, kind in described)
    return {name: list(names) for name, names in pairs if isinstance(names, list)}


def split_by_hash(dataset: TableDataset, *shares: float) -> tuple[TableDataset, ...]:
    """Split rows by a hash of their content, so that each stays in its part when rows are added, and equal rows stay together.

    Args:
        dataset: the rows.
        shares: the share of the rows for each part after the first, which gets the rest; together below 1.

    Returns:
        ``1 + len(shares)`` data sets. A part that would be empty gets a row of the largest one.

    Raises:
        InputError: shares that leave nothing, or fewer different rows than parts.
    """
    if not all(0 < share < 1 for share in shares) or sum(shares) >= 1:
        raise InputError(f"shares of the rows lie between 0 and 1 and leave a rest, but are {', '.join(map(str, shares))}.")
    places = [int.from_bytes(dataset.key(index)) / 2**64 for index in range(len(dataset))]
    if len(set(places)) <= len(shares):
        hint = "Pass data for the evaluation of their own."
        what = f"{len(set(places))} different rows cannot be split in {1 + len(shares)}."
        raise InputError(what, path=dataset.path, hint=hint)
    edges = [sum(shares[:n]) for n in range(len(shares) + 1)] + [1.0]
    *parts, rest = ([i for i, at in enumerate(places) if low <= at < high] for low, high in pairwise(edges))
    parts = [rest, *parts]
    for part in parts:
        if not part:
            largest = max(parts, key=lambda each: len({places[i] for i in each}))
            taken = min(places[i] for i in largest)
            part += [i for i in largest if places[i] == taken]
            largest[:] = [i for i in largest if places[i] != taken]
    return tuple(dataset.select(part) for part in parts)
