"""Vocabulary files of the first tokenizers: ``vocab.txt``, ``vocab.json`` and ``merges.txt``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transept.errors import FormatError, InputTypeError
from transept.files import load_object, read_text

Vocab = dict[str, int]
Merges = list[tuple[str, str]]
PathOr = str | os.PathLike[str]
MAX_ID = 2**31 - 1


def load_vocab(source: PathOr | Mapping[str, Any]) -> Vocab:
    """Token -> id, from ``vocab.txt`` (a line a token, its number the id), ``vocab.json``, or such a mapping.

    Raises:
        FileError: the file cannot be read.
        FormatError: an id that is no integer from 0 on, or two tokens with one id.
    """
    if isinstance(source, Mapping):
        return checked_vocab(source)
    if not isinstance(source, str | os.PathLike):
        raise InputTypeError(f"a vocabulary is a path or a mapping of tokens to ids, but {type(source).__name__} was passed.")
    if Path(source).suffix == ".json":
        return checked_vocab(load_object(source), path=source)
    # A token that stands twice has its last id, as everywhere: the ids of all others must not move.
    return {token: place for place, token in enumerate(_lines(source))}


def checked_vocab(vocab: Mapping[str, Any], path: PathOr | None = None) -> Vocab:
    """``vocab`` as a dictionary if it maps tokens to different ids, else a ``FormatError``."""
    found: dict[int, str] = {}
    for token, index in dict[Any, Any](vocab).items():
        if not isinstance(token, str) or type(index) is not int or not 0 <= index <= MAX_ID:
            raise FormatError(f"the token {token!r} has the id {index!r}, but ids are integers from 0 on.", path=path)
        if found.setdefault(index, token) != token:
            raise FormatError(f"the tokens {found[index]!r} and {token!r} have the same id {index}.", path=path)
    return dict(vocab)


def load_merges(source: PathOr | Sequence[Any]) -> Merges:
    """Pairs of pieces in the order in which they are joined, from ``merges.txt`` or from a list.

    Raises:
        FileError: the file cannot be read.
        FormatError: a line that is not two pieces with one space between.
    """
    if isinstance(source, str | os.PathLike):
        lines = [line for line in _lines(source) if line and not line.startswith("#version")]
        return [_pair(line.split(" "), place, source) for place, line in enumerate(lines)]
    if not isinstance(source, Sequence):
        raise InputTypeError(f"merges are a path or a list of pairs, but {type(source).__name__} was passed.")
    return [_pair(merge.split(" ") if isinstance(merge, str) else merge, place) for place, merge in enumerate(source)]


def _pair(parts: Any, place: int, path: PathOr | None = None) -> tuple[str, str]:
    if not isinstance(parts, list | tuple) or len(parts) != 2 or not all(isinstance(p, str) and p for p in parts):
        raise FormatError(f"merge {place} is not two pieces with one space between: {parts!r:.80}.", path=path)
    return parts[0], parts[1]


def _lines(path: PathOr) -> list[str]:
    text = read_text(path).replace("\r\n", "\n").replace("\r", "\n")
    return text.removesuffix("\n").split("\n")
