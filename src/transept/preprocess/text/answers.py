"""A model's answer back to a message: reasoning, content and tool calls, in the formats that most models write.

An answer is read while it is written: pieces of text in, and out what they are, as soon as that is certain. Tool calls are read

- between ``<tool_call>`` and ``</tool_call>``, as JSON (Hermes, Qwen, Reka), as ``<function=...><parameter=...>`` (Qwen Coder,
  Nemotron, Step) or as ``name<arg_key>...</arg_key><arg_value>...</arg_value>`` (GLM),
- between ``<|tool_call_start|>`` and ``<|tool_call_end|>``, as a list of Python's calls or of JSON (LFM),
- between ``<|START_ACTION|>`` and ``<|END_ACTION|>``, as a list in JSON (Cohere),
- between ``<|tools_prefix|>`` and ``<|tools_suffix|>``, as a list of ``{name: arguments}`` (Apertus),
- between ``<｜tool▁calls▁begin｜>`` and ``<｜tool▁calls▁end｜>``, each with marks of its own (DeepSeek),
- after ``[TOOL_CALLS]``, as a list in JSON or as ``name[ARGS]{...}`` (Mistral),
- as the whole answer, in JSON with ``name`` and ``parameters``, after ``<|python_tag|>`` or by itself (Llama 3).

What cannot be read stays in the content as it was written: an answer never fails.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from transept.errors import FormatError
from transept.preprocess.settings import need
from transept.preprocess.text.tools import Properties, as_json, cast_call
from transept.storage.files import parse_json

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
_PYTHON = "<|python_tag|>"
_NAMES, _IDS, _ARGUMENTS = ("name", "tool_name"), ("id", "tool_call_id"), ("arguments", "parameters")
_BETWEEN_CALLS = re.compile(r"(?<=\}); ?(?=\{)")
_BUILTIN = re.compile(r"(\w+)\.call\(")

Call = dict[str, Any]
Reader = Callable[[str, Container[str]], list[Call]]


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
    text = _pattern((*filter(None, ends), *ENDS)).split(text, 1)[0]
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
    """What :func:`parse_answer` makes of the whole answer, piece by piece; nothing is asked for behind the answer's end."""
    reader = AnswerReader(prefix=prefix, ends=(*filter(None, ends), *ENDS), known=known)
    for piece in pieces:
        yield from reader.feed(piece)
        if reader.is_over:
            return
    yield from reader.end()


class AnswerReader:
    """Tells text, reasoning and calls apart in an answer that comes piece by piece.

    A call is given when its end is written, and an answer that begins as JSON when it is over. Reasoning is told by its first
    mark, in the answer or at the end of ``prefix``; its end alone comes too late. The first mark of a call decides on the
    format of all. A part of a mark is held back only while it may become one.

    Args:
        prefix: the prompt, whose end may have opened the reasoning already.
        ends: texts that end the answer; what follows them is none of it.
        known: the arguments' schemas of tools by name, to cast arguments that were written as texts.
        calls: whether calls are read; without, they stay in the text, and an answer in JSON comes as it is written.
    """

    def __init__(
        self,
        *,
        prefix: str = "",
        ends: Iterable[str] = (),
        known: Mapping[str, Properties] | None = None,
        calls: bool = True,
    ) -> None:
        self.known, self.stops, self.calls, self.is_over = known or {}, [*ends], calls, False
        thought = next((start for start in REASONING_TAGS if prefix.rstrip().endswith(start)), "")
        self._writer, self._end = _Writer(ReasoningDelta if thought else TextDelta), REASONING_TAGS.get(thought, "")
        self._opened = ""  # the mark of calls
        self._call: list[str] | None = None
        self._read: Reader = _whole
        self._stage = 0  # until there is text, reasoning may open (0), then the content (1), and a call may be all of it (2)
        self._marks, self._held = _Marks.of(tuple(self.stops)), ""

    @property
    def is_reasoning(self) -> bool:
        """Whether what comes next is reasoning, unless it ends it."""
        return self._writer.kind is ReasoningDelta

    def feed(self, piece: str) -> list[Event]:
        """What a piece makes certain; nothing once the answer is over."""
        need("a piece of an answer", piece, str, "a text (str)")
        return [] if self.is_over else self._split(self._held + piece)

    def _split(self, text: str) -> list[Event]:
        """Take the text between marks, but for what may begin one at its end."""
        place, events = 0, list[Event]()
        for match in self._marks.pattern.finditer(text):
            events += self._take(text[place : match.start()], match[0])
            place = match.end()
            if self.is_over:
                return events
        end = self._marks.begun(text, place)
        self._held = text[end:]
        return events + list(self._take(text[place:end], ""))

    def end(self) -> list[Event]:
        """What was held back, now that no more comes."""
        events = [] if self.is_over else list(self._take(self._held, None))
        self.is_over, self._held = True, ""
        return events

    def _take(self, text: str, mark: str | None) -> Iterator[Event]:
        """Take text and the mark behind it, an empty one where there is none yet, and ``None`` at the end."""
        writer, is_last = self._writer, mark is None or mark in self.stops
        is_new = self.calls and self._stage < 3 and writer.is_new(TextDelta)
        if self._call is None and is_new and text.lstrip().startswith("{"):
            self._call, self._end = [], ""
        if self._call is not None:
            self._call.append(text)
            if not is_last and (not mark or mark != self._end):
                self._call.append(mark or "")
            else:
                yield from self._close(self._call, mark)
        else:
            yield from writer.write(text)
            self._stage = self._stage if self.is_reasoning or not writer.begun else 3
            if mark and not is_last and not self._opens(mark):
                yield from writer.write(mark)
        self.is_over = is_last

    def _close(self, call: list[str], mark: str | None) -> Iterator[Event]:
        """The calls that a text is, which a mark has ended."""
        end, body = self._end, "".join(call)
        is_closed = mark == end != self._opened
        text, read = self._opened + body + end * is_closed, partial(self._read, body.strip(), self.known)
        yield from self._writer.write_calls(text, read, self.known)
        self._call, self._stage = None if is_closed else [], 3

    def _opens(self, mark: str) -> bool:
        """Whether a mark opens or closes something here; if not, it is text."""
        writer, is_text = self._writer, not self.is_reasoning
        if self._stage == 0 and not writer.begun and mark in REASONING_TAGS:
            self._writer, self._end, self._stage = _Writer(ReasoningDelta), REASONING_TAGS[mark], 1
        elif not is_text and mark == self._end:
            self._writer, self._stage = _Writer(TextDelta), 1
        elif is_text and self._stage < 2 and mark in TEXT_TAGS:
            self.stops.append(TEXT_TAGS[mark])
            self._stage = 2
        elif self.calls and is_text and self._stage < 3 and mark == _PYTHON:
            self._call, self._end = [mark], ""
        elif self.calls and is_text and mark in FORMATS and self._opened in ("", mark):
            self._opened, (self._end, self._read), self._call = mark, FORMATS[mark], []
        else:
            return False
        return True


