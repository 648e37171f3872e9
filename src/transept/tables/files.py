"""Rows from files: JSON, JSON lines, CSV, TSV, Parquet, texts, CoNLL, and folders of pictures or sounds.

The size, the encoding and each line of a file are checked as it is read. An error names the file and the line.
"""

from __future__ import annotations

import codecs
import hashlib
import math
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from transept.errors import FileError, FormatError, InputError, nearest
from transept.storage.files import PathName, load_json, open_regular, parse_json
from transept.tables.arrow import RowWriter
from transept.tables.dataset import Row, TableDataset, rows_of_document
from transept.tables.parquet import parquet_batches
from transept.tables.text import ENDINGS, IMAGES, JSON, MEDIA, PARQUET, SEPARATED, even_records, read_lines, undecodable, unique

MAX_BYTES = 4 * 2**30
PART = 2**16  # characters of a part of a text, or some more
Lines = Iterable[tuple[int, str]]
Rows = Iterator[tuple[int, Row]]
_TEXT, _DOCUMENT, _CONLL = "txt", "json", "conll"
_ENDINGS = ENDINGS | {".txt": _TEXT, ".text": _TEXT, ".json": _DOCUMENT}
_ENDINGS |= dict.fromkeys((".conll", ".bio", ".iob", ".iob2"), _CONLL)
_FORMATS = sorted({*_ENDINGS.values()})
# Byte order marks, longest first: UTF-32's begins with UTF-16's.
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_SPLITS = {"train", "training", "test", "validation", "valid", "val", "dev"}
MOST_HEADER_WORDS = 4
MOST_DIGITS = 64
# What a column of a table in text holds is the highest of its cells: nothing, whole numbers, numbers, texts.
_EMPTY, _WHOLE, _NUMBER, _WORDS = range(4)
_CONVERSIONS: dict[int, Callable[[str], Any]] = {_WHOLE: int, _NUMBER: float}


def load_dataset_file(
    path: PathName,
    *,
    format: str | None = None,
    encoding: str | None = None,
    sample_by: str = "line",
    header: bool | None = None,
    max_bytes: int = MAX_BYTES,
) -> TableDataset:
    """Read the rows of a file, or of a folder of pictures or sounds with a folder for each class.

    ======== =======================================================================================================
    format   rows and columns
    ======== =======================================================================================================
    jsonl    a JSON object a line
    json     a list of objects, alone or below ``data``; an object of columns; SQuAD's and COCO's layouts
    csv      columns by the first line, where that looks like names, else ``column1``, ...; parted by ``,`` or ``;``
    tsv      the same, between tabs, and quotes are ordinary characters
    parquet  its columns; needs the package pyarrow
    txt      one column, ``text``; see ``sample_by``
    conll    ``tokens`` and ``tags``: a token a line with its tag in the last column, sentences parted by empty lines
    folder   ``image`` or ``audio``, paths of files, and ``label``, the name of the folder that they lie in
    ======== =======================================================================================================

    Args:
        path: a file or a folder.
        format: one of these; told by the file's ending when absent.
        encoding: of a text; when absent UTF-8, or by the file's byte order mark.
        sample_by: what is a row of a text: a ``line``, a ``paragraph`` (parted by empty lines), the ``document``, or
            a ``part`` of it, some lines of about 65,000 characters, which laid end to end are the document.
        header: whether the first line of a table holds the columns' names; told by what it holds when absent.
        max_bytes: the size of the largest file that is read.

    Raises:
        FileError: there is no such file, or it cannot be read.
        FormatError: what it holds is not of its format, with the line; it is empty or too large.
        InputError: a format, an encoding or another argument that is not known.
        MissingExtraError: Parquet without pyarrow.
    """
    name = os.fspath(path)
    if not os.path.exists(name):
        raise FileError("there is no such file.", path=name or "''")
    if sample_by not in _TEXTS:
        raise InputError(f"`sample_by` is {sample_by!r}.", hint=f"Known: {', '.join(_TEXTS)}.")
    if os.path.isdir(name):
        dataset = _read_folder(name)
    else:
        kind = _format_of(name) if format is None else format
        if kind not in _FORMATS:
            raise InputError(f"there is no format {kind!r}.", path=name, hint=nearest(kind, _FORMATS))
        dataset = _read_file(name, kind, _codec_of(name, encoding, max_bytes), sample_by, header)
    if not len(dataset):
        raise FormatError("holds no rows.", path=name)
    return dataset


