"""The tokens of a CTC tokenizer: characters of the vocabulary, and added tokens that are found in a text as a whole."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from transept.errors import FormatError, InputError
from transept.files import load_object

MAX_TOKEN = 256
"""Characters of the longest token; a bound on how far the search for added tokens looks ahead."""


@dataclass(frozen=True)
class AddedToken:
    """A token that is never split.

    Args:
        content: its text.
        lstrip, rstrip: whether it swallows the white space before and after it.
        special: whether ``skip_special_tokens`` leaves it out.
    """

    content: str
    lstrip: bool = False
    rstrip: bool = False
    special: bool = False

    def to_dict(self) -> dict[str, Any]:
        """As ``tokenizer_config.json`` writes it."""
        return asdict(self) | {"normalized": False, "single_word": False}


def read_added(values: Any) -> dict[int, AddedToken]:
    """``added_tokens_decoder`` of a file, id -> token; a token is an object with ``content``, or a string.

    Raises:
        FormatError: an id that is no number, or a token without content.
    """
    found = {}
    for index, value in values.items() if isinstance(values, Mapping) else [(None, values)]:
        fields = {"content": value} if isinstance(value, str) else value
        content: Any = fields.get("content") if isinstance(fields, Mapping) else None
        number = str(index)
        is_token = isinstance(content, str) and 0 < len(content) <= MAX_TOKEN
        if not is_token or not number.isdecimal() or len(number) > 12:
            raise FormatError(f"`added_tokens_decoder` must map ids to tokens, but holds {index!r:.40}: {value!r:.80}.")
        flags = {key: bool(fields.get(key)) for key in ("lstrip", "rstrip", "special")}
        found[int(number)] = AddedToken(content, **flags)
    return found


def read_vocabulary(source: Any) -> dict[str, Any]:
    """A ``vocab.json`` or its content: token -> id, or language -> (token -> id).

    Raises:
        FormatError: it is empty, or a value is neither an id nor a vocabulary.
    """
    path = None if isinstance(source, Mapping) else os.fspath(source)
    vocab = dict(source) if isinstance(source, Mapping) else load_object(source)
    nested = bool(vocab) and all(isinstance(part, Mapping) for part in vocab.values())
    for part in vocab.values() if nested else (vocab,):
        if not part:
            raise FormatError("holds an empty vocabulary.", path=path)
        for token, index in part.items():
            if isinstance(index, bool) or not isinstance(index, int) or index < 0 or len(token) > MAX_TOKEN:
                raise FormatError(f"gives the token {token!r:.80} the id {index!r:.80}.", path=path)
    return vocab


class Vocabulary:
    """Tokens and ids of one language.

    Args:
        encoder: token -> id.
        specials: special tokens; those that the vocabulary lacks get the next ids.
        added: id -> token, from a file.
    """

    def __init__(self, encoder: Mapping[str, int], specials: Iterable[str], added: Mapping[int, AddedToken]) -> None:
        self.encoder = dict(encoder)
        self.decoder = {index: token for token, index in self.encoder.items()}
        self.added = {token.content: index for index, token in added.items()}
        self.tokens = {token.content: token for token in added.values()}
        following = len(self.encoder.keys() | self.added.keys())
        for content in specials:
            if content not in self.added:
                index = self.encoder.get(content, following)
                following += index == following
                self._add(AddedToken(content, special=True), index)
        for content, index in self.encoder.items():
            if len(content) > 1:
                self._add(AddedToken(content, lstrip=True, rstrip=True), index)
        self.added_decoder = {index: content for content, index in self.added.items()}
        self._lengths = self._lengths_by_first_character()

    def _add(self, token: AddedToken, index: int) -> None:
        self.added[token.content] = index
        self.tokens[token.content] = token

    def _lengths_by_first_character(self) -> dict[str, list[int]]:
        lengths: dict[str, set[int]] = {}
        for content in self.tokens:
            lengths.setdefault(content[0], set()).add(len(content))
        return {first: sorted(found, reverse=True) for first, found in lengths.items()}

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

    def id_of(self, token: str, unknown: str | None) -> int:
        """The id of a token, or of the unknown token.

        Raises:
            InputError: it is not in the vocabulary and there is no unknown token.
        """
        for candidate in (token, unknown):
            if candidate is not None and (index := self.added.get(candidate, self.encoder.get(candidate))) is not None:
                return index
        raise InputError(f"{token!r} is not in the vocabulary, which has no unknown token.")

    def token_of(self, index: int, unknown: str | None) -> str:
        """The token of an id; what the vocabulary says goes before added tokens."""
        token = self.decoder.get(index, self.added_decoder.get(index, unknown))
        if token is None:
            raise InputError(f"the id {index} is not in the vocabulary, which has no unknown token.")
        return token

    def to_dict(self) -> dict[str, int]:
        """Every token and its id."""
        return self.encoder | self.added

    def added_tokens_decoder(self) -> dict[str, Any]:
        """The added tokens as ``tokenizer_config.json`` writes them."""
        pairs = sorted((index, self.tokens[content]) for content, index in self.added.items())
        return {str(index): token.to_dict() for index, token in pairs}
