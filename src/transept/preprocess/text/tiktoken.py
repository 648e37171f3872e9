"""Byte-pair vocabularies in tiktoken's files: a line a token, its bytes in base64 and its rank."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from transept.errors import FormatError
from transept.files import read_bytes
from transept.preprocess.text.segmentation import merges_of

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LOWER, _UPPER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_SPACES = r"\s+(?!\S)|\s+"
LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{_SPACES}"
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
CL100K = LLAMA3.replace(r"|\s*[\r\n]+|", r"|\s+\z|\s*[\r\n]+|")
GPT2 = rf"'(?:[sdmt]|ll|ve|re)| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_SPACES}"
O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|{_SPACES}"
)
PATTERNS = {
    "cl100k_base": CL100K,
    "o200k_base": O200K,
    "qwen": QWEN,
    **dict.fromkeys(("gpt2", "r50k_base", "p50k_base", "multilingual"), GPT2),
}
"""How each family splits a text into words, by the name of its file; of others it is Llama 3's way."""


def byte_letters() -> list[str]:
    """GPT-2's letter for each byte: itself where it is a visible character, else one from U+0100 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in visible else next(others)) for byte in range(256)]


def read_ranks(path: str | os.PathLike[str]) -> dict[bytes, int]:
    """The tokens of a file and their ranks, which are their ids.

    Raises:
        FileError: it cannot be read.
        FormatError: a line that is no such pair, a token or a rank that stands twice, or a byte without a token.
    """
    ranks: dict[bytes, int] = {}
    for number, token, rank in _lines(path):
        if token in ranks:
            raise FormatError(f"line {number} repeats the token {token!r}.", path=path)
        ranks[token] = rank
    if len(set(ranks.values())) != len(ranks):
        raise FormatError("gives two tokens the same rank.", path=path)
    if missing := [byte for byte in range(256) if bytes((byte,)) not in ranks]:
        raise FormatError(f"lacks a token for {len(missing)} single bytes, such as {missing[0]}.", path=path)
    return ranks


def _lines(path: str | os.PathLike[str]) -> Iterator[tuple[int, bytes, int]]:
    for number, line in enumerate(read_bytes(path).splitlines(), start=1):
        if not line:
            continue
        code, _, rank = line.partition(b" ")
        try:
            token = b"" if code == b"=" else base64.b64decode(code, validate=True)
            if not rank.isdigit() or len(rank) > 9:
                raise ValueError(rank)
        except (binascii.Error, ValueError) as error:
            raise FormatError(f"line {number} is not a token in base64 and its rank: {line[:60]!r}.", path=path) from error
        yield number, token, int(rank)


def tiktoken_backend(path: str | os.PathLike[str], pattern: str | None = None) -> Tokenizer:
    """A backend with the vocabulary of a file.

    Args:
        path: the file.
        pattern: how texts are split into words, as a regular expression of Oniguruma; by default as
            :data:`PATTERNS` says for the file's name.

    Raises:
        FileError, FormatError: see :func:`read_ranks`.
    """
    letters = byte_letters()
    ranks = {"".join([letters[byte] for byte in token]): rank for token, rank in read_ranks(path).items()}
    merges = merges_of({token: -rank for token, rank in ranks.items()})
    backend = Tokenizer(models.BPE(vocab=ranks, merges=merges, fuse_unk=False, ignore_merges=True))
    pattern = pattern or PATTERNS.get(Path(path).stem, LLAMA3)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    return backend
