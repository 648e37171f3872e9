"""Reading SentencePiece's ``.model`` files (Kudo & Richardson 2018, arXiv:1808.06226) without its library."""

from __future__ import annotations

import math
import os
import struct
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from transept.errors import FormatError, UnsupportedError
from transept.files import read_bytes
from transept.preprocess.text import protobuf

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
UNIGRAM, BPE, WORD, CHAR = 1, 2, 3, 4
SPACE: Final = "▁"
MAX_PIECES = 4_000_000


@dataclass(frozen=True)
class Piece:
    """One entry of the vocabulary; its id is its place in the list."""

    text: str
    score: float = 0.0
    kind: int = NORMAL


@dataclass(frozen=True)
class Trainer:
    """What the file says of the model: its algorithm and its special pieces (an id of -1 means there is none)."""

    model_type: int = UNIGRAM
    byte_fallback: bool = False
    treat_whitespace_as_suffix: bool = False
    unk_id: int = 0
    bos_id: int = 1
    eos_id: int = 2
    pad_id: int = -1


@dataclass(frozen=True)
class Normalization:
    """What is done to a text before it is segmented."""

    charsmap: bytes = b""
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True
    escape_whitespaces: bool = True


@dataclass(frozen=True)
class SentencePieceModel:
    """The content of a ``.model`` file."""

    pieces: list[Piece] = field(repr=False)
    trainer: Trainer = field(default_factory=Trainer)
    normalization: Normalization = field(default_factory=Normalization)

    def special(self, name: str) -> str | None:
        """The text of ``unk``, ``bos``, ``eos`` or ``pad``, where the file has it."""
        index: int = getattr(self.trainer, f"{name}_id")
        return self.pieces[index].text if 0 <= index < len(self.pieces) else None


_TRAINER = {3: "model_type", 24: "treat_whitespace_as_suffix", 35: "byte_fallback"} | {
    40 + place: f"{name}_id" for place, name in enumerate(("unk", "bos", "eos", "pad"))
}
_NORMALIZATION = {2: "charsmap", 3: "add_dummy_prefix", 4: "remove_extra_whitespaces", 5: "escape_whitespaces"}


def read_sentencepiece(path: str | os.PathLike[str]) -> SentencePieceModel:
    """Read and check a ``.model`` file.

    Raises:
        FileError: it cannot be read.
        FormatError: it is no such file, or its vocabulary contradicts itself.
        UnsupportedError: it was trained with an option that is not built here; names it.
    """
    return parse_sentencepiece(read_bytes(path), path)


def parse_sentencepiece(data: bytes, path: str | os.PathLike[str] | None = None) -> SentencePieceModel:
    """Like :func:`read_sentencepiece`, from the file's bytes; its path is for messages."""
    try:
        return _parsed(data)
    except (FormatError, UnsupportedError) as error:
        error.path = None if path is None else str(path)
        raise


def _parsed(data: bytes) -> SentencePieceModel:
    pieces: list[Piece] = []
    trainer, normalization = Trainer(), Normalization()
    for number, kind, value in protobuf.fields(memoryview(data)):
        if number > 3:
            continue
        if kind != protobuf.BYTES or isinstance(value, int):
            raise FormatError("is no SentencePiece model: a message is missing where one must stand.")
        if number == 1:
            pieces.append(_piece(value, len(pieces)))
        elif number == 2:
            trainer = _filled(trainer, value, _TRAINER)
        else:
            normalization = _filled(normalization, value, _NORMALIZATION)
        if len(pieces) > MAX_PIECES:
            raise FormatError(f"holds more than {MAX_PIECES} pieces.")
    model = SentencePieceModel(pieces, trainer, normalization)
    _check(model)
    return model


def _piece(data: memoryview, place: int) -> Piece:
    text, score, type_ = b"", 0.0, NORMAL
    for number, kind, value in protobuf.fields(data):
        if number == 1 and kind == protobuf.BYTES and not isinstance(value, int):
            text = bytes(value)
        elif number == 2 and kind == protobuf.FIXED32 and not isinstance(value, int):
            (score,) = struct.unpack("<f", value)
        elif number == 3 and kind == protobuf.VARINT and isinstance(value, int):
            type_ = value
        elif number <= 3:
            raise FormatError(f"piece {place} has a field {number} of the wrong type.")
    try:
        return Piece(text.decode("utf-8"), score, type_)
    except UnicodeDecodeError as error:
        raise FormatError(f"piece {place} is not UTF-8 text.") from error


def _filled(settings: Any, data: memoryview, names: dict[int, str]) -> Any:
    """A copy of a dataclass with the fields that a message gives; those that it lacks keep their defaults."""
    types = {item.name: type(item.default) for item in fields(settings)}
    found: dict[str, Any] = {}
    for number, kind, value in protobuf.fields(data):
        if (name := names.get(number)) is None:
            continue
        if (kind == protobuf.VARINT) is (types[name] is bytes) or kind not in (protobuf.VARINT, protobuf.BYTES):
            raise FormatError(f"the setting {name!r} has the wrong type.")
        if isinstance(value, int):
            signed = value - 2**64 if value >= 2**63 else value
            found[name] = bool(value) if types[name] is bool else signed
        else:
            found[name] = bytes(value)
    return replace(settings, **found)


def _check(model: SentencePieceModel) -> None:
    if not model.pieces:
        raise FormatError("is no SentencePiece model: it holds no pieces.")
    seen: dict[str, int] = {}
    for place, piece in enumerate(model.pieces):
        if not piece.text:
            raise FormatError(f"piece {place} is empty.")
        if not math.isfinite(piece.score) or piece.kind not in range(1, 7):
            raise FormatError(f"piece {place} ({piece.text!r}) has score {piece.score} and type {piece.kind}.")
        if seen.setdefault(piece.text, place) != place:
            raise FormatError(f"pieces {seen[piece.text]} and {place} are both {piece.text!r}.")
    trainer = model.trainer
    if not 0 <= trainer.unk_id < len(model.pieces) or model.pieces[trainer.unk_id].kind != UNKNOWN:
        raise FormatError(f"the id of the unknown piece is {trainer.unk_id}, which is not of that type.")
    if trainer.byte_fallback and (bytes_missing := 256 - sum(piece.kind == BYTE for piece in model.pieces)):
        raise FormatError(f"byte_fallback is on, but {bytes_missing} of the 256 byte pieces are missing.")
    hint = "Convert it to tokenizer.json with the tool of its maker."
    if trainer.model_type not in (UNIGRAM, BPE, CHAR):
        raise UnsupportedError(f"SentencePiece's model type {trainer.model_type} is not supported.", hint=hint)
    if trainer.treat_whitespace_as_suffix or not model.normalization.escape_whitespaces:
        name = "treat_whitespace_as_suffix" if trainer.treat_whitespace_as_suffix else "escape_whitespaces=false"
        raise UnsupportedError(f"SentencePiece's option {name} is not supported.", hint=hint)
    if any(piece.kind == UNUSED for piece in model.pieces):
        raise UnsupportedError("SentencePiece's unused pieces are not supported.", hint=hint)
