"""What one row writes: tokens to text, stop strings, and events for text, reasoning and tool calls. No torch here."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from transept.errors import refuse
from transept.generation.detokenizer import Detokenizer, special_ids
from transept.preprocess.text.answers import MARKS, AnswerReader, TextDelta, ToolCall
from transept.serving.engine.calls import CallBegin, CallReader, Delta


class StopStrings:
    """Ends a text that comes in pieces before the first of some strings.

    The text is over as soon as it ends with one of them; of several that end there, the longest is left out. Text is held
    back only while its end is a beginning of one of them. Time is linear in the text, for any number of strings (Aho and
    Corasick 1975).
    """

    def __init__(self, strings: Iterable[str] = ()) -> None:
        self.stopped, self._held, self._state = False, "", 0
        self._next: list[dict[str, int]] = [{}]
        self._depth, self._found = [0], [0]  # of each state: the characters of its beginning, and of a string that ends there
        for string in strings:
            refuse(not string, "a stop string must not be empty.", "Leave it out.")
            state = 0
            for character in string:
                state = self._next[state].setdefault(character, len(self._next))
                if state == len(self._next):
                    self._next.append({})
                    self._depth.append(0)
                    self._found.append(0)
            self._found[state] = len(string)
        self._back = [0] * len(self._next)
        self._link()

    def _link(self) -> None:
        """Find for each state the longest end of it that is another beginning."""
        waiting = deque([0])
        while waiting:
            state = waiting.popleft()
            for character, after in self._next[state].items():
                self._depth[after] = self._depth[state] + 1
                self._back[after] = self._step(self._back[state], character) if state else 0
                self._found[after] = self._found[after] or self._found[self._back[after]]
                waiting.append(after)

    def _step(self, state: int, character: str) -> int:
        while state and character not in self._next[state]:
            state = self._back[state]
        return self._next[state].get(character, 0)

    def feed(self, text: str) -> tuple[str, bool]:
        """The text that no string can begin in any more, and whether one was written; nothing is shown after that."""
        if self.stopped:
            return "", True
        before, whole = len(self._held), self._held + text
        for place, character in enumerate(text, before + 1):
            self._state = self._step(self._state, character)
            if found := self._found[self._state]:
                self.stopped, self._held = True, ""
                return whole[: place - found], True
        end = len(whole) - self._depth[self._state]
        self._held = whole[end:]
        return whole[:end], False

    @property
    def is_whole(self) -> bool:
        """Whether nothing is held back."""
        return not self._held

    def end(self) -> str:
        """What was held back, now that no more comes."""
        held, self._held, self._state = self._held, "", 0
        return held


class Writer:
    """Turns the tokens of one row into events, and tells when and why its answer is over.

    Args:
        tokenizer: of the model.
        prompt: the ids before the answer, on which the text of the first token depends.
        max_tokens: how many tokens an answer has at most.
        ends: ids that end the answer; they count as tokens and have no text.
        stop: strings that end the answer and are not shown.
        reader: tells reasoning and calls from text, by marks that may be special tokens; without, all is text.
        skip_special_tokens: leave out special tokens, but for the marks that the reader looks for.

    Attributes:
        tokens: how many were written, with an end.
        reasoning_tokens: how many of them are reasoning, with what ends it.
        finish_reason: ``"stop"`` for an end or a stop string, ``"length"``, ``"tool_calls"`` where a whole answer holds calls,
            or ``None`` while it goes on.
        skipped: special tokens, which have no text.
        since_whole: the text before stop strings, since nothing was held back.
    """

    def __init__(
        self,
        tokenizer: Any,
        prompt: Sequence[int],
        *,
        max_tokens: int,
        ends: Collection[int] = (),
        stop: Iterable[str] = (),
        reader: AnswerReader | CallReader | None = None,
        skip_special_tokens: bool = True,
    ) -> None:
        refuse(max_tokens < 1, f"`max_tokens` must be at least 1, but is {max_tokens}.")
        keep = mark_ids(tokenizer) if reader is not None and skip_special_tokens else frozenset[int]()
        self.detokenizer = Detokenizer(tokenizer, skip_special_tokens, prompt, keep)
        self.stops, self.reader, self.ends, self.max_tokens = StopStrings(stop), reader, frozenset(ends), max_tokens
        self.tokens = self.reasoning_tokens = 0
        self.finish_reason: str | None = None
        self.skipped = (special_ids(tokenizer) if skip_special_tokens else frozenset[int]()) - keep
        self.since_whole = ""
        self._has_calls = False

    def feed(self, ids: Iterable[int], *, complete: bool = False) -> list[Delta]:
        """What new tokens make certain; those behind the answer's end are left out, and ``complete`` ends it with them."""
        events: list[Delta] = []
        for index in ids:
            if self.finish_reason is not None:
                break
            self.tokens += 1
            before = self.is_reasoning
            if self.is_whole:
                self.since_whole = ""
            if index in self.ends:
                events += self.end("stop")
            else:
                events += self._read(self.detokenizer.add([index]))
                if complete or self.stops.stopped or (self.reader is not None and self.reader.is_over):
                    events += self.end("stop")
                elif self.tokens == self.max_tokens:
                    events += self.end("length")
            self.reasoning_tokens += before or self.is_reasoning
        return events

    def end(self, reason: str = "stop") -> list[Delta]:
        """What was held back, where something else ends the answer; nothing where it is over."""
        if self.finish_reason is not None:
            return []
        events = self._read(self.detokenizer.end())
        reason = "stop" if self.stops.stopped else reason
        events += self._told(self.stops.end())
        events += self._kept(self.reader.end()) if self.reader is not None else []
        self.finish_reason = "tool_calls" if reason == "stop" and self._has_calls else reason
        return events

    @property
    def is_whole(self) -> bool:
        """Whether the text of all tokens has come out of the tokenizer, and no stop string may have begun."""
        return self.detokenizer.is_whole and self.stops.is_whole

    @property
    def is_reasoning(self) -> bool:
        """Whether what comes next is reasoning."""
        return self.reader is not None and self.reader.is_reasoning

    def _read(self, text: str) -> list[Delta]:
        return self._told(self.stops.feed(text)[0]) if text else []

    def _told(self, text: str) -> list[Delta]:
        if not text:
            return []
        self.since_whole += text
        return [TextDelta(text)] if self.reader is None else self._kept(self.reader.feed(text))

    def _kept(self, events: Sequence[Delta]) -> list[Delta]:
        self._has_calls |= any(isinstance(event, ToolCall | CallBegin) for event in events)
        return [*events]


def mark_ids(tokenizer: Any) -> frozenset[int]:
    """The special tokens of a tokenizer that are marks of reasoning or calls."""
    special = list(special_ids(tokenizer))
    texts = tokenizer.convert_ids_to_tokens(special)
    return frozenset(index for index, text in zip(special, texts, strict=True) if text in MARKS)