def digest_of(path: PathName) -> str:
    """The SHA-256 of a file; of a folder, that of its files' names and sizes."""
    if os.path.isdir(path):
        entries = sorted((file, os.path.getsize(Path(path, file))) for file in _media(os.fspath(path)))
        return hashlib.sha256(repr(entries).encode()).hexdigest()
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def _format_of(name: str) -> str:
    ending = os.path.splitext(name)[1].lower()
    if ending not in _ENDINGS:
        hint = f"Pass format=, one of: {', '.join(_FORMATS)}."
        raise FormatError(f"the ending {ending!r} tells no format of data.", path=name, hint=hint)
    return _ENDINGS[ending]


def _codec_of(name: str, encoding: str | None, max_bytes: int) -> str:
    """The encoding that was given, or that of the byte order mark of a file, which must not be too large."""
    with open_regular(name) as file:
        size, head = os.fstat(file.fileno()).st_size, file.read(4)
    if size > max_bytes:
        hint = "Pass max_bytes= to read more, or rows of your own that are read by index."
        raise FormatError(f"has {size} bytes, more than the {max_bytes} allowed.", path=name, hint=hint)
    if encoding is None:
        return next((codec for mark, codec in _MARKS.items() if head.startswith(mark)), "utf-8")
    try:
        b"".decode(encoding)  # some codecs are not for texts
        return codecs.lookup(encoding).name
    except (LookupError, UnicodeError):
        hint = "Such as utf-8, utf-16, latin-1, cp1252."
        raise InputError(f"there is no encoding {encoding!r}.", hint=hint) from None


def _read_file(name: str, kind: str, codec: str, sample_by: str, header: bool | None) -> TableDataset:
    lines = _lines(name, codec)
    if kind == PARQUET:
        return _read_parquet(name)
    if kind in SEPARATED:
        return _read_table(name, kind, codec, header)
    if kind == _TEXT:
        return _collected(name, _TEXTS[sample_by](lines), ["text"], is_one_text=sample_by == "part")
    if kind == _CONLL:
        return _collected(name, _sentences(lines, name), ["tokens", "tags"])
    if kind == JSON or _is_json_lines(_lines(name, codec)):
        return _collected(name, _objects(lines, name))
    if codec not in ("utf-8", "utf-8-sig"):
        raise FormatError(f"JSON is read as UTF-8, not as {codec}.", path=name)
    return TableDataset(rows_of_document(load_json(name, max_bytes=MAX_BYTES), name), path=name)


def _collected(name: str, rows: Rows, columns: Sequence[str] | None = None, **about: Any) -> TableDataset:
    """Rows with the lines on which they begin as a data set: in memory, or in a mapped file where they are many."""
    writer, lines = RowWriter(), array("I")
    for line, row in rows:
        lines.append(line)
        writer.add(row)
    columns = [*writer.columns] if columns is None else columns
    return TableDataset(writer.finish(), columns, path=name, lines=lines, **about)


def _groups(name: str, codec: str) -> Iterator[list[str]]:
    """The lines of a text in groups (``FormatError``: one is no text in that encoding)."""
    number = 0
    with open_regular(name) as file:
        try:
            for group in read_lines(file, name, codec):
                for place, line in enumerate(group, number + 1):
                    if (byte := undecodable(line)) is not None:
                        raise _no_text(f"{name}:{place}", codec, f" (byte {byte} of it)" if codec == "utf-8" else "")
                number += len(group)
                yield group
        except UnicodeError as error:  # of encodings that cannot go on after it
            raise _no_text(f"{name}:{number + 1}", codec) from error


