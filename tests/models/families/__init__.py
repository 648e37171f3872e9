"""One line per family: from it the whole suite of `test_families.py` derives. A file each for families of one kind."""

from __future__ import annotations

from .decoders import DECODERS
from .encoders import ENCODERS
from .experts import EXPERTS
from .hybrids import HYBRIDS
from .llamas import LLAMAS
from .multimodal import MULTIMODAL
from .pictures import PICTURES
from .seq2seq import SEQ2SEQ
from .settings import TEXT, Family
from .sound import SOUND

__all__ = ["FAMILIES", "TEXT", "Family"]

FAMILIES = [*ENCODERS, *DECODERS, *LLAMAS, *EXPERTS, *HYBRIDS, *SEQ2SEQ, *PICTURES, *SOUND, *MULTIMODAL]
