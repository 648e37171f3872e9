"""SentencePiece's ``.model`` files (Kudo & Richardson 2018, arXiv:1808.06226), read without its library.

Two things cannot be said in the terms of ``tokenizers``. SentencePiece adds scores in 32 bits from the start of the text, so
among segmentations of *equal* score (``!!!`` + ``!!!!!`` and ``!!!!!`` + ``!!!``) rounding decides; here it is 64 bits. And
``normalizers.Precompiled`` looks the model's rules up by grapheme, not by the longest match, so a letter and marks that have no
composed form can lose a mark; NFC before it composes all others, in texts that come decomposed.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from transept.errors import FormatError, UnsupportedError
from transept.preprocess.text.backend import MAX_GROWTH, check_piece, guarded, longest_result
from transept.preprocess.text.settings import PathOr
from transept.storage.files import read_bytes

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
UNIGRAM, BPE, CHAR = 1, 2, 4
SPACE: Final = "▁"
_MAX_PIECES = 4_000_000


@dataclass(frozen=True)
class Piece:
    """One entry of the vocabulary; its id is its place in the list."""

    text: str = ""
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


# Type -> that of the wire; then for each message: number of a field -> its name and its type.
_WIRES: dict[type, int] = {int: 0, bool: 0, bytes: 2, str: 2, float: 5}
_PIECE, _TRAINER, _NORMALIZATION = (
    {number: (item.name, type(item.default)) for number, item in zip(numbers, fields(kind), strict=True)}
    for kind, numbers in ((Piece, (1, 2, 3)), (Trainer, (3, 35, 24, 40, 41, 42, 43)), (Normalization, (2, 3, 4, 5)))
)


def read_sentencepiece(path: PathOr) -> SentencePieceModel:
    """Read and check a ``.model`` file.

    Raises:
        FileError: it cannot be read.
        FormatError: it is no such file, or its vocabulary contradicts itself.
        UnsupportedError: it was trained with an option that is not built here; names it.
    """
    return parse_sentencepiece(read_bytes(path), path)


def parse_sentencepiece(data: bytes, path: PathOr | None = None) -> SentencePieceModel:
    """Like :func:`read_sentencepiece`, from the file's bytes; its path is for messages."""
    pieces, settings = list[Piece](), dict[int, dict[str, Any]]()
    try:
        for number, wire, value in _fields(memoryview(data)):
            if number > 3:
                continue
            if wire == WIRE_VARINT:
                raise FormatError("is no SentencePiece model: a message is missing where one must stand.")
            if number == 1:
                wrong = f"piece {len(pieces)} has a field {{number}} of the wrong type."
                pieces.append(Piece(**_values(value, _PIECE, wrong)))
            else:
                known = _TRAINER if number == 2 else _NORMALIZATION
                settings.setdefault(number, {}).update(_values(value, known, "the setting {name!r} has the wrong type."))
            if len(pieces) > _MAX_PIECES:
                raise FormatError(f"holds more than {_MAX_PIECES} pieces.")
        model = SentencePieceModel(pieces, Trainer(**settings.get(2, {})), Normalization(**settings.get(3, {})))
        _check(model)
    except UnicodeDecodeError as error:
        raise FormatError(f"piece {len(pieces)} is not UTF-8 text.", path=path) from error
    except (FormatError, UnsupportedError) as error:
        error.path = None if path is None else str(path)
        raise
    return model


def _values(data: memoryview, names: dict[int, tuple[str, type]], wrong: str) -> dict[str, Any]:
    """The known fields of a message by name."""
    found: dict[str, Any] = {}
    for number, wire, value in _fields(data):
        if (known := names.get(number)) is None:
            continue
        name, kind = known
        if wire != _WIRES[kind]:
            raise FormatError(wrong.format(name=name, number=number))
        if kind is float:
            (value,) = struct.unpack("<f", value)
        elif kind is int and value >= 2**63:
            value -= 2**64
        found[name] = str(value, "utf-8") if kind is str else kind(value)
    return found


