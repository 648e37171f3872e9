"""A model's answer as it is written: pieces of text in, and out what they are, as soon as that is certain."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass

from transept.preprocess.text.answers import ENDS, REASONING_TAGS, TEXT_TAGS
from transept.preprocess.text.arguments import Properties, cast_call
from transept.preprocess.text.calls import MARKS, WHOLE, Call, read_calls


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


def stream_answer(
    pieces: Iterable[str], *, prefix: str = "", ends: Iterable[str] = (), known: Mapping[str, Properties] | None = None
) -> Iterator[Event]:
    """What :func:`parse_answer` makes of the whole answer, piece by piece.

    A call is given when its end is written, and an answer that begins as JSON when it is over. Reasoning is told by its first
    mark, in the answer or at the end of ``prefix``; its end alone comes too late. The first mark of a call decides on the
    format of all.

    Args:
        pieces: what the model writes, with its special tokens, cut anywhere.
        prefix, ends, known: see :func:`parse_answer`.
    """
    tape, stops, known = _Tape(pieces), [*filter(None, ends), *ENDS], known or {}
    opened = next((start for start, _ in REASONING_TAGS if prefix.rstrip().endswith(start)), None)
    opened = tape.begin([start for start, _ in REASONING_TAGS]) or opened
    if opened is not None:
        closed = dict(REASONING_TAGS)[opened]
        if (yield from _Writer(ReasoningDelta).write_all(tape.until([closed, *stops]))) != closed:
            return
    if (start := tape.begin([start for start, _ in TEXT_TAGS])) is not None:
        stops.append(dict(TEXT_TAGS)[start])
    writer = _Writer(TextDelta)
    if (start := tape.begin(WHOLE)) is not None:
        yield from _read(start + tape.take(stops)[0], writer, known)
        return
    mark = yield from writer.write_all(tape.until([*MARKS, *stops]))
    while mark in MARKS:
        form, end = mark, MARKS[mark]
        body, mark = tape.take([end, *stops])
        is_closed = mark == end != form
        yield from _read(form + body + end * is_closed, writer, known)
        if is_closed:
            mark = yield from writer.write_all(tape.until([form, *stops]))


def _read(text: str, writer: _Writer, known: Mapping[str, Properties]) -> Iterator[Event]:
    """The calls that a text is; a text that is none stays one."""
    content, calls = read_calls(text, known)
    if calls:
        writer.held = ""
    yield from (ToolCall(call) for call in cast_call(calls, known))
    yield from writer.write(content)


class _Writer:
    """Deltas of a kind, without the space at the start and at the end of them all."""

    def __init__(self, kind: type[TextDelta] | type[ReasoningDelta]) -> None:
        self.kind, self.held, self.begun = kind, "", False

    def write(self, text: str) -> Iterator[Event]:
        text = self.held + text if self.begun else text.lstrip()
        kept = text.rstrip()
        self.held = text[len(kept) :]
        if kept:
            self.begun = True
            yield self.kind(kept)

    def write_all(self, texts: Generator[str, None, str]) -> Generator[Event, None, str]:
        """Deltas of texts; returns what they return."""
        while True:
            try:
                text = next(texts)
            except StopIteration as stop:
                return str(stop.value)
            yield from self.write(text)


class _Tape:
    """Text that comes in pieces, read from mark to mark."""

    def __init__(self, pieces: Iterable[str]) -> None:
        self.pieces, self.text = iter(pieces), ""

    def begin(self, starts: Collection[str]) -> str | None:
        """The one of these that the text begins with, after space; it is then read."""
        while True:
            text = self.text.lstrip()
            if (start := next((start for start in starts if text.startswith(start)), None)) is not None:
                self.text = text.removeprefix(start)
                return start
            piece = next(self.pieces, None) if any(start.startswith(text) for start in starts) else None
            if piece is None:
                return None
            self.text += piece

    def until(self, marks: Collection[str]) -> Generator[str, None, str]:
        """The text up to the first of the marks, as it comes; returns the mark, or nothing where the text ends first."""
        longest = max(map(len, marks))
        while True:
            found = [(place, mark) for mark in marks if (place := self.text.find(mark)) >= 0]
            if found:
                place, mark = min(found)
                text, self.text = self.text[:place], self.text[place + len(mark) :]
                yield text
                return mark
            places = range(max(0, len(self.text) - longest + 1), len(self.text))
            end = next((at for at in places if any(mark.startswith(self.text[at:]) for mark in marks)), len(self.text))
            text, self.text = self.text[:end], self.text[end:]
            yield text
            if (piece := next(self.pieces, None)) is None:
                text, self.text = self.text, ""
                yield text
                return ""
            self.text += piece

    def take(self, marks: Collection[str]) -> tuple[str, str]:
        """The whole text up to the first of the marks, and the mark."""
        parts: list[str] = []
        texts = self.until(marks)
        while True:
            try:
                parts.append(next(texts))
            except StopIteration as stop:
                return "".join(parts), stop.value
