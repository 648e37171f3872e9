"""Calls of functions, as a client is told of them. No torch here."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from transept.preprocess.text.answers import AnswerReader, Event, ReasoningDelta, TextDelta, ToolCall


@dataclass(frozen=True)
class CallBegin:
    """A call begins: its id, and the name of what is called."""

    number: str
    name: str


@dataclass(frozen=True)
class ArgumentsDelta:
    """More of the arguments of the last call, which are JSON."""

    text: str


Delta = TextDelta | ReasoningDelta | CallBegin | ArgumentsDelta


class CallReader:
    """Reads an answer, and tells of calls in parts.

    Args:
        reader: tells text, reasoning and calls apart.
        name: of the function that the answer's text is the arguments of.
        parallel: whether there may be several calls; else the answer is over behind the first.
        may_reason: whether the answer may begin with reasoning of its own.
    """

    def __init__(
        self, reader: AnswerReader, *, name: str | None = None, parallel: bool = True, may_reason: bool = False
    ) -> None:
        self._reader, self._name, self._parallel, self.may_reason = reader, name, parallel, may_reason
        self._calls, self._ended = 0, False

    @property
    def is_over(self) -> bool:
        """Whether nothing that follows is read."""
        return self._ended or self._reader.is_over

    @property
    def is_reasoning(self) -> bool:
        """Whether what comes next is reasoning, unless it ends it."""
        return self._reader.is_reasoning

    def feed(self, piece: str) -> list[Delta]:
        """What a piece makes certain."""
        return self._told(self._reader.feed(piece))

    def end(self) -> list[Delta]:
        """What was held back, now that no more comes."""
        return self._told(self._reader.end())

    def _told(self, events: Sequence[Event]) -> list[Delta]:
        found = list[Delta]()
        for event in events:
            if self._ended:
                break
            if isinstance(event, ToolCall):
                found += self._parts(event.call)
                self._ended = not self._parallel
            elif isinstance(event, TextDelta) and self._name is not None:
                found += [] if self._calls else [CallBegin(_number(), self._name)]
                found.append(ArgumentsDelta(event.text))
                self._calls = 1
            else:
                found.append(event)
        return found

    def _parts(self, call: dict[str, Any]) -> list[Delta]:
        function = call["function"]
        arguments = function.get("arguments", {})
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        return [CallBegin(call.get("id") or _number(), function["name"]), ArgumentsDelta(text)]


def _number() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


def joined(deltas: Iterable[Delta], kind: type[TextDelta] | type[ReasoningDelta]) -> str:
    """The text of one kind."""
    return "".join(delta.text for delta in deltas if isinstance(delta, kind))


def calls_of(deltas: Iterable[Delta]) -> list[tuple[CallBegin, str]]:
    """The calls, each with its arguments."""
    found: list[tuple[CallBegin, str]] = []
    for delta in deltas:
        if isinstance(delta, CallBegin):
            found.append((delta, ""))
        elif isinstance(delta, ArgumentsDelta):
            found[-1] = found[-1][0], found[-1][1] + delta.text
    return found
