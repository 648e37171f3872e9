"""From a SentencePiece model to a backend of ``tokenizers`` that segments texts exactly as SentencePiece does.

What cannot be said in the library's terms: SentencePiece adds scores in 32 bits from the start of the text, so among
segmentations of *equal* score (``!!!`` + ``!!!!!`` and ``!!!!!`` + ``!!!``) rounding decides; here it is 64 bits.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from transept.errors import FormatError
from transept.preprocess.text.charsmap import charsmap_normalizers
from transept.preprocess.text.sentencepiece import (
    BPE,
    CONTROL,
    NORMAL,
    SPACE,
    UNIGRAM,
    UNKNOWN,
    USER_DEFINED,
    Normalization,
    Piece,
    SentencePieceModel,
)

_cached_charsmap = functools.lru_cache(maxsize=4)(charsmap_normalizers)


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
        model: what :func:`read_sentencepiece` gave.
        pieces: the vocabulary by id where it is not the model's own order.
        before: normalizers of the family that run before those of the model.
        before_words: how the family splits a text before the model does.
        prefix: which parts of a text get the space that the model puts before it: ``"first"`` only its start,
            ``"always"`` also what follows a special token, ``"never"`` none.

    Raises:
        FormatError: the vocabulary lacks what the algorithm needs.
    """
    pieces = model.pieces if pieces is None else pieces
    backend = Tokenizer(_unigram(model, pieces) if model.trainer.model_type == UNIGRAM else _merging(model, pieces))
    prefix = prefix if model.normalization.add_dummy_prefix else "never"
    backend.normalizer = normalizers.Sequence([*before, *_normalizers(model.normalization, prefix)])
    backend.pre_tokenizer = pre_tokenizers.Sequence([*before_words, *_pre_tokenizers(pieces, prefix)])
    backend.decoder = _decoder(model, prefix)
    special = [piece.text for piece in pieces if piece.kind in (CONTROL, UNKNOWN)]
    backend.add_tokens([AddedToken(text, normalized=False, special=True) for text in special])
    if model.trainer.model_type != UNIGRAM:
        # Found in the normalized text, so that normalization sees the spaces around them.
        symbols = [piece.text for piece in pieces if piece.kind == USER_DEFINED]
        backend.add_tokens([AddedToken(text, normalized=True, special=False) for text in symbols])
    return backend


def _unigram(model: SentencePieceModel, pieces: Sequence[Piece]) -> models.Unigram:
    scores = [piece.score for piece in pieces if piece.kind == NORMAL]
    if not scores:
        raise FormatError("the SentencePiece model holds no normal pieces.")
    lowest, highest = min(scores), max(scores)

    def score(piece: Piece) -> float:
        # The penalty of unknown characters counts from the lowest score of all, so nothing may lie below.
        if piece.kind == USER_DEFINED:
            return max(lowest, len(piece.text.encode()) * highest - 0.1)
        return piece.score if piece.kind == NORMAL else max(lowest, piece.score)

    unknown = next(place for place, piece in enumerate(pieces) if piece.kind == UNKNOWN)
    vocab = [(piece.text, score(piece)) for piece in pieces]
    return models.Unigram(vocab, unk_id=unknown, byte_fallback=model.trainer.byte_fallback)


def _merging(model: SentencePieceModel, pieces: Sequence[Piece]) -> models.BPE:
    vocab = {piece.text: place for place, piece in enumerate(pieces)}
    scores = {piece.text: piece.score for piece in pieces if piece.kind == NORMAL}
    return models.BPE(
        vocab=vocab,
        merges=merges_of(scores) if model.trainer.model_type == BPE else [],
        unk_token=next(piece.text for piece in pieces if piece.kind == UNKNOWN),
        fuse_unk=True,
        byte_fallback=model.trainer.byte_fallback,
    )


def merges_of(scores: dict[str, float]) -> list[tuple[str, str]]:
    """All ways to join two pieces to a third, best score first; ties in the order of the left piece's length."""
    found = [
        (-score, cut, piece)
        for piece, score in scores.items()
        for cut in range(1, len(piece))
        if piece[:cut] in scores and piece[cut:] in scores
    ]
    found.sort(key=_rank)
    return [(piece[:cut], piece[cut:]) for _, cut, piece in found]


def _rank(entry: tuple[float, int, str]) -> tuple[float, int]:
    return entry[:2]


def _normalizers(settings: Normalization, prefix: str) -> list[normalizers.Normalizer]:
    if not settings.remove_extra_whitespaces:
        steps = _cached_charsmap(settings.charsmap, "") if settings.charsmap else []
        return [*steps, normalizers.Replace(" ", SPACE)]
    # A space that is left at the start stands for the prefix, where there is one.
    steps = _cached_charsmap(settings.charsmap, " ") if settings.charsmap else []
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


def _decoder(model: SentencePieceModel, prefix: str) -> decoders.Decoder:
    if not model.trainer.byte_fallback:
        return decoders.Metaspace(SPACE, prepend_scheme="never" if prefix == "never" else "always")
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence(steps if prefix == "never" else [*steps, decoders.Strip(" ", 1, 0)])