def _no_text(path: str, codec: str, where: str = "") -> FormatError:
    hint = "Save it as UTF-8, or pass encoding=, such as latin-1."
    return FormatError(f"the line is not text in {codec}{where}.", path=path, hint=hint)


def _lines(name: str, codec: str) -> Lines:
    """The lines of a text with their numbers."""
    return enumerate((line for group in _groups(name, codec) for line in group), 1)


def _each_line(lines: Lines) -> Rows:
    return ((number, {"text": text.rstrip("\r\n")}) for number, text in lines if text.strip())


def _paragraphs(lines: Lines) -> Rows:
    for block in _blocks(lines):
        yield block[0][0], {"text": "\n".join(text.rstrip("\r\n") for _, text in block)}


def _blocks(lines: Lines, marks: tuple[str, ...] = ()) -> Iterator[list[tuple[int, str]]]:
    """Lines that follow one another, between lines that are empty or begin with a mark."""
    for is_inside, block in groupby(lines, lambda line: bool(line[1].strip()) and not line[1].startswith(marks)):
        if is_inside:
            yield [*block]


def _document(lines: Lines) -> Rows:
    text = "".join(text for _, text in lines)
    return iter([(1, {"text": text})] if text.strip() else [])


def _parts(lines: Lines) -> Rows:
    part: list[str] = []
    start = size = 0
    for number, text in lines:
        start = start if part else number
        part.append(text)
        size += len(text)
        if size >= PART:
            yield start, {"text": "".join(part)}
            part, size = [], 0
    if part:
        yield start, {"text": "".join(part)}


_TEXTS: dict[str, Callable[[Lines], Rows]] = {
    "line": _each_line,
    "paragraph": _paragraphs,
    "document": _document,
    "part": _parts,
}


def _objects(lines: Lines, name: str) -> Rows:
    for number, text in lines:
        if text.strip():
            row = parse_json(text, path=f"{name}:{number}")
            if not isinstance(row, dict):
                what = f"the line holds {type(row).__name__}, not a JSON object of columns."
                raise FormatError(what, path=f"{name}:{number}")
            yield number, row


def _is_json_lines(lines: Lines) -> bool:
    """Whether a file named after JSON holds an object a line, as many do."""
    some = filter(None, (text.strip() for _, text in lines))
    first = next(some, "")
    return first.startswith("{") and first.endswith("}") and any(text.startswith("{") for text in some)


def _sentences(lines: Lines, name: str) -> Rows:
    width = 0
    for block in _blocks(lines, ("-DOCSTART-",)):
        words = [text.rstrip("\r\n").split("\t") if "\t" in text else text.split() for _, text in block]
        for (number, _), cells in zip(block, words):
            width = width or len(cells)
            if len(cells) != width or width < 2:
                rule = f"stand in {width} here" if width > 1 else "are two"
                what = f"the line has {len(cells)} columns, but a token and its tag {rule}."
                raise FormatError(what, path=f"{name}:{number}")
        yield block[0][0], {"tokens": [cells[0] for cells in words], "tags": [cells[-1].strip() for cells in words]}


