"""What the header of a WAVE file says of its length (Microsoft and IBM 1991; RF64: EBU Tech 3306, 2009)."""

from __future__ import annotations

import os
from typing import BinaryIO

MAX_CHUNKS = 1000  # that are looked at; the samples come after a handful of others
# What writers put in that cannot go back to the header: nothing, or the largest number that they dare.
_LEAST_PLACEHOLDER = 0x7FFF_F000
_HEADER = 44  # which some writers count as samples


def missing_bytes(file: BinaryIO) -> int:
    """Bytes of samples that a file's header announces and the file lacks; 0 where none is missing, or it is no WAVE file."""
    form, kind = file.read(4), file.read(8)[4:]
    if form not in (b"RIFF", b"RIFX", b"RF64") or kind != b"WAVE":
        return 0
    order, wide = "big" if form == b"RIFX" else "little", 0
    size = file.seek(0, os.SEEK_END)
    place = 12
    for _ in range(MAX_CHUNKS):
        file.seek(place)
        name, announced = file.read(4), int.from_bytes(file.read(4), order)  # type: ignore[arg-type]
        place += 8
        if name == b"ds64":
            wide = int.from_bytes(file.read(16)[8:], "little")
        if name == b"data":
            announced = wide if form == b"RF64" and announced == 0xFFFF_FFFF else announced
            lacking = place + announced - size
            told = form == b"RF64" or announced < _LEAST_PLACEHOLDER
            return lacking if told and lacking > _HEADER else 0
        place += announced + announced % 2
        if place >= size:
            break
    return 0
