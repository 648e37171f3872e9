"""What one row writes: tokens to text, stop strings, and events for text, reasoning and tool calls. No torch here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from transept.errors import refuse
from transept.generation.detokenizer import Detokenizer, special_ids
from transept.preprocess.text.answers import MARKS, TextDelta
from transept.serving.engine.calls import CallBegin, CallReader, Delta


class StopStrings:
    """Ends a text that comes in pieces before the first of some strings.

    The text is over as soon as it ends with one of them; of several that end there, the longest is left out. Text is held
    back only while its end is a beginning of one of them.
    """

    def __init__(self, strings: Iterable[str] = ()) -> None:
        self.strings, self.stopped, self._held = [*strings], False, ""
        refuse("" in self.strings, "a stop string must not be empty.", "Leave it out.")

    def feed(self, text: str) -> tuple[str, bool]:
        """The text that no string can begin in any more, and whether one was written; nothing is shown after that."""
        whole = "" if self.stopped else self._held + text
        ends = [(begin + len(each), begin) for each in self.strings if (begin := whole.find(each)) >= 0]
        self.stopped = self.stopped or bool(ends)
        size = min(ends)[1] if ends else len(whole) - max((_shared(whole, each) for each in self.strings), default=0)
        self._held = "" if ends else whole[size:]
        return whole[:size], self.stopped

    @property
    def is_whole(self) -> bool:
        """Whether nothing is held back."""
        return not self._held

    def end(self) -> str:
        """What was held back, now that no more comes."""
        held, self._held = self._held, ""
        return held


def _shared(text: str, string: str) -> int:
    """How many characters at the end of a text are the beginning of a string."""
    longest = text[-len(string) :]
    return next((len(longest) - place for place in range(len(longest)) if string.startswith(longest[place:])), 0)


class Writer:
    """Turns the tokens of one row into events, and tells when and why its answer is over.

    Args:
        tokenizer: of the model.
        prompt: the ids before the answer, on which the text of the first token depends.
        max_tokens: how many tokens an answer has at most.
        ends: ids that end the answer; they count as tokens and have no text.
        stop: strings that end the answer and are not shown.
        reader: tells reasoning and calls from text, by marks that may be special tokens; without, all is text. Other special
            tokens are left out.

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
        reader: CallReader | None = None,
    ) -> None:
        refuse(max_tokens < 1, f"`max_tokens` must be at least 1, but is {max_tokens}.")
        keep = frozenset[int]() if reader is None else mark_ids(tokenizer)
        self.detokenizer = Detokenizer(tokenizer, prompt=prompt, keep=keep)
        self.stops, self.reader, self.ends, self.max_tokens = StopStrings(stop), reader, frozenset(ends), max_tokens
        self.tokens = self.reasoning_tokens = 0
        self.finish_reason: str | None = None
        self.skipped = special_ids(tokenizer) - keep
        self.since_whole = ""
        self._has_calls = False

    def feed(self, index: int, *, complete: bool = False) -> list[Delta]:
        """What a new token makes certain, nothing behind the answer's end; ``complete`` ends it with this one."""
        if self.finish_reason is not None:
            return []
        self.tokens += 1
        before = self.is_reasoning
        if self.is_whole:
            self.since_whole = ""
        if index in self.ends:
            events = self.end("stop")
        else:
            events = self._read(self.detokenizer.add([index]))
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
        self._has_calls |= any(isinstance(event, CallBegin) for event in events)
        return [*events]


def mark_ids(tokenizer: Any) -> frozenset[int]:
    """The special tokens of a tokenizer that are marks of reasoning or calls."""
    special = list(special_ids(tokenizer))
    texts = tokenizer.convert_ids_to_tokens(special)
    return frozenset(index for index, text in zip(special, texts, strict=True) if text in MARKS)
