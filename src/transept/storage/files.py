"""The doors to the disk: every path, JSON document and text file that the library reads or writes passes here.

Whatever comes out of a file is hostile until it is checked, so names are joined by ``safe_join`` and JSON is read by
``load_json``. Whole directories are replaced by ``transept.storage.directory``. Nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from transept.errors import FileError, FormatError, InputError, TranseptError

PathName = str | os.PathLike[str]
MAX_JSON_BYTES = 64 * 2**20
MAX_JSON_DEPTH = 64
MAX_NUMBER_LENGTH = 64
# A small value costs some 16 times its text in memory, so a document is refused when it holds too many of them.
BYTES_PER_VALUE = 16
MAX_VALUES = MAX_JSON_BYTES // BYTES_PER_VALUE
MAX_NAME_BYTES = 255
# What a document is searched for before it is parsed: its bytes, with one digit for all and small letters.
_OUTLINE = bytes.maketrans(b"123456789ED", b"000000000ed")
# A number that is too long has at most three rows of digits and four signs beside them: one row is at least this long.
_LONG_ROW = b"0" * ((MAX_NUMBER_LENGTH - 4) // 3 + 1)
# Directories that are being filled: whoever gave them out (transept.storage.directory) puts all files on the disk at the end.
STAGES: set[Path] = set()


def plain_name(name: object, path: PathName | None = None) -> str:
    """``name`` itself, if it is a relative path in plain characters that stays below wherever it is joined to.

    ``FormatError`` for anything else, as of the file ``path``: absolute, ``..``, a drive, a backslash, unprintable, too long.
    """
    wrong = ""
    if not isinstance(name, str) or not name:
        wrong = f"{str(name)[:80]!r} is not a non-empty string"
    elif name[0] == "/" or {"\\", ":"} & set(name) or not name.isprintable() or ".." in name.split("/") or Path(name) == Path():
        wrong = f"{name[:200]!r} leads outside the directory"
    elif any(len(part.encode()) > MAX_NAME_BYTES for part in name.split("/")) or len(name) > 16 * MAX_NAME_BYTES:
        wrong = f"{name[:40]!r}... is too long"
    if wrong:
        hint = "Names in a model's files must be plain relative paths below its directory."
        raise FormatError(f"file name {wrong}.", path=path, hint=hint)
    return str(name)


def safe_join(root: PathName, name: str) -> Path:
    """``root / name`` where ``name`` came out of a file: it must stay below ``root``, through links too.

    Hub caches keep their snapshots as links into a sibling ``blobs`` folder; such a link is followed.

    Raises:
        FormatError: a name that is not plain (see :func:`plain_name`), or a link that leads outside.
    """
    path = Path(root, plain_name(name, root))
    resolved, inside = Path(os.path.realpath(path)), Path(os.path.realpath(root))
    if any(resolved.is_relative_to(allowed) for allowed in (inside, *_hub_blobs(inside))):
        return path
    hint = "A model's directory must hold its files itself; copy the file into it."
    raise FormatError(f"file name {name!r} is a link that leads outside the directory.", path=root, hint=hint)


def _hub_blobs(directory: Path) -> Iterable[Path]:
    """The folders that a hub cache's snapshot links into: of ``<cache>/models--x--y/snapshots/<commit>`` and of the cache."""
    for parent in directory.parents:
        if parent.name == "snapshots" and parent.parent.name.startswith(("models--", "datasets--", "spaces--")):
            return parent.parent / "blobs", parent.parent.parent / "blobs"
    return ()


@contextmanager
def open_regular(path: PathName) -> Iterator[BinaryIO]:
    """Open a regular file for reading (``FileError``: it cannot be read); a named pipe or a device would make one wait."""
    without_waiting = getattr(os, "O_NONBLOCK", 0)
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | without_waiting)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise FileError("is not a regular file.", path=path)
            yield file
    except TranseptError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise FileError(f"cannot be read ({reason(error)}).", path=path) from error


def read_bytes(path: PathName, *, max_bytes: int = MAX_JSON_BYTES) -> bytes:
    """The whole of a regular file (see :func:`open_regular`); ``FormatError`` where it is larger than ``max_bytes``."""
    with open_regular(path) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise FormatError(f"is larger than the {max_bytes} bytes allowed for a file of its kind.", path=path)
    return data


def read_text(path: PathName, *, max_bytes: int = MAX_JSON_BYTES) -> str:
    """Like :func:`read_bytes`, decoded as UTF-8 (``FormatError`` where it is not)."""
    try:
        return read_bytes(path, max_bytes=max_bytes).decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"is not UTF-8 text (byte {error.start}).", path=path) from error


