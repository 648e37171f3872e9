"""The lines of a text file in any encoding."""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator

from transept.errors import FileError, FormatError, InputError
from transept.files import open_regular, reason

MAX_LINE_BYTES = 64 * 2**20
# Byte order marks, longest first: UTF-32's begins with UTF-16's.
_MARKS = (
    *((codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"), (codecs.BOM_UTF8, "utf-8-sig")),
    *((codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16")),
)


def codec_of(name: str, encoding: str | None) -> str:
    """The encoding that was given, or that of the file's byte order mark."""
    if encoding is None:
        with open_regular(name) as file:
            head = file.read(4)
        return next((codec for mark, codec in _MARKS if head.startswith(mark)), "utf-8")
    try:
        return codecs.lookup(encoding).name
    except LookupError:
        raise InputError(f"there is no encoding {encoding!r}.", hint="Such as utf-8, utf-16, latin-1, cp1252.") from None


def lines_of(name: str, codec: str) -> Iterator[tuple[int, str]]:
    """The lines of a text with their numbers, and with their ends as they are."""
    with open_regular(name) as file:
        stream = file if codec == "utf-8" else io.TextIOWrapper(file, codec, newline="")
        for number in range(1, 2**62):
            try:
                line = stream.readline(MAX_LINE_BYTES + 1)
                text = line.decode("utf-8") if isinstance(line, bytes) else line
                text.encode("utf-8")  # some codecs give halves of surrogate pairs
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
