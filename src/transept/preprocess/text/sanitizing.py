"""Control tokens in what users write, kept from steering the model: they are marked, rendered, and encoded as plain text.

Two characters for private use stand around each while a template is rendered. What a template writes itself has none, so
its own control tokens stay what they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from transept.errors import InputError

if TYPE_CHECKING:
    from transept.preprocess.text.chat import ChatTokenizer

_START, _END = "\U000f0000", "\U000f0001"


def control_tokens(tokenizer: ChatTokenizer, literals: Sequence[str]) -> list[str]:
    """The tokens that only a template may write, longest first.

    These are the special tokens, and of the other added ones those of ``tokenizer.chat_control_tokens``, or without such a
    list those among the texts that the template writes.
    """
    stated = tokenizer.chat_control_tokens
    found = []
    for token in tokenizer.added_tokens_decoder.values():
        text = token.content
        used = text in stated if stated is not None else not text.isspace() and any(text in one for one in literals)
        if text and (token.special or used):
            found.append(text)
    return sorted(found, key=len, reverse=True)


def marked(value: Any, tokens: Sequence[str]) -> Any:
    """``value`` with every control token in its texts marked; keys of dicts are left as they are."""
    if isinstance(value, str):
        return "".join(_marked(value.replace(_START, "").replace(_END, ""), tokens))
    if isinstance(value, dict):
        return {key: marked(item, tokens) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [marked(item, tokens) for item in value]
    return value


def _marked(text: str, tokens: Sequence[str]) -> Iterator[str]:
    pieces = [(text, False)]
    for token in tokens:
        if token in text:
            pieces = [part for piece, known in pieces for part in ([(piece, True)] if known else _split(piece, token))]
    for piece, known in pieces:
        yield f"{_START}{piece}{_END}" if known else piece


def _split(text: str, token: str) -> list[tuple[str, bool]]:
    first, *others = text.split(token)
    return [(first, False), *(part for other in others for part in ((token, True), (other, False)))]


def encode_marked(tokenizer: ChatTokenizer, text: str) -> list[int]:
    """The ids of a rendered chat, of what is marked those of plain text.

    Raises:
        InputError: the vocabulary makes a control token out of plain text too.
    """
    added = tokenizer.added_tokens_encoder
    newline = tokenizer.encode_ids(["\n"], add_special_tokens=False)[0]
    ids: list[int] = []
    for place, (piece, is_marked) in enumerate(_pieces(text, added)):
        if not piece:
            continue
        # After a newline, so that no space is put before the piece as before a text.
        lead = "\n" if place else ""
        found = _encode(tokenizer, lead + piece, is_marked)
        if lead:
            found = found[len(newline) :] if found[: len(newline)] == newline else _encode(tokenizer, piece, is_marked)
        if is_marked and added[piece] in found:
            raise InputError(f"{piece!r} in a message cannot be made harmless: the vocabulary makes it out of plain text.")
        ids += found
    return ids


def _pieces(text: str, added: dict[str, int]) -> Iterator[tuple[str, bool]]:
    """Pieces of text, and whether each is a marked token. Marks that a template has torn apart still divide the text."""
    first, *others = text.split(_START)
    yield from ((piece, False) for piece in first.split(_END))
    for part in others:
        inside, closed, rest = part.partition(_END)
        if closed and inside in added:
            yield inside, True
            part = rest
        yield from ((piece, False) for piece in part.split(_END))


def _encode(tokenizer: ChatTokenizer, text: str, is_plain: bool) -> list[int]:
    if not is_plain:
        return tokenizer.encode_ids([text], add_special_tokens=False)[0]
    # The backend's own pipeline looks for added tokens, so its parts are run without it.
    backend = tokenizer.backend_tokenizer
    if backend.normalizer is not None:
        text = backend.normalizer.normalize_str(text)
    pieces = [text] if backend.pre_tokenizer is None else [piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str(text)]
    return [token.id for piece in pieces for token in backend.model.tokenize(piece)]