def load_json(path: PathName, *, max_bytes: int = MAX_JSON_BYTES, finite: bool = True) -> Any:
    """Read a JSON document. See :func:`parse_json` for what is refused."""
    text = read_text(path, max_bytes=max_bytes)
    return parse_json(text, path=path, finite=finite, max_values=max_bytes // BYTES_PER_VALUE)


def load_object(path: PathName, *, max_bytes: int = MAX_JSON_BYTES, finite: bool = True) -> dict[str, Any]:
    """Read a JSON document whose top level must be an object."""
    document = load_json(path, max_bytes=max_bytes, finite=finite)
    if not isinstance(document, dict):
        raise FormatError(f"must hold a JSON object, but holds {type(document).__name__}.", path=path)
    return document


def parse_json(text: str, *, path: PathName | None = None, finite: bool = True, max_values: int = MAX_VALUES) -> Any:
    """Parse JSON strictly: no duplicate keys, at most 64 levels, whole characters, no NaN or infinity if ``finite``.

    ``path`` is for the ``FormatError``, which has the line and the reason; ``max_values`` counts keys and brackets too.
    """
    if sum(map(text.count, "{[,")) > max_values:
        raise FormatError(f"holds more than the {max_values} values allowed for a file of its kind.", path=path)
    outline = text.encode("utf-8", "replace").translate(_OUTLINE, b"+")

    def constant(name: str) -> float:
        if finite:
            raise FormatError(f"holds the number {name}, which JSON does not have.")
        return float(name.replace("Infinity", "inf"))

    def real(digits: str) -> float:
        value = float(_short(digits))
        if finite and not math.isfinite(value):
            raise FormatError(f"holds the number {digits}, which is too large.")
        return value

    # Python's own conversions are much faster, and safe where no number is long or large.
    is_long = _LONG_ROW in outline
    hooks: dict[str, Any] = {"parse_int": lambda digits: int(_short(digits))} if is_long else {}
    if is_long or b"e000" in outline:
        hooks["parse_float"] = real
    try:
        document = json.loads(text, object_pairs_hook=_unique, parse_constant=constant, **hooks)
        if _deeper_than(document, MAX_JSON_DEPTH):
            raise RecursionError
        if b"\\ud" in outline:  # halves of surrogate pairs, which no UTF-8 file could be written with
            json.dumps(document, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        raise FormatError(f"is not valid JSON: {error.msg} (line {error.lineno}).", path=path) from error
    except RecursionError as error:
        raise FormatError(f"is nested deeper than {MAX_JSON_DEPTH} levels.", path=path) from error
    except UnicodeEncodeError as error:
        raise FormatError("holds half of a surrogate pair, which is no character.", path=path) from error
    except FormatError as error:
        error.path = None if path is None else str(path)
        raise
    return document


def _short(digits: str) -> str:
    if len(digits) > MAX_NUMBER_LENGTH:
        raise FormatError(f"holds a number of {len(digits)} digits ({digits[:16]}...).")
    return digits


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        repeated = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise FormatError(f"holds the key {repeated[:200]!r} twice in one object.")
    return found


def _deeper_than(document: Any, levels: int) -> bool:
    level = [document] if isinstance(document, (dict, list)) else []
    for _ in range(levels):
        level = [
            child
            for node in level
            for child in (node.values() if type(node) is dict else node)
            if type(child) is list or type(child) is dict  # exact types are three times as fast as `isinstance`
        ]
        if not level:
            return False
    return True


def dump_json(document: Any) -> str:
    """The one way this library writes JSON: sorted keys, two spaces, UTF-8, a newline at the end."""
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def make_directory(path: PathName) -> Path:
    """A directory to write into, made with its parents where needed (``FileError``: it is a file, or cannot be made)."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise FileError(f"cannot be made into a directory ({reason(error)}).", path=path) from error
    return Path(path)


@contextmanager
def replaced(path: PathName) -> Iterator[Path]:
    """Give out the place of a file that stands in for another one when the block ends well; a crash leaves the old one whole.

    ``FileError``: the directory is missing, full or not writable.
    """
    target = Path(path)
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        yield partial
        if target.parent not in STAGES:
            sync(partial)
        os.replace(partial, target)
        if target.parent not in STAGES:
            sync(target.parent)
    except TranseptError:
        raise
    except (OSError, ValueError) as error:
        raise FileError(f"cannot be written ({reason(error)}).", path=path) from error
    finally:
        with contextlib.suppress(OSError, ValueError):  # what stopped the writing stops this too
            partial.unlink(missing_ok=True)


def write_file(path: PathName, content: str | bytes) -> None:
    """Write a file so that a crash leaves either the old content or the new one, never a part.

    ``FileError``: the directory is missing, full or not writable; ``InputError``: a text with half of a surrogate pair.
    """
    try:
        data = content.encode("utf-8") if isinstance(content, str) else content
    except UnicodeEncodeError as error:
        raise InputError("the text holds half of a surrogate pair, which is no character.", path=path) from error
    with replaced(path) as partial, open(partial, "xb") as file:
        file.write(data)


write_text = write_file


def append_text(path: PathName, text: str) -> None:
    """Add to the end of a text file, which is made where there is none (``FileError``: it cannot be written)."""
    try:
        with open(path, "ab") as file:
            file.write(text.encode("utf-8"))
    except (OSError, ValueError) as error:
        raise FileError(f"cannot be written ({reason(error)}).", path=path) from error


def sync(path: PathName) -> None:
    """Wait until a file or directory is on the disk; links and systems that cannot do it are passed over."""
    if os.path.islink(path) or (os.name == "nt" and os.path.isdir(path)):
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def reason(error: Exception) -> str:
    """Why the system refused, in its own words."""
    return (getattr(error, "strerror", None) or str(error)).lower()
