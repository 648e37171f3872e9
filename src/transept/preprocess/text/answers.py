"""A model's answer back to a message: reasoning, content and tool calls, in the formats that most models write.

An answer is read while it is written: pieces of text in, and out what they are, as soon as that is certain. What cannot be
read stays in the content as it was written: an answer never fails.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from transept.preprocess.settings import need
from transept.preprocess.text.calls import FORMATS, WHOLE, Call, read_whole
from transept.preprocess.text.tools import Properties, cast_call

REASONING_TAGS = {
    "<think>": "</think>",
    "[THINK]": "[/THINK]",
    "<|START_THINKING|>": "<|END_THINKING|>",
    "<|inner_prefix|>": "<|inner_suffix|>",
}
TEXT_TAGS = {"<|START_TEXT|>": "<|END_TEXT|>", "<|START_RESPONSE|>": "<|END_RESPONSE|>"}
ENDS = (
    *("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<end_of_turn>", "<|assistant_end|>"),
    *("<|END_OF_TURN_TOKEN|>", "<｜end▁of▁sentence｜>", "<|user|>", "<|observation|>"),
)


@dataclass(frozen=True)
class TextDelta:
    """More of the content."""

    text: str


@dataclass(frozen=True)
class ReasoningDelta:
    """More of the reasoning."""

    text: str


@dataclass(frozen=True)
class ToolCall:
    """A call, whole: ``{"type": "function", "function": {"name": ..., "arguments": {...}}}``."""

    call: Call


Event = TextDelta | ReasoningDelta | ToolCall


def parse_answer(
    text: str, *, prefix: str = "", ends: Iterable[str] = (), known: Mapping[str, Properties] | None = None
) -> Call:
    """What a model wrote, as a message: ``content``, and where there are any ``reasoning_content`` and ``tool_calls``.

    Args:
        text: what the model wrote.
        prefix: the prompt, whose end may have opened the reasoning already.
        ends: tokens that end an answer, besides the usual ones.
        known: the arguments' schemas of tools by name, to cast arguments that were written as texts.
    """
    text = _Tape([text]).take([*filter(None, ends), *ENDS])[0]
    if not (text.lstrip().startswith(tuple(REASONING_TAGS)) or prefix.rstrip().endswith(tuple(REASONING_TAGS))):
        # A template may have opened it where only the answer is at hand.
        closed = [start for start, end in REASONING_TAGS.items() if end in text and start not in text.partition(end)[0]]
        prefix = closed[0] if closed else ""
    message: Call = {"role": "assistant", "content": ""}
    for event in stream_answer([text], prefix=prefix, known=known):
        if isinstance(event, ToolCall):
            message.setdefault("tool_calls", []).append(event.call)
        else:
            key = "content" if isinstance(event, TextDelta) else "reasoning_content"
            message[key] = message.get(key, "") + event.text
    return message


def stream_answer(
    pieces: Iterable[str], *, prefix: str = "", ends: Iterable[str] = (), known: Mapping[str, Properties] | None = None
) -> Iterator[Event]:
    """What :func:`parse_answer` makes of the whole answer, piece by piece.

    A call is given when its end is written, and an answer that begins as JSON when it is over. Reasoning is told by its first
    mark, in the answer or at the end of ``prefix``; its end alone comes too late. The first mark of a call decides on the
    format of all.
    """
    tape, stops, known = _Tape(pieces), [*filter(None, ends), *ENDS], known or {}
    opened = next((start for start in REASONING_TAGS if prefix.rstrip().endswith(start)), None)
    opened = tape.begin(REASONING_TAGS) or opened
    if opened is not None:
        closed = REASONING_TAGS[opened]
        if (yield from _Writer(ReasoningDelta).write_all(tape.until([closed, *stops]))) != closed:
            return
    if (start := tape.begin(TEXT_TAGS)) is not None:
        stops.append(TEXT_TAGS[start])
    writer = _Writer(TextDelta)
    if (start := tape.begin(WHOLE)) is not None:
        text = start + tape.take(stops)[0]
        yield from writer.write_calls(text, read_whole(text.strip()), known)
        return
    mark = yield from writer.write_all(tape.until([*FORMATS, *stops]))
    while mark in FORMATS:
        opened, (end, read) = mark, FORMATS[mark]
        body, mark = tape.take([end, *stops])
        is_closed = mark == end != opened
        yield from writer.write_calls(opened + body + end * is_closed, read(body.strip(), known), known)
        if is_closed:
            mark = yield from writer.write_all(tape.until([opened, *stops]))


@lru_cache(maxsize=256)
def _pattern(marks: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, marks)))


class _Writer:
    """Deltas of a kind, without the space at the start and at the end of them all."""

    def __init__(self, kind: type[TextDelta] | type[ReasoningDelta]) -> None:
        self.kind, self.held, self.begun = kind, "", False

    def write_all(self, pairs: Iterable[tuple[str, str]]) -> Generator[Event, None, str]:
        """Deltas of texts; returns the last mark behind them."""
        mark = ""
        for text, mark in pairs:  # noqa: B007 (the last one is returned)
            text = self.held + text if self.begun else text.lstrip()
            kept = text.rstrip()
            self.held = text[len(kept) :]
            if kept:
                self.begun = True
                yield self.kind(kept)
        return mark

    def write_calls(self, text: str, calls: list[Call] | None, known: Mapping[str, Properties]) -> Iterator[Event]:
        """The calls that a text is; a text that is none stays one."""
        if not calls:
            yield from self.write_all([(text, "")])
        else:
            self.held = ""
            yield from map(ToolCall, cast_call(calls, known))


class _Tape:
    """Text that comes in pieces, read from mark to mark."""

    def __init__(self, pieces: Iterable[str]) -> None:
        self.pieces, self.text, self.place = iter(pieces), "", 0

    def begin(self, starts: Collection[str]) -> str | None:
        """The one of these that the text begins with, after space; it is then read."""
        while True:
            text = self.text[self.place :].lstrip()
            if (start := next((start for start in starts if text.startswith(start)), None)) is not None:
                self.text, self.place = text, len(start)
                return start
            if not any(start.startswith(text) for start in starts) or not self._read():
                return None

    def _read(self) -> bool:
        piece = next(self.pieces, None)
        need("a piece of an answer", piece, str | None, "a text (str)")
        self.text, self.place = self.text[self.place :] + (piece or ""), 0
        return piece is not None

    def until(self, marks: Collection[str]) -> Iterator[tuple[str, str]]:
        """The text up to the first of the marks, as it comes; beside the last piece the mark, if there is one."""
        pattern, longest = _pattern(tuple(marks)), max(map(len, marks))
        while True:
            start, length = self.place, len(self.text)
            if found := pattern.search(self.text, start):
                self.place = found.end()
                yield self.text[start : found.start()], found[0]
                return
            places = range(max(start, length - longest + 1), length)
            self.place = next((at for at in places if any(mark.startswith(self.text[at:]) for mark in marks)), length)
            yield self.text[start : self.place], ""
            if not self._read():
                text, self.text = self.text, ""
                yield text, ""
                return

    def take(self, marks: Collection[str]) -> tuple[str, str]:
        """The whole text up to the first of the marks, and the mark."""
        texts, found = zip(*self.until(marks))
        return "".join(texts), found[-1]
