"""A reader of protobuf's wire format that believes nothing: every length is checked before anything is read or kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

from transept.errors import FormatError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_WIDTH = {FIXED64: 8, FIXED32: 4}
_MAX_FIELD = 2**29


def fields(data: memoryview) -> Iterator[tuple[int, int, memoryview | int]]:
    """The fields of one message in order: number, wire type, and the value (an integer, or the bytes of all others).

    Raises:
        FormatError: a length beyond the end, a varint that does not end, or a wire type that does not exist.
    """
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if not 0 < number < _MAX_FIELD:
            _fail(f"field number {number} does not exist")
        if kind == VARINT:
            value, at = _varint(data, at)
            yield number, kind, value
            continue
        if kind == BYTES:
            size, at = _varint(data, at)
        elif (width := _WIDTH.get(kind)) is not None:
            size = width
        else:
            _fail(f"wire type {kind} does not exist")
        if size > end - at:
            _fail(f"field {number} claims {size} bytes where {end - at} are left")
        yield number, kind, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            _fail("it ends within a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (2**64 - 1), at
    raise FormatError("is not a valid protobuf message: a number is longer than 10 bytes.")


def _fail(reason: str) -> NoReturn:
    raise FormatError(f"is not a valid protobuf message: {reason}.")
