"""A tokenizer with a token for each character, for small models that are trained from the beginning."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from transept.errors import InputError
from transept.preprocess.text.tokenizer import Tokenizer

END, UNKNOWN = "<|end|>", "<|unknown|>"
MOST_CHARACTERS = 20_000


def character_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """A tokenizer of the characters of some texts, sorted, behind the end of text and a token for all others.

    Raises:
        InputError: there are no characters, or far too many different ones.
    """
    import tokenizers

    found = sorted(set().union(*texts))
    if not 1 < len(found) <= MOST_CHARACTERS:
        what = f"the texts have {len(found)} different characters; from 2 to {MOST_CHARACTERS} make a vocabulary."
        raise InputError(what)
    vocabulary = {token: number for number, token in enumerate([END, UNKNOWN, *found])}
    backend: Any = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [], unk_token=UNKNOWN))
    backend.decoder = tokenizers.decoders.Fuse()
    return Tokenizer(tokenizer_object=backend, eos_token=END, bos_token=END, pad_token=END, unk_token=UNKNOWN)