def _check(model: SentencePieceModel) -> None:
    pieces, trainer, seen = model.pieces, model.trainer, dict[str, int]()
    if not pieces:
        raise FormatError("is no SentencePiece model: it holds no pieces.")
    for place, piece in enumerate(pieces):
        if not piece.text:
            raise FormatError(f"piece {place} is empty.")
        check_piece(piece.text, f"piece {place}")
        if not math.isfinite(piece.score) or piece.kind not in range(1, 7):
            raise FormatError(f"piece {place} ({piece.text!r}) has score {piece.score} and type {piece.kind}.")
        if seen.setdefault(piece.text, place) != place:
            raise FormatError(f"pieces {seen[piece.text]} and {place} are both {piece.text!r}.")
    if not 0 <= trainer.unk_id < len(pieces) or pieces[trainer.unk_id].kind != UNKNOWN:
        raise FormatError(f"the id of the unknown piece is {trainer.unk_id}, which is not of that type.")
    if trainer.byte_fallback and (bytes_missing := 256 - sum(piece.kind == BYTE for piece in pieces)):
        raise FormatError(f"byte_fallback is on, but {bytes_missing} of the 256 byte pieces are missing.")
    unsupported = {
        f"model type {trainer.model_type}": trainer.model_type not in (UNIGRAM, BPE, CHAR),
        "option treat_whitespace_as_suffix": trainer.treat_whitespace_as_suffix,
        "option escape_whitespaces=false": not model.normalization.escape_whitespaces,
        "type of unused pieces": any(piece.kind == UNUSED for piece in pieces),
    }
    for what in (what for what, found in unsupported.items() if found):
        hint = "Convert it to tokenizer.json with the tool of its maker."
        raise UnsupportedError(f"SentencePiece's {what} is not supported.", hint=hint)


# The wire format of protobuf: every length is checked before anything is read or kept

WIRE_VARINT, _WIRE_FIXED64, WIRE_BYTES, WIRE_FIXED32 = 0, 1, 2, 5
_WIDTH = {_WIRE_FIXED64: 8, WIRE_FIXED32: 4}