class _Writer:
    """Deltas of a kind, without the space at the start and at the end of them all."""

    def __init__(self, kind: type[TextDelta] | type[ReasoningDelta]) -> None:
        self.kind, self.space, self.begun = kind, "", False

    def is_new(self, kind: type) -> bool:
        return self.kind is kind and not self.begun

    def write(self, text: str) -> Iterator[Event]:
        text = self.space + text if self.begun else text.lstrip()
        kept = text.rstrip()
        self.space = text[len(kept) :]
        if kept:
            self.begun = True
            yield self.kind(kept)

    def write_calls(self, text: str, read: Callable[[], list[Call]], known: Mapping[str, Properties]) -> Iterator[Event]:
        """The calls that are read; a text that is none stays one."""
        try:
            calls = read()
        except FormatError:
            calls = []
        self.space = "" if calls else self.space
        yield from map(ToolCall, cast_call(calls, known)) if calls else self.write(text)


@dataclass(frozen=True)
class _Marks:
    """All marks of answers, and ends of their own: what finds them, and what they may begin as."""

    pattern: re.Pattern[str]
    longest: int
    beginnings: frozenset[str]

    @classmethod
    @lru_cache(maxsize=256)
    def of(cls, stops: tuple[str, ...]) -> _Marks:
        pairs = [*REASONING_TAGS.items(), *TEXT_TAGS.items(), *((start, end) for start, (end, _) in FORMATS.items())]
        marks = (*dict.fromkeys(mark for pair in pairs for mark in pair), _PYTHON, *stops)
        beginnings = frozenset(mark[:size] for mark in marks for size in range(1, len(mark)))
        return cls(_pattern(marks), max(map(len, marks)), beginnings)

    def begun(self, text: str, place: int) -> int:
        """Where a mark may have begun that ends behind the text; the text's end if nowhere."""
        places = range(max(place, len(text) - self.longest + 1), len(text))
        return next((at for at in places if text[at:] in self.beginnings), len(text))


@lru_cache(maxsize=256)
def _pattern(marks: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, marks)))


# Readers of calls: each takes a text and the names of the tools, and raises FormatError where the text is no call.


def _tagged(text: str, names: Container[str]) -> list[Call]:
    if text.startswith("<function="):
        name, _, body = text.removeprefix("<function=").partition(">")
        parts = _before(body, "</function>").split("<parameter=")[1:]
        return [_call(name.strip(), dict(_argument(part, ">", "", "</parameter>") for part in parts))]
    if "<arg_key>" in text or text in names:  # without arguments GLM writes a call as a name alone
        name, *parts = text.split("<arg_key>")
        return [_call(name.strip(), dict(_argument(part, "</arg_key>", "<arg_value>", "</arg_value>") for part in parts))]
    return _json(text)


