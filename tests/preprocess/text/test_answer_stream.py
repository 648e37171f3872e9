"""Answers read while they are written, beside the same answers read whole."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from tests.pace import within
from transept.errors import UnsupportedError
from transept.preprocess.text.answers import (
    FORMATS,
    REASONING_TAGS,
    Event,
    ReasoningDelta,
    TextDelta,
    ToolCall,
    parse_answer,
    stream_answer,
)
from transept.preprocess.text.tools import properties_of

from .chats import CHATML, pair, weather
from .test_chat_answers import ANSWERS, PARIS, PIECES, QWEN, call, message

KNOWN = properties_of([weather])


def cut(text: str, pick: random.Random) -> Iterator[str]:
    """A text in pieces of random lengths, some of them empty."""
    while text:
        length = pick.choice((0, 1, 1, 2, 5, 30))
        yield text[:length]
        text = text[length:]


def joined(events: Iterable[Event]) -> dict[str, Any]:
    """The message that events add up to."""
    events = list(events)
    reasoning = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
    content = "".join(event.text for event in events if isinstance(event, TextDelta))
    return message(content, *(event.call for event in events if isinstance(event, ToolCall)), reasoning=reasoning or None)


@pytest.mark.parametrize("name", ANSWERS)
def test_events_add_up_to_the_message(name: str) -> None:
    text, _ = ANSWERS[name]
    prefix = "<think>" if "</think>" in text and "<think>" not in text else ""
    wanted = parse_answer(text, prefix=prefix, ends=["</s>"], known=KNOWN)
    pick = random.Random(name)
    for pieces in ([text], list(text), *(cut(text, pick) for _ in range(20))):
        assert joined(stream_answer(pieces, prefix=prefix, ends=["</s>"], known=KNOWN)) == wanted


def test_any_answer_adds_up() -> None:
    pick, tags = random.Random(0), set(REASONING_TAGS.values())  # an end alone makes no reasoning of what was given
    parts = [
        *(piece for piece in PIECES if piece not in tags),
        *(f"{mark}{PARIS}{end}" for mark, (end, _) in FORMATS.items()),
        "a b",
    ]
    for _ in range(5000):
        text = "".join(pick.choice(parts) for _ in range(pick.randrange(12)))
        assert joined(stream_answer(cut(text, pick), known=KNOWN)) == parse_answer(text, known=KNOWN), text


def test_events_come_as_soon_as_they_are_certain() -> None:
    pieces = [
        "<think",
        "> a",
        " b ",
        "</think>",
        "\n",
        "C ",
        "< d",
        " <tool",
        f"_call>{PARIS}</tool_",
        "call>",
        " e",
        "<|im_end|>",
        "x",
    ]
    given: list[Event] = []
    seen: list[int] = []

    def written() -> Iterator[str]:
        for piece in pieces:
            yield piece
            seen.append(len(given))

    for event in stream_answer(written()):
        given += [event]
    thoughts = [ReasoningDelta("a"), ReasoningDelta(" b")]
    assert given == [*thoughts, TextDelta("C"), TextDelta(" < d"), ToolCall(call(city="Paris")), TextDelta(" e")]
    assert seen == [0, 1, 2, 2, 2, 3, 4, 4, 4, 5, 6]  # what follows the end is not asked for


@pytest.mark.parametrize("piece", [*FORMATS, "{", '"', "<", "é", " "])
def test_long_answers_are_read_in_linear_time(piece: str) -> None:
    pieces = [piece] * (20_000 // len(piece))
    with within(3):
        for opened in ("", "<tool_call>"):
            list(stream_answer([opened, *pieces]))


def test_a_tokenizer_streams_with_its_own_end() -> None:
    ours, _ = pair(chat_template=CHATML)
    assert joined(ours.stream_response(["Hi", "</", "s>", "x"], tools=[weather])) == message("Hi")
    assert joined(ours.stream_response(["hm</think>Hi"], prefix="<think>\n")) == message("Hi", reasoning="hm")
    other, _ = pair(chat_template=CHATML, response_template=QWEN)
    with pytest.raises(UnsupportedError, match="whole answers"):
        other.stream_response(["Hi"])