def _read_table(name: str, kind: str, codec: str, header: bool | None) -> TableDataset:
    """The rows of separated values; the file is read twice, first for what the columns hold."""
    records = even_records(_groups(name, codec), name, kind)
    _, first = next(records, (1, list[str]()))
    kinds, may_be_names = [_EMPTY] * len(first), _may_be_names(first)
    for _, cells in records:
        for column, cell in enumerate(cells):
            may_be_names = may_be_names and cell != first[column]
            kinds[column] = max(kinds[column], _kind(cell)) if kinds[column] < _WORDS else _WORDS
    notes, records = list[str](), even_records(_groups(name, codec), name, kind)
    if may_be_names if header is None else header:
        names = unique(first, f"{name}:1")
        next(records, None)
    else:
        names = [f"column{number}" for number in range(1, len(first) + 1)]
        kinds = [max(kind, _kind(cell)) for kind, cell in zip(kinds, first)]
        notes = [f"{name}: the first line holds no names, so that the columns are called {', '.join(names)}."]
    types = [_CONVERSIONS.get(kind, str) for kind in kinds]
    return _collected(name, ((line, _typed(names, types, cells)) for line, cells in records), names, notes=notes)


def _typed(names: list[str], types: list[Callable[[str], Any]], cells: list[str]) -> Row:
    columns = zip(names, types, cells)
    return {name: kind(cell) if kind is str or cell.strip() else None for name, kind, cell in columns}


def _may_be_names(cells: list[str]) -> bool:
    """Whether that may be names of columns: short, different, and no numbers; as values they do not come again."""
    named = all(cell.strip() and not _is_number(cell) and len(cell.split()) <= MOST_HEADER_WORDS for cell in cells)
    return named and len(set(cells)) == len(cells)


def _is_number(text: str) -> bool:
    """Whether that is a number, and not a code such as 007."""
    try:
        if len(text) > MOST_DIGITS or not math.isfinite(float(text)):
            return False
    except ValueError:
        return False
    digits = text.strip().lstrip("+-")
    return "_" not in text and digits[:1].isdecimal() and not (digits[:1] == "0" and digits[1:2].isdecimal())


def _kind(cell: str) -> int:
    if not cell.strip():
        return _EMPTY
    if not _is_number(cell):
        return _WORDS
    return _WHOLE if cell.strip().lstrip("+-").isdecimal() else _NUMBER


def _read_parquet(name: str) -> TableDataset:
    writer = RowWriter()
    for batch in parquet_batches(name, bounded=True):
        try:
            batch.to_pylist()  # values that Python does not have, such as some times, are found before a run
        except (ValueError, OverflowError) as error:
            raise FormatError(f"holds a value that cannot be read ({str(error)[:200]}).", path=name) from error
        writer.add_batch(batch)
    return TableDataset(writer.finish(), list(writer.columns), path=name)


def _media(folder: str) -> Iterator[str]:
    """The pictures and sounds below a folder, as paths below it; links to folders are not followed."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if name.lower().endswith(MEDIA) and not name.startswith("."):
                yield os.path.relpath(Path(place, name), folder)


def _read_folder(folder: str) -> TableDataset:
    files = list(_media(folder))
    kinds = {"image" if name.lower().endswith(IMAGES) else "audio" for name in files}
    if len(kinds) != 1:
        what = "holds pictures and sounds." if kinds else "holds no pictures and no sounds."
        hint = "Pass a folder of one of them, with a folder for each class, or a file."
        raise FormatError(what, path=folder, hint=hint)
    flat = next((name for name in files if os.sep not in name), None)
    if flat is not None:
        hint = "Give each class a folder, or pass a manifest: a .csv or .jsonl file of paths and labels."
        raise FormatError(f"{flat!r} lies in no folder of a class.", path=folder, hint=hint)
    labels = [name.split(os.sep)[0] for name in files]
    if set(labels) <= _SPLITS and any(name.count(os.sep) > 1 for name in files):
        splits = sorted(set(labels))
        hint = f"Pass one of them, such as {str(Path(folder, splits[-1]))!r}."
        raise FormatError(f"holds splits ({', '.join(splits)}), not classes.", path=folder, hint=hint)
    kind = kinds.pop()
    rows = [{kind: str(Path(folder, name)), "label": label} for name, label in zip(files, labels)]
    return TableDataset(rows, [kind, "label"], path=folder)
