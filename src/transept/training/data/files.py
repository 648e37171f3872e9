"""Rows from files: JSON, JSON lines, CSV, TSV, Parquet, texts, CoNLL, and folders of pictures or sounds.

What a file holds is checked as it is read: its size, its encoding, and each line. An error names the file and the line.
"""

from __future__ import annotations

import csv
import hashlib
import os
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from transept.errors import FileError, FormatError, InputError, nearest
from transept.files import PathName, load_json, open_regular, parse_json
from transept.training.data.annotations import flattened
from transept.training.data.arrow import RowWriter
from transept.training.data.delimited import read_delimited
from transept.training.data.lines import codec_of, lines_of
from transept.training.data.parquet import parquet_batches
from transept.training.data.table import Row, TableDataset, collected

MAX_BYTES = 4 * 2**30
IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff")
SOUNDS = (".wav", ".flac", ".mp3", ".ogg")
_SAMPLED = ("line", "paragraph", "document", "part")
PART = 2**16  # characters of a part of a text, or some more
_FORMATS = {
    "jsonl": (".jsonl", ".ndjson"),
    "json": (".json",),
    "csv": (".csv",),
    "tsv": (".tsv", ".tab"),
    "txt": (".txt", ".text"),
    "parquet": (".parquet",),
    "conll": (".conll", ".bio", ".iob", ".iob2"),
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
    if sample_by not in _SAMPLED:
        raise InputError(f"`sample_by` is {sample_by!r}.", hint=f"Known: {', '.join(_SAMPLED)}.")
    if os.path.isdir(name):
        dataset = _read_folder(name)
    else:
        kind = _format_of(name) if format is None else format
        if kind not in _READERS:
            raise InputError(f"there is no format {kind!r}.", path=name, hint=nearest(kind, _READERS))
        _check_size(name, max_bytes)
        dataset = _READERS[kind](name, codec_of(name, encoding), sample_by, header)
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


def _check_size(name: str, max_bytes: int) -> None:
    with open_regular(name) as file:
        size = os.fstat(file.fileno()).st_size
    if size > max_bytes:
        hint = "Pass max_bytes= to read more, or rows of your own that are read by index."
        raise FormatError(f"has {size} bytes, more than the {max_bytes} allowed.", path=name, hint=hint)


def _read_jsonl(name: str, codec: str, sample_by: str, header: bool | None) -> TableDataset:
    return collected(name, _objects(name, codec))


def _objects(name: str, codec: str) -> Iterator[tuple[int, Row]]:
    for number, text in lines_of(name, codec):
        if text.strip():
            row = parse_json(text, path=f"{name}:{number}")
            if not isinstance(row, dict):
                what = f"the line holds {type(row).__name__}, not a JSON object of columns."
                raise FormatError(what, path=f"{name}:{number}")
            yield number, row


def _read_json(name: str, codec: str, sample_by: str, header: bool | None) -> TableDataset:
    if _is_lines(name, codec):
        return _read_jsonl(name, codec, sample_by, header)
    if codec not in ("utf-8", "utf-8-sig"):
        raise FormatError(f"JSON is read as UTF-8, not as {codec}.", path=name)
    document = load_json(name, max_bytes=MAX_BYTES)
    rows = flattened(document, name)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        hint = "It may hold a list of objects, an object of columns, or an object a line."
        raise FormatError("holds no rows: its JSON is not a list of objects.", path=name, hint=hint)
    return TableDataset(rows, path=name)


def _is_lines(name: str, codec: str) -> bool:
    """Whether a file named after JSON holds an object a line, as many do."""
    some = (text.strip() for _, text in lines_of(name, codec))
    first = next((text for text in some if text), "")
    return first.startswith("{") and first.endswith("}") and any(text.startswith("{") for text in some if text)


def _read_csv(name: str, codec: str, sample_by: str, header: bool | None) -> TableDataset:
    first = next((text for _, text in lines_of(name, codec)), "")
    separator = ";" if "," not in first and ";" in first else ","
    return _read_table(name, codec, header, delimiter=separator, strict=True)


def _read_tsv(name: str, codec: str, sample_by: str, header: bool | None) -> TableDataset:
    return _read_table(name, codec, header, delimiter="\t", quoting=csv.QUOTE_NONE)


def _read_table(name: str, codec: str, header: bool | None, **dialect: Any) -> TableDataset:
    names, has_names, rows = read_delimited(name, codec, header, **dialect)
    dataset = collected(name, rows, names)
    if not has_names:
        dataset.notes = [f"{name}: the first line holds no names, so that the columns are called {', '.join(names)}."]
    return dataset


def _read_text(name: str, codec: str, sample_by: str, header: bool | None) -> TableDataset:
    return collected(name, _TEXTS[sample_by](lines_of(name, codec)), ["text"], is_one_text=sample_by == "part")


def _each_line(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, Row]]:
    return ((number, {"text": text.rstrip("\r\n")}) for number, text in lines if text.strip())


def _paragraphs(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, Row]]:
    for has_text, group in groupby(lines, key=lambda line: bool(line[1].strip())):
        if has_text:
            paragraph = [*group]
            yield paragraph[0][0], {"text": "\n".join(text.rstrip("\r\n") for _, text in paragraph)}


def _document(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, Row]]:
    text = "".join(text for _, text in lines)
    return iter([(1, {"text": text})] if text.strip() else [])


def _parts(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, Row]]:
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


_TEXTS = {"line": _each_line, "paragraph": _paragraphs, "document": _document, "part": _parts}


def _read_conll(name: str, codec: str, sample_by: str, header: bool | None) -> TableDataset:
    return collected(name, _sentences(name, codec), ["tokens", "tags"])


def _sentences(name: str, codec: str) -> Iterator[tuple[int, Row]]:
    width, start, tokens, tags = 0, 0, list[str](), list[str]()
    for number, text in lines_of(name, codec):
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


def _read_parquet(name: str, codec: str, sample_by: str, header: bool | None) -> TableDataset:
    writer, names = RowWriter(), list[str]()
    for batch in parquet_batches(name):
        names = batch.schema.names
        try:
            batch.to_pylist()  # what Python does not have, such as some times, is found here and not in the course of a run
        except (ValueError, OverflowError) as error:
            raise FormatError(f"holds a value that cannot be read ({str(error)[:200]}).", path=name) from error
        writer.add_batch(batch)
    return TableDataset(writer.finish(), names, path=name)


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


_READERS: dict[str, Callable[[str, str, str, bool | None], TableDataset]] = {
    "jsonl": _read_jsonl,
    "json": _read_json,
    "csv": _read_csv,
    "tsv": _read_tsv,
    "txt": _read_text,
    "conll": _read_conll,
    "parquet": _read_parquet,
}