def _fields(data: memoryview) -> Iterator[tuple[int, int, Any]]:
    """The fields of one message in order: number, wire type, and the value (an integer, or the bytes of all others)."""
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if not 0 < number < 2**29:
            raise _broken(f"field number {number} does not exist")
        if wire == WIRE_VARINT:
            value, at = _varint(data, at)
            yield number, wire, value
            continue
        size, at = _varint(data, at) if wire == WIRE_BYTES else (_WIDTH.get(wire, -1), at)
        if size < 0:
            raise _broken(f"wire type {wire} does not exist")
        if size > end - at:
            raise _broken(f"field {number} claims {size} bytes where {end - at} are left")
        yield number, wire, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise _broken("it ends within a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (2**64 - 1), at
    raise _broken("a number is longer than 10 bytes")


def _broken(reason: str) -> FormatError:
    return FormatError(f"is not a valid protobuf message: {reason}.")


# The backend that segments texts as the model does


def sentencepiece_backend(
    model: SentencePieceModel,
    *,
    pieces: Sequence[Piece] | None = None,
    before: Sequence[normalizers.Normalizer] = (),
    before_words: Sequence[pre_tokenizers.PreTokenizer] = (),
    prefix: str = "always",
) -> Tokenizer:
    """A backend that segments as the model does.

    Args:
        pieces: the vocabulary by id where it is not the model's own order.
        before, before_words: what the family does to a text, and how it splits it, before the model does.
        prefix: which parts of a text get the space that the model puts before it: ``"first"`` only its start,
            ``"always"`` also what follows a special token, ``"never"`` none.
    """
    pieces = model.pieces if pieces is None else pieces
    is_unigram, is_byte = model.trainer.model_type == UNIGRAM, model.trainer.byte_fallback
    backend = Tokenizer(_unigram(pieces, is_byte) if is_unigram else _merging(pieces, is_byte, model.trainer.model_type == BPE))
    prefix = prefix if model.normalization.add_dummy_prefix else "never"
    backend.normalizer = normalizers.Sequence([*before, *_normalizers(model.normalization, prefix)])
    backend.pre_tokenizer = pre_tokenizers.Sequence([*before_words, *_pre_tokenizers(pieces, prefix)])
    backend.decoder = decoders.Metaspace(SPACE, prepend_scheme="never" if prefix == "never" else "always")
    if is_byte:
        strip = [] if prefix == "never" else [decoders.Strip(" ", 1, 0)]
        backend.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    special = [piece.text for piece in pieces if piece.kind in (CONTROL, UNKNOWN)]
    backend.add_tokens([AddedToken(text, normalized=False, special=True) for text in special])
    if not is_unigram:
        # Found in the normalized text, so that normalization sees the spaces around them.
        symbols = [piece.text for piece in pieces if piece.kind == USER_DEFINED]
        backend.add_tokens([AddedToken(text, normalized=True, special=False) for text in symbols])
    return backend


def _unigram(pieces: Sequence[Piece], byte_fallback: bool) -> models.Unigram:
    scores = [piece.score for piece in pieces if piece.kind == NORMAL]
    if not scores:
        raise FormatError("the SentencePiece model holds no normal pieces.")
    lowest, highest = min(scores), max(scores)

    def score(piece: Piece) -> float:
        # The penalty of unknown characters counts from the lowest score of all, so nothing may lie below.
        if piece.kind == USER_DEFINED:
            return max(lowest, len(piece.text.encode()) * highest - 0.1)
        return max(lowest, piece.score)

    unknown = next(place for place, piece in enumerate(pieces) if piece.kind == UNKNOWN)
    return models.Unigram([(piece.text, score(piece)) for piece in pieces], unk_id=unknown, byte_fallback=byte_fallback)


def _merging(pieces: Sequence[Piece], byte_fallback: bool, merges: bool) -> models.BPE:
    scores = {piece.text: piece.score for piece in pieces if piece.kind == NORMAL}
    return models.BPE(
        vocab={piece.text: place for place, piece in enumerate(pieces)},
        merges=merges_of(scores) if merges else [],
        unk_token=next(piece.text for piece in pieces if piece.kind == UNKNOWN),
        fuse_unk=True,
        byte_fallback=byte_fallback,
    )


def merges_of(scores: dict[str, float]) -> list[tuple[str, str]]:
    """All ways to join two pieces to a third, best score first; ties in the order of the left piece's length."""
    found = [
        (-score, cut, piece)
        for piece, score in scores.items()
        for cut in range(1, len(piece))
        if piece[:cut] in scores and piece[cut:] in scores
    ]
    found.sort(key=lambda entry: entry[:2])
    return [(piece[:cut], piece[cut:]) for _, cut, piece in found]


def _normalizers(settings: Normalization, prefix: str) -> list[normalizers.Normalizer]:
    steps: list[normalizers.Normalizer] = []
    if settings.charsmap:
        if (growth := longest_result(settings.charsmap)) > MAX_GROWTH:
            raise FormatError(f"the map of characters can make a text {growth} times longer.")
        with guarded(FormatError, "the map of characters cannot be used"):
            steps += [normalizers.NFC(), normalizers.Precompiled(settings.charsmap)]
    if not settings.remove_extra_whitespaces:
        return [*steps, normalizers.Replace(" ", SPACE)]
    # A space that is left at the start stands for the prefix, where there is one.
    ends = rf"(?<![ {SPACE}])[ {SPACE}]+\z" + (r"|\A +" if prefix == "never" else "")
    return [*steps, normalizers.Replace(Regex(" +(?= )"), ""), normalizers.Replace(Regex(ends), "")]


def _pre_tokenizers(pieces: Sequence[Piece], prefix: str) -> list[pre_tokenizers.PreTokenizer]:
    """Put the prefix, write spaces as ``▁`` and split at them where no piece crosses.

    ``Metaspace`` puts no prefix before a text that begins with its own character; SentencePiece does. So the prefix
    is put as a space, which no normalized text begins with.
    """
    steps: list[pre_tokenizers.PreTokenizer] = []
    if prefix != "never":
        steps.append(pre_tokenizers.Metaspace(replacement=" ", prepend_scheme=prefix, split=False))
    texts = [piece.text for piece in pieces if piece.kind in (NORMAL, USER_DEFINED)]
    crossing = SPACE not in texts or any(SPACE in text.lstrip(SPACE) for text in texts)
    runs = any(text.startswith(SPACE * 2) for text in texts)
    steps.append(pre_tokenizers.Metaspace(SPACE, prepend_scheme="never", split=not (crossing or runs)))
    if runs and not crossing:
        steps.append(pre_tokenizers.Split(Regex(f"{SPACE}+[^{SPACE}]*"), "isolated"))
    return steps
