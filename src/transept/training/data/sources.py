"""Rows from files: JSON, JSON lines, CSV, TSV, Parquet, texts, CoNLL, and folders of pictures or sounds.

What a file holds is checked as it is read: its size, its encoding, and each line. An error names the file and the line.
"""

from __future__ import annotations

import codecs
import csv
import hashlib
import io
import os
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from transept.errors import FileError, FormatError, InputError, MissingExtraError, nearest
from transept.files import PathName, load_json, open_regular, parse_json, reason
from transept.training.data.annotations import flattened
from transept.training.data.dataset import Row, TableDataset

MAX_BYTES = 4 * 2**30
MAX_LINE_BYTES = 64 * 2**20
IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff")
SOUNDS = (".wav", ".flac", ".mp3", ".ogg")
# Byte order marks, longest first: UTF-32's begins with UTF-16's.
_MARKS = (
    *((codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"), (codecs.BOM_UTF8, "utf-8-sig")),
    *((codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16")),
)
_SAMPLED = ("line", "paragraph", "document")
_FORMATS = {
    "jsonl": (".jsonl", ".ndjson"),
    "json": (".json",),
    "csv": (".csv",),
    "tsv": (".tsv", ".tab"),
    "txt": (".txt", ".text"),
    "parquet": (".parquet",),
    "conll": (".conll", ".bio", ".iob", ".iob2"),
}
MOST_HEADER_WORDS = 4


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
        sample_by: what is a row of a text: a ``line``, a ``paragraph`` (parted by empty lines) or the whole ``document``.
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
        dataset = _READERS[kind](name, _codec(name, encoding), sample_by, header)
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


def _codec(name: str, encoding: str | None) -> str:
    """The encoding that was given, or that of the file's byte order mark."""
    if encoding is None:
        with open_regular(name) as file:
            head = file.read(4)
        return next((codec for mark, codec in _MARKS if head.startswith(mark)), "utf-8")
    try:
        return codecs.lookup(encoding).name
    except LookupError:
        raise InputError(f"there is no encoding {encoding!r}.", hint="Such as utf-8, utf-16, latin-1, cp1252.") from None


def _lines(name: str, codec: str) -> Iterator[tuple[int, str]]:
    """The lines of a text with their numbers, and with their ends as they are."""
    with open_regular(name) as file:
        stream = file if codec == "utf-8" else io.TextIOWrapper(file, codec, newline="")
        for number in range(1, 2**62):
            try:
                line = stream.readline(MAX_LINE_BYTES + 1)
                text = line.decode("utf-8") if isinstance(line, bytes) else line
            except (UnicodeError, OSError) as error:
                raise _undecodable(name, number, codec, error) from error
            if not text:
                return
            if len(text) > MAX_LINE_BYTES:
                raise FormatError(f"the line is longer than {MAX_LINE_BYTES} bytes.", path=f"{name}:{number}")
            yield number, text


def _undecodable(name: str, number: int, codec: str, error: Exception) -> Exception:
    if not isinstance(error, UnicodeError):
        return FileError(f"cannot be read ({reason(error)}).", path=name)
    at = f" (byte {error.start} of it)" if isinstance(error, UnicodeDecodeError) and codec == "utf-8" else ""
    hint = "Save it as UTF-8, or pass encoding=, such as latin-1."
    return FormatError(f"the line is not text in {codec}{at}.", path=f"{name}:{number}", hint=hint)


def _read_jsonl(name: str, codec: str, sample_by: str, header: bool | None) -> TableDataset:
    rows, lines = [], []
    for number, text in _lines(name, codec):
        if text.strip():
            row = parse_json(text, path=f"{name}:{number}")
            if not isinstance(row, dict):
                what = f"the line holds {type(row).__name__}, not a JSON object of columns."
                raise FormatError(what, path=f"{name}:{number}")
            rows.append(row)
            lines.append(number)
    return TableDataset(rows, path=name, lines=lines)


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
    some = (text.strip() for _, text in _lines(name, codec))
    first = next((text for text in some if text), "")
    return first.startswith("{") and first.endswith("}") and any(text.startswith("{") for text in some if text)


def _read_csv(name: str, codec: str, sample_by: str, header: bool | None) -> TableDataset:
    first = next((text for _, text in _lines(name, codec)), "")
    separator = ";" if "," not in first and ";" in first else ","
    return _read_table(name, codec, header, delimiter=separator, strict=True)


def _read_tsv(name: str, codec: str, sample_by: str, header: bool | None) -> TableDataset:
    return _read_table(name, codec, header, delimiter="\t", quoting=csv.QUOTE_NONE)


def _read_table(name: str, codec: str, header: bool | None, **dialect: Any) -> TableDataset:
    csv.field_size_limit(MAX_LINE_BYTES)
    records: list[list[str]] = []
    lines: list[int] = []
    reader = csv.reader((text for _, text in _lines(name, codec)), **dialect)
    try:
        start = 1
        for cells in reader:
            if cells and records and len(cells) != len(records[0]):
                raise _uneven(f"{name}:{start}", len(cells), len(records[0]))
            if cells:
                records.append(cells)
                lines.append(start)
            start = reader.line_num + 1
    except csv.Error as error:
        raise FormatError(f"is not CSV: {error}.", path=f"{name}:{reader.line_num}") from error
    notes = []
    if records and (_is_header(records) if header is None else header):
        names, records, lines = records[0], records[1:], lines[1:]
        if len(set(names)) != len(names):
            raise FormatError(f"two columns have one name: {', '.join(names)}.", path=f"{name}:1")
    else:
        names = [f"column{number + 1}" for number in range(len(records[0]) if records else 0)]
        notes = [f"{name}: the first line holds no names, so that the columns are called {', '.join(names)}."]
    columns = [_typed(list(values)) for values in zip(*records)]
    rows = [dict(zip(names, values)) for values in zip(*columns)]
    return TableDataset(rows, names, path=name, lines=lines, notes=notes)


def _uneven(place: str, found: int, expected: int) -> FormatError:
    hint = "Put values that hold the separator between double quotes." if found > expected else None
    return FormatError(f"the line has {found} values, but the first one has {expected}.", path=place, hint=hint)


def _is_header(records: list[list[str]]) -> bool:
    """Whether the first line holds names: short, different, no numbers, and none that comes again as a value."""
    first, rest = records[0], records[1:]
    named = all(cell.strip() and not _is_number(cell) and len(cell.split()) <= MOST_HEADER_WORDS for cell in first)
    if not named or len(set(first)) != len(first):
        return False
    return not any(cell in {row[column] for row in rest} for column, cell in enumerate(first))


def _is_number(text: str) -> bool:
    """Whether that is a number, and not a code such as 007."""
    try:
        float(text)
    except ValueError:
        return False
    digits = text.strip().lstrip("+-")
    return "_" not in text and digits[:1].isdecimal() and not (digits[:1] == "0" and digits[1:2].isdecimal())


def _typed(values: list[str]) -> list[Any]:
    """The values of a column as numbers, if all that are there are numbers; empty ones are then ``None``."""
    held = [value for value in values if value.strip()]
    if not held or not all(map(_is_number, held)):
        return values
    kind: Callable[[str], Any] = int if all(value.strip().lstrip("+-").isdecimal() for value in held) else float
    return [kind(value) if value.strip() else None for value in values]


def _read_text(name: str, codec: str, sample_by: str, header: bool | None) -> TableDataset:
    parts: list[tuple[int, list[str]]] = [(1, [])]
    for number, text in _lines(name, codec):
        line = text.rstrip("\r\n")
        if sample_by == "line" or (sample_by == "paragraph" and not line.strip()):
            parts.append((number if sample_by == "line" else number + 1, []))
        parts[-1][1].append(line if sample_by != "document" else text)
    separator = "" if sample_by == "document" else "\n"
    found = [(number, separator.join(lines)) for number, lines in parts if any(line.strip() for line in lines)]
    if sample_by == "paragraph":
        found = [(number, text.strip("\n")) for number, text in found]
    return TableDataset([{"text": text} for _, text in found], ["text"], path=name, lines=[number for number, _ in found])


def _read_conll(name: str, codec: str, sample_by: str, header: bool | None) -> TableDataset:
    rows: list[Row] = []
    starts: list[int] = []
    width, open_sentence = 0, False
    for number, text in _lines(name, codec):
        if not text.strip() or text.startswith("-DOCSTART-"):
            open_sentence = False
            continue
        cells = text.rstrip("\r\n").split("\t") if "\t" in text else text.split()
        width = width or len(cells)
        if len(cells) != width or width < 2:
            what = f"the line has {len(cells)} columns, but a token and its tag"
            what += f" stand in {width} here." if width > 1 else " are two."
            raise FormatError(what, path=f"{name}:{number}")
        if not open_sentence:
            rows.append({"tokens": [], "tags": []})
            starts.append(number)
        open_sentence = True
        rows[-1]["tokens"].append(cells[0])
        rows[-1]["tags"].append(cells[-1].strip())
    return TableDataset(rows, ["tokens", "tags"], path=name, lines=starts)


def _read_parquet(name: str, codec: str, sample_by: str, header: bool | None) -> TableDataset:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "train", "Reading Parquet files") from error
    with open_regular(name) as file:
        try:
            table = pyarrow.parquet.ParquetFile(file)
            about = table.metadata
            size = sum(about.row_group(index).total_byte_size for index in range(about.num_row_groups))
            if size > MAX_BYTES:
                raise FormatError(f"holds {size} bytes of columns, more than the {MAX_BYTES} allowed.", path=name)
            rows = list(chain.from_iterable(batch.to_pylist() for batch in table.iter_batches()))
        except (pyarrow.ArrowException, OSError, UnicodeError) as error:
            raise FormatError(f"cannot be read as Parquet ({str(error)[:200]}).", path=name) from error
        return TableDataset(rows, list(table.schema_arrow.names), path=name)


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
