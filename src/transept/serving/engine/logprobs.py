"""Log-probabilities as clients are told of them: tokens with their bytes, of the text that is shown. No torch here."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from transept.preprocess.text.vocabulary import TokenBytes
from transept.serving.engine.sampler import Chosen
from transept.serving.engine.writer import Writer

LEAST = -9999.0  # told of tokens that cannot come, since JSON has no infinity


class Told(NamedTuple):
    """A token of a text: what it is, and the bytes that are shown of it."""

    chosen: Chosen
    shown: bytes


class Telling:
    """Finds the tokens whose text one row shows, for its log-probabilities.

    Tokens wait while a part of their text is held back. Of reasoning nothing is told, nor of what ends the answer.

    Args:
        bytes_of: of the tokenizer.
        writer: of the row.
        ends: whether the token that ends the answer is told too, which shows nothing.
    """

    def __init__(self, bytes_of: TokenBytes, writer: Writer, *, ends: bool = False) -> None:
        self._bytes, self._writer, self._ends = bytes_of, writer, ends
        self._waiting: list[Told] = []
        self._reasons = writer.is_reasoning

    def feed(self, chosen: Chosen) -> list[Told]:
        """What is certain now that the writer has read this token."""
        before, self._reasons = self._reasons, self._writer.is_reasoning
        is_end = chosen.token in self._writer.ends
        if not before and not self._reasons and (self._ends or not is_end):
            shown = b"" if is_end or chosen.token in self._writer.skipped else self._bytes(chosen.token)
            self._waiting.append(Told(chosen, shown))
        if self._writer.stops.stopped:
            return self._cut(self._writer.since_whole)
        if self._writer.finish_reason is None and not self._writer.is_whole:
            return []
        found, self._waiting = self._waiting, []
        return found

    def _cut(self, text: str) -> list[Told]:
        """The waiting tokens that make so much text, the last one cut where the text ends within it."""
        waiting, self._waiting = self._waiting, []
        found, left, decoder, size = list[Told](), text.encode(), codecs.getincrementaldecoder("utf-8")("replace"), 0
        for told in waiting:
            if size >= len(text):
                break
            size += len(decoder.decode(told.shown))
            found.append(told)
        joined = b"".join(told.shown for told in found)
        if found and joined.startswith(left):
            last = found[-1]
            found[-1] = last._replace(shown=last.shown[: len(last.shown) - (len(joined) - len(left))])
        return found


def of_prompt(text: str, tokens: Sequence[Chosen], bytes_of: TokenBytes) -> list[Told]:
    """The tokens of a prompt, with what each one is of its text; what no token spells is the last one's."""
    left, found = text.encode(), list[Told]()
    for chosen in tokens:
        raw = bytes_of(chosen.token)
        # A decoder may take the space before the first word away, and the text lacks marks that the tokenizer has added.
        shown = next((part for part in (raw, raw.removeprefix(b" ")) if left.startswith(part)), b"")
        found.append(Told(chosen, shown))
        left = left[len(shown) :]
    found[-1] = found[-1]._replace(shown=found[-1].shown + left)
    return found


def text_of(raw: bytes) -> str:
    """Bytes of a token as text, spelled as ``bytes:`` with hexadecimal digits where they are a part of a character."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def of_chat(tokens: Iterable[Told], bytes_of: TokenBytes) -> dict[str, Any]:
    """The log-probabilities of a chat."""

    def one(index: int, logprob: float | None, raw: bytes) -> dict[str, Any]:
        return {"token": text_of(bytes_of(index)), "logprob": _finite(logprob), "bytes": list(raw)}

    content = [
        one(chosen.token, chosen.logprob, shown)
        | {"top_logprobs": [one(index, logprob, bytes_of(index)) for index, logprob in chosen.top]}
        for chosen, shown in tokens
    ]
    return {"content": content, "refusal": None}


class Offsets:
    """Counts the characters of a text that comes in bytes."""

    def __init__(self) -> None:
        self._decoder, self._size = codecs.getincrementaldecoder("utf-8")("replace"), 0

    def add(self, raw: bytes) -> int:
        """Where these bytes begin in the text."""
        begin = self._size
        self._size += len(self._decoder.decode(raw))
        return begin


def of_completion(tokens: Sequence[Told], bytes_of: TokenBytes, offsets: Offsets) -> dict[str, Any]:
    """The log-probabilities of a completion; the first token of an echoed prompt has none."""
    top = [
        {text_of(bytes_of(index)): _finite(logprob) for index, logprob in ((chosen.token, chosen.logprob), *chosen.top)}
        for chosen, _ in tokens
    ]
    return {
        "tokens": [text_of(bytes_of(chosen.token)) for chosen, _ in tokens],
        "token_logprobs": [_finite(chosen.logprob) for chosen, _ in tokens],
        "top_logprobs": [None if chosen.logprob is None else each for (chosen, _), each in zip(tokens, top, strict=True)],
        "text_offset": [offsets.add(shown) for _, shown in tokens],
    }


def _finite(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, LEAST)
