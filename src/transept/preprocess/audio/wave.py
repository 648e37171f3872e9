"""What the header of a WAVE file says of its length (Microsoft and IBM 1991; RF64: EBU Tech 3306, 2009)."""

from __future__ import annotations

from typing import Any

MAX_CHUNKS = 1000  # that are looked at; the samples come after a handful of others
# What writers put in that cannot go back to the header: nothing, or the largest number that they dare.
_LEAST_PLACEHOLDER = 0x7FFF_F000
_HEADER = 44  # which some writers count as samples


def missing_bytes(content: bytes) -> int:
    """Bytes of samples that a file's header announces and the file lacks; 0 where none is missing, or it is no WAVE file."""
    form, place, wide = content[:4], 12, 0
    if form not in (b"RIFF", b"RIFX", b"RF64") or content[8:12] != b"WAVE":
        return 0
    order: Any = "big" if form == b"RIFX" else "little"
    for _ in range(MAX_CHUNKS):
        name, announced = content[place : place + 4], int.from_bytes(content[place + 4 : place + 8], order)
        place += 8
        if name == b"ds64":
            wide = int.from_bytes(content[place + 8 : place + 16], "little")
        if name == b"data":
            announced = wide if form == b"RF64" and announced == 0xFFFF_FFFF else announced
            lacking = place + announced - len(content)
            told = form == b"RF64" or announced < _LEAST_PLACEHOLDER
            return lacking if told and lacking > _HEADER else 0
        place += announced + announced % 2
        if place >= len(content):
            break
    return 0
