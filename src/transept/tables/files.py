"""Rows from files: JSON, JSON lines, CSV, TSV, Parquet, texts, CoNLL, and folders of pictures or sounds.

What a file holds is checked as it is read: its size, its encoding, and each line. An error names the file and the line.
"""

from __future__ import annotations

import codecs
import hashlib
import os
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

from transept.errors import FileError, FormatError, InputError, nearest
from transept.files import PathName, load_json, open_regular, parse_json
from transept.tables.arrow import RowWriter
from transept.tables.dataset import Row, TableDataset, collected
from transept.tables.delimited import read_delimited
from transept.tables.documents import rows_of_document
from transept.tables.parquet import parquet_batches
from transept.tables.text import IMAGES, SOUNDS, read_lines, undecodable

MAX_BYTES = 4 * 2**30
PART = 2**16  # characters of a part of a text, or some more
Lines = Iterator[tuple[int, str]]
_FORMATS = {
    "jsonl": (".jsonl", ".ndjson"),
    "json": (".json",),
    "csv": (".csv",),
    "tsv": (".tsv", ".tab"),
    "txt": (".txt", ".text"),
    "parquet": (".parquet",),
    "conll": (".conll", ".bio", ".iob", ".iob2"),
}
# Byte order marks, longest first: UTF-32's begins with UTF-16's.
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


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

    ======== ============================================================================================================
    format   rows and columns
    ======== ============================================================================================================
    jsonl    a JSON object a line
    json     a list of objects; an object with such a list below ``data``; an object of columns; SQuAD's and COCO's layouts
    csv      columns by the first line, where that looks like names, else ``column1``, ...; ``;`` separates where no comma does
    tsv      the same, between tabs, and quotes are ordinary characters
    parquet  its columns; needs the package pyarrow
    txt      one column, ``text``; see ``sample_by``
    conll    ``tokens`` and ``tags``: a token a line with its tag in the last column, sentences parted by empty lines
    folder   ``image`` or ``audio``, paths of files, and ``label``, the name of the folder that they lie in
    ======== ============================================================================================================

    Args:
        path: a file or a folder.
        format: one of these; told by the file's ending when absent.
        encoding: of a text; when absent UTF-8, or by the file's byte order mark.
        sample_by: what is a row of a text: a ``line``, a ``paragraph`` (parted by empty lines), the whole ``document``, or a
            ``part`` of it, some lines of about 65,000 characters, which laid end to end are the document.
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
    kind = next((kind for kind, endings in _FORMATS.items() if ending in endings), None)
    if kind is None:
        hint = f"Pass format=, one of: {', '.join(_FORMATS)}."
        raise FormatError(f"the ending {ending!r} tells no format of data.", path=name, hint=hint)
    return kind


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
        raise InputError(f"there is no encoding {encoding!r}.", hint="Such as utf-8, utf-16, latin-1, cp1252.") from None


def _read_file(name: str, kind: str, codec: str, sample_by: str, header: bool | None) -> TableDataset:
    lines = _lines(name, codec)
    if kind == "parquet":
        return _read_parquet(name)
    if kind in ("csv", "tsv"):
        return read_delimited(lambda: _groups(name, codec), name, kind, header)
    if kind == "txt":
        return collected(name, _TEXTS[sample_by](lines), ["text"], is_one_text=sample_by == "part")
    if kind == "conll":
        return collected(name, _sentences(lines, name), ["tokens", "tags"])
    if kind == "jsonl" or _is_json_lines(_lines(name, codec)):
        return collected(name, _objects(lines, name))
    if codec not in ("utf-8", "utf-8-sig"):
        raise FormatError(f"JSON is read as UTF-8, not as {codec}.", path=name)
    return TableDataset(rows_of_document(load_json(name, max_bytes=MAX_BYTES), name), path=name)


def _groups(name: str, codec: str) -> Iterator[list[str]]:
    """The lines of a text in groups (``FormatError``: one is no text in that encoding)."""
    number = 0
    with open_regular(name) as file:
        try:
            for group in read_lines(file, name, codec):
                for place, line in enumerate(group, number + 1):
                    if (at := undecodable(line)) is not None:
                        raise _no_text(f"{name}:{place}", codec, at)
                number += len(group)
                yield group
        except UnicodeError as error:  # of encodings that cannot go on after it
            raise _no_text(f"{name}:{number + 1}", codec) from error


