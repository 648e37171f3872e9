"""Where answers go: rows that hold what each of them belongs to, arrays with an index beside them, and rankings."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from transept.batch.encode import encode, error_of
from transept.batch.inputs import Item
from transept.batch.output_file import OutputFile
from transept.batch.tables import write_csv, write_lines, write_parquet
from transept.errors import FormatError, InputError, TranseptError
from transept.files import parse_json

Pairs = Sequence[tuple[Item, Any]]
ENDINGS = (".jsonl", ".ndjson", ".csv", ".parquet")


def row_of(item: Item, name: str, answer: Any) -> dict[str, Any]:
    """What an answer belongs to, and the answer by this name, or its error; a column of such a name is ``input_<name>``."""
    taken = {name, "error"}
    about = {f"input_{column}" if column in taken else column: value for column, value in item.about.items()}
    return about | (error_of(answer) if isinstance(answer, TranseptError) else {name: answer})


class Rows:
    """Answers as rows in a file: lines of JSON until all are there, then what the file's ending says.

    ``begin`` gives how many inputs are answered already, ``check`` raises an ``InputError`` unless these are they, and ``end``
    does what needs all answers. ``failed`` counts the errors.
    """

    def __init__(self, file: OutputFile, name: str = "answer") -> None:
        self.file, self.name = file, name

    @property
    def failed(self) -> int:
        return self.file.failed

    def begin(self) -> int:
        if not self.file.resume:
            return 0
        self.file.file.seek(0)
        return self.keep(sum(line.endswith(b"\n") for line in self.file.file))

    def keep(self, count: int) -> int:
        """Go on behind so many rows, which are to be checked."""
        self.file.file.seek(0)
        size = sum(len(self.file.file.readline()) for _ in range(count))
        self.file.keep(count, size)
        self.file.file.seek(0)
        return count

    def check(self, items: Sequence[Item]) -> None:
        for item in items:
            line = self.file.file.readline()
            known = _line(row_of(item, self.name, None))
            known, _, _ = known.rpartition(f', "{self.name}": null'.encode())
            rest = line.removeprefix(known)
            if rest == line or not rest.startswith((f', "{self.name}": '.encode(), b', "error": {', b"}")):
                what = f"another input was answered in the place of {item.where}."
                raise InputError(what, path=self.file.path, hint="Leave out --resume to begin anew.")
            self.file.failed += rest.startswith(b', "error": {')

    def write(self, pairs: Pairs) -> None:
        self.file.write(b"".join(map(self.line, pairs)), len(pairs))
        self.file.failed += sum(isinstance(answer, TranseptError) for _, answer in pairs)

    def line(self, pair: tuple[Item, Any]) -> bytes:
        item, answer = pair
        return _line(row_of(item, self.name, answer))

    def end(self) -> None:
        if not self.file.path.lower().endswith((".jsonl", ".ndjson")):
            self.arrange(self.rows)

    def arrange(self, rows: Callable[[], Iterable[Mapping[str, Any]]]) -> None:
        """Let rows take the place of the lines, as the file's ending says."""
        writers: dict[str, Callable[..., None]] = {".csv": write_csv, ".parquet": write_parquet}
        with self.file.rewritten() as file:
            writers.get(os.path.splitext(self.file.path)[1].lower(), write_lines)(rows, file)

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """All rows, in order."""
        self.file.file.seek(0)
        for line in self.file.file:
            yield parse_json(line.decode("utf-8"), path=self.file.partial)


def _line(row: Mapping[str, Any]) -> bytes:
    return f"{encode(row)}\n".encode("utf-8", "backslashreplace")


class Index(Rows):
    """What the rows of an array belong to: rows without their answers."""

    def line(self, pair: tuple[Item, Any]) -> bytes:
        row = row_of(pair[0], self.name, pair[1])
        row.pop(self.name, None)
        return _line(row)


class Ranking(Rows):
    """Passages by their scores, the best first; those that failed are left out."""

    def __init__(self, file: OutputFile, top_k: int | None) -> None:
        super().__init__(file, "score")
        self.top_k = top_k

    def end(self) -> None:
        places, at = list[tuple[float, int, int]](), 0
        self.file.file.seek(0)
        for index, line in enumerate(self.file.file):
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
    return {"rank": rank, "score": row["score"], "index": index, **{name: row[name] for name in row if name != "number"}}


class Vectors:
    """Float32 vectors (N, ``size``), with NaN in the rows of inputs that failed: a ``.npy`` file that grows, and an index.

    With the ending ``.parquet`` they become one table at the end.
    """

    def __init__(self, file: OutputFile, index: OutputFile, size: int) -> None:
        self.file, self.index, self.size = file, Index(index, "embedding"), size

    @property
    def failed(self) -> int:
        return self.index.failed

    def begin(self) -> int:
        import numpy as np

        if not self.file.resume:
            self.file.write(self._header())
            return 0
        old: Any = None
        with suppress(OSError, ValueError, EOFError):
            old = np.load(self.file.partial, mmap_mode="r", allow_pickle=False)
        if old is None or old.dtype != np.dtype("<f4") or old.ndim != 2 or old.shape[1] != self.size:
            wrong = f"holds no float32 vectors of {self.size} numbers, as this model makes them."
            raise FormatError(wrong, path=self.file.partial, hint="Use the model that it was begun with.")
        count = min(len(old), self.index.begin())
        self.file.keep(count, old.offset + count * self.size * 4)
        return self.index.keep(count)

    def check(self, items: Sequence[Item]) -> None:
        self.index.check(items)

    def _header(self) -> bytes:
        """Of one length, since numpy leaves room in it for the first axis to grow."""
        import numpy as np

        header, shape = io.BytesIO(), (self.file.rows, self.size)
        np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
        return header.getvalue()

    def write(self, pairs: Pairs) -> None:
        import numpy as np

        rows = np.full((len(pairs), self.size), np.nan, "<f4")
        for row, (_, found) in zip(rows, pairs, strict=True):
            if not isinstance(found, TranseptError):
                row[:] = found
        self.index.write(pairs)
        self.file.write(rows.tobytes(), len(rows))
        self.file.rewrite(self._header())  # so that an interrupted file is whole too

    def end(self) -> None:
        import numpy as np

        self.file.failed = self.failed
        if self.file.path.lower().endswith(".parquet"):
            with self.file.rewritten() as file:
                vectors = np.load(self.file.partial, mmap_mode="r", allow_pickle=False)
                write_parquet(self.index.rows, file, vectors)
            self.index.file.kept = False
