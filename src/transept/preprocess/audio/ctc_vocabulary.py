"""The vocabulary of a CTC tokenizer: characters, and added tokens that are found in a text as a whole."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tokenizers import AddedToken

from transept.errors import FormatError, InputTypeError
from transept.files import load_object

MAX_TOKEN = 256
"""Characters of the longest token; a bound on how far the search for added tokens looks ahead."""


class CharacterVocabulary:
    """Characters and their ids, and added tokens, which are found in a text as a whole.

    Args:
        encoder: token -> id.
        special: special tokens; those that the vocabulary lacks get the next ids.
        added: id -> token, from a file.
    """

    def __init__(self, encoder: Mapping[str, int], special: Iterable[str], added: Mapping[int, AddedToken]) -> None:
        self.encoder = dict(encoder)
        self.decoder = {index: token for token, index in self.encoder.items()}
        self.ids = {token.content: index for index, token in added.items()}
        self.tokens = {token.content: token for token in added.values()}
        following = len(self.encoder.keys() | self.ids.keys())
        for text in special:
            if text not in self.ids:
                index = self.encoder.get(text, following)
                following += index == following
                self._set(AddedToken(text, special=True, normalized=False), index)
        for text, index in self.encoder.items():
            if len(text) > 1:
                self._set(AddedToken(text, lstrip=True, rstrip=True, normalized=False), index)
        self._look()

    def _set(self, token: AddedToken, index: int) -> None:
        self.ids[token.content], self.tokens[token.content] = index, token

    def _look(self) -> None:
        """Make anew what depends on the added tokens."""
        self.added = {index: text for text, index in self.ids.items()}
        lengths: dict[str, set[int]] = {}
        for text in self.tokens:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}

    def add(self, tokens: Sequence[AddedToken]) -> int:
        """Add tokens; returns how many were none such before."""
        new = {token.content: token for token in tokens if token.content not in self.ids}
        for text, token in new.items():
            self._set(token, self.encoder.get(text, len(self.to_dict())))
        self._look()
        return len(new)

    def to_dict(self) -> dict[str, int]:
        """Every token and its id."""
        return self.encoder | self.ids

    def text_of(self, index: int) -> str | None:
        """The token of an id; what the vocabulary says goes before added tokens."""
        return self.decoder.get(index, self.added.get(index))

    def split(self, text: str) -> Iterator[tuple[str, bool]]:
        """Pieces of a text, and whether each is an added token. The longest token wins; white space goes as told."""
        start, position, strip = 0, 0, False
        while position < len(text):
            token = self._token_at(text, position)
            if token is None:
                position += 1
                continue
            piece = text[start:position]
            piece = piece.lstrip() if strip else piece
            yield piece.rstrip() if token.lstrip else piece, False
            yield token.content, True
            start = position = position + len(token.content)
            strip = token.rstrip
        yield text[start:].lstrip() if strip else text[start:], False

    def _token_at(self, text: str, position: int) -> AddedToken | None:
        for length in self._lengths.get(text[position], ()):
            if (token := self.tokens.get(text[position : position + length])) is not None:
                return token
        return None


def read_vocabulary(source: Any) -> dict[str, Any]:
    """A ``vocab.json`` or its content: token -> id, or language -> (token -> id).

    Raises:
        FormatError: it is empty, or a value is neither an id nor a vocabulary.
    """
    if not isinstance(source, str | os.PathLike | Mapping):
        raise InputTypeError(f"a vocabulary is a path or a mapping of tokens to ids, but {type(source).__name__} was passed.")
    path = None if isinstance(source, Mapping) else os.fspath(source)
    vocab = dict(source) if isinstance(source, Mapping) else load_object(source)
    nested = bool(vocab) and all(isinstance(part, Mapping) for part in vocab.values())
    for part in vocab.values() if nested else (vocab,):
        if not part:
            raise FormatError("holds an empty vocabulary.", path=path)
        for token, index in part.items():
            if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < 2**31 or len(token) > MAX_TOKEN:
                raise FormatError(f"gives the token {token!r:.80} the id {index!r:.80}.", path=path)
    return vocab