def _no_text(path: str, codec: str, at: int | None = None) -> FormatError:
    where = f" (byte {at} of it)" if at is not None and codec == "utf-8" else ""
    hint = "Save it as UTF-8, or pass encoding=, such as latin-1."
    return FormatError(f"the line is not text in {codec}{where}.", path=path, hint=hint)


def _lines(name: str, codec: str) -> Lines:
    """The lines of a text with their numbers."""
    return enumerate((line for group in _groups(name, codec) for line in group), 1)


# --- texts ------------------------------------------------------------------------------------------------------------------


def _each_line(lines: Lines) -> Iterator[tuple[int, Row]]:
    return ((number, {"text": text.rstrip("\r\n")}) for number, text in lines if text.strip())


def _paragraphs(lines: Lines) -> Iterator[tuple[int, Row]]:
    for has_text, group in groupby(lines, key=lambda line: bool(line[1].strip())):
        if has_text:
            paragraph = [*group]
            yield paragraph[0][0], {"text": "\n".join(text.rstrip("\r\n") for _, text in paragraph)}


def _document(lines: Lines) -> Iterator[tuple[int, Row]]:
    text = "".join(text for _, text in lines)
    return iter([(1, {"text": text})] if text.strip() else [])


def _parts(lines: Lines) -> Iterator[tuple[int, Row]]:
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


_TEXTS: dict[str, Callable[[Lines], Iterator[tuple[int, Row]]]] = {
    "line": _each_line,
    "paragraph": _paragraphs,
    "document": _document,
    "part": _parts,
}


def _objects(lines: Lines, name: str) -> Iterator[tuple[int, Row]]:
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


def _sentences(lines: Lines, name: str) -> Iterator[tuple[int, Row]]:
    width, start, tokens, tags = 0, 0, list[str](), list[str]()
    for number, text in lines:
        if not text.strip() or text.startswith("-DOCSTART-"):
            if tokens:
                yield start, {"tokens": tokens, "tags": tags}
            tokens, tags = [], []
            continue
        cells = text.rstrip("\r\n").split("\t") if "\t" in text else text.split()
        width = width or len(cells)
        if len(cells) != width or width < 2:
            what = f"the line has {len(cells)} columns, but a token and its tag"
            what += f" stand in {width} here." if width > 1 else " are two."
            raise FormatError(what, path=f"{name}:{number}")
        start = start if tokens else number
        tokens.append(cells[0])
        tags.append(cells[-1].strip())
    if tokens:
        yield start, {"tokens": tokens, "tags": tags}


# --- Parquet and folders ----------------------------------------------------------------------------------------------------


def _read_parquet(name: str) -> TableDataset:
    writer = RowWriter()
    for batch in parquet_batches(name, bounded=True):
        try:
            batch.to_pylist()  # what Python does not have, such as some times, is found here and not in the course of a run
        except (ValueError, OverflowError) as error:
            raise FormatError(f"holds a value that cannot be read ({str(error)[:200]}).", path=name) from error
        writer.add_batch(batch)
    return TableDataset(writer.finish(), list(writer.columns), path=name)


def _media(folder: str) -> Iterator[str]:
    """The pictures and sounds below a folder, as paths below it; links to folders are not followed."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if name.lower().endswith(IMAGES + SOUNDS) and not name.startswith("."):
                yield os.path.relpath(Path(place, name), folder)


def _read_folder(folder: str) -> TableDataset:
    files = list(_media(folder))
    kinds = {"image" if name.lower().endswith(IMAGES) else "audio" for name in files}
    if len(kinds) != 1:
        what = "holds pictures and sounds." if kinds else "holds no pictures and no sounds."
        raise FormatError(what, path=folder, hint="Pass a folder of one of them, with a folder for each class, or a file.")
    flat = next((name for name in files if os.sep not in name), None)
    if flat is not None:
        hint = "Give each class a folder, or pass a manifest: a .csv or .jsonl file of paths and labels."
        raise FormatError(f"{flat!r} lies in no folder of a class.", path=folder, hint=hint)
    labels = [name.split(os.sep)[0] for name in files]
    splits = {"train", "training", "test", "validation", "valid", "val", "dev"} & set(labels)
    if len(splits) == len(set(labels)) and any(name.count(os.sep) > 1 for name in files):
        hint = f"Pass one of them, such as {str(Path(folder, sorted(splits)[-1]))!r}."
        raise FormatError(f"holds splits ({', '.join(sorted(splits))}), not classes.", path=folder, hint=hint)
    kind = kinds.pop()
    rows = [{kind: str(Path(folder, name)), "label": label} for name, label in zip(files, labels)]
    return TableDataset(rows, [kind, "label"], path=folder)
