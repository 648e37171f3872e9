"""The bytes that each token of a tokenizer stands for."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tokenizers import pre_tokenizers

from transept.storage.files import parse_json

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def _alphabet() -> dict[str, int]:
    """The bytes that characters of byte-level vocabularies stand for (GPT-2): printable ones for themselves."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    found = {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}
    assert found.keys() == set(pre_tokenizers.ByteLevel.alphabet())
    return found


class TokenBytes:
    """The bytes that each token of a tokenizer writes in the middle of a text.

    A token of a byte-level vocabulary, or one for a single byte, may write a part of a character.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._added = {int(index): str(token) for index, token in tokenizer.added_tokens_decoder.items()}
        decoder = repr(parse_json(tokenizer.backend_tokenizer.to_str()).get("decoder"))
        self._of: Callable[[int, str], bytes] = self._plain
        if "'ByteLevel'" in decoder:
            self._alphabet = _alphabet()
            self._of = self._by_alphabet
        elif "▁" in decoder:
            self._of = self._pieces

    def __call__(self, index: int) -> bytes:
        """The bytes of one token; those of its name, where it is special."""
        token = self._added.get(index)
        if token is not None:
            return token.encode()
        token = self._tokenizer.convert_ids_to_tokens(index)
        return b"" if token is None else self._of(index, token)

    def _by_alphabet(self, index: int, token: str) -> bytes:
        return b"".join(bytes([self._alphabet[each]]) if each in self._alphabet else each.encode() for each in token)

    def _pieces(self, index: int, token: str) -> bytes:
        byte = _BYTE.fullmatch(token)
        return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()

    def _plain(self, index: int, token: str) -> bytes:
        before = self._tokenizer.decode([index])
        return str(self._tokenizer.decode([index, index])[len(before) :]).encode()