def _before(text: str, mark: str) -> str:
    before, mark_there, _ = text.partition(mark)
    if mark and not mark_there:
        raise FormatError(f"has no {mark}.")
    return before


def _argument(part: str, middle: str, opening: str, end: str) -> tuple[str, str]:
    """An argument that is written as texts: a key, a mark, space and a mark or none, a value, a mark."""
    key = _before(part, middle)
    value = _before(part[len(key + middle) :], end)
    if opening:
        between = _before(value, opening)
        if between.strip():
            raise FormatError("has text between a key and its value.")
        return key.strip(), value[len(between + opening) :]
    return key.strip(), value.removeprefix("\n").removesuffix("\n")


def _python(text: str, names: Container[str] = ()) -> list[Call]:
    return _json("".join(as_json(text)))


def _json(text: str, names: Container[str] = ()) -> list[Call]:
    value = parse_json(text)
    return list(map(_of_value, value if isinstance(value, list) else [value]))


def _keyed(text: str, names: Container[str]) -> list[Call]:
    items = parse_json(text)
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise FormatError("is no list of objects.")
    return [_call(name, arguments) for item in items for name, arguments in item.items()]


def _separated(text: str, names: Container[str]) -> list[Call]:
    """Calls such as ``name<｜tool▁sep｜>{...}``, or ``function<｜tool▁sep｜>name`` and the arguments in a block of code."""
    calls = []
    for part in text.split("<｜tool▁call▁begin｜>")[1:]:
        name, _, arguments = part.partition("<｜tool▁call▁end｜>")[0].partition("<｜tool▁sep｜>")
        if "```json" in arguments:
            name, _, arguments = arguments.partition("```json")
            arguments = arguments.partition("```")[0]
        calls.append(_call(name.strip(), arguments))
    return calls


def _bracketed(text: str, names: Container[str]) -> list[Call]:
    name, mark, arguments = text.partition("[ARGS]")
    name, _, index = name.partition("[CALL_ID]")
    return [_call(name.strip(), arguments, index.strip() or None)] if mark else _json(text)


FORMATS: dict[str, tuple[str, Reader]] = {
    "<tool_call>": ("</tool_call>", _tagged),
    "<|tool_call_start|>": ("<|tool_call_end|>", _python),
    "<|START_ACTION|>": ("<|END_ACTION|>", _json),
    "<|tools_prefix|>": ("<|tools_suffix|>", _keyed),
    "<｜tool▁calls▁begin｜>": ("<｜tool▁calls▁end｜>", _separated),
    "[TOOL_CALLS]": ("[TOOL_CALLS]", _bracketed),
}
"""What opens a call -> what ends it, and what reads the text between."""
_INNER: tuple[str, ...] = (
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "[ARGS]",
    "[CALL_ID]",
    "<arg_key>",
    "</arg_key>",
)
_INNER += ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<function=", "</function>", "<parameter=", "</parameter>")
MARKS = frozenset((*REASONING_TAGS, *REASONING_TAGS.values(), *TEXT_TAGS, *TEXT_TAGS.values(), *FORMATS, _PYTHON, *_INNER))
MARKS |= {end for end, _ in FORMATS.values()}
"""All marks that an answer is read by, those inside calls included."""


def _whole(text: str, names: Container[str] = ()) -> list[Call]:
    """The calls that an answer is, if it is nothing else."""
    body = text.strip().removeprefix(_PYTHON).strip()
    if body != text.strip() and (builtin := _BUILTIN.match(body)):
        return _python(f"{builtin[1]}({body[builtin.end() :]}")
    return [_of_value(parse_json(part), exact=True) for part in _BETWEEN_CALLS.split(body)]


def _of_value(value: Any, *, exact: bool = False) -> Call:
    """The call that a JSON value is; with ``exact`` only if it is nothing else besides."""
    if isinstance(value, dict) and isinstance(inner := value.get("function"), dict):
        value = inner | {key: value[key] for key in _IDS if key in value}
    if not isinstance(value, dict) or (exact and not value.keys() <= {"type", "name", "id", *_ARGUMENTS}):
        raise FormatError("is no call.")
    name, arguments, index = (next((value[key] for key in keys if key in value), None) for keys in (_NAMES, _ARGUMENTS, _IDS))
    return _call(name, {} if arguments is None and not exact else arguments, index)


def _call(name: Any, arguments: Any, index: Any = None) -> Call:
    arguments = parse_json(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        raise FormatError("is no call.")
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return call | {"id": index} if isinstance(index, str) else call
