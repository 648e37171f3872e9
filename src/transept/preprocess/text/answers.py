"""A model's answer back to a message: reasoning, content and tool calls, in the formats that most models write.

Reasoning stands between ``<think>`` and ``</think>``, or the like; the formats of calls are those of
:mod:`transept.preprocess.text.calls`. What cannot be read stays in the content as it was written: an answer never fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from transept.preprocess.text.arguments import Properties, cast_call
from transept.preprocess.text.calls import Call, read_calls

REASONING_TAGS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
)
TEXT_TAGS = (("<|START_TEXT|>", "<|END_TEXT|>"), ("<|START_RESPONSE|>", "<|END_RESPONSE|>"))
ENDS = (
    *("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<end_of_turn>", "<|assistant_end|>"),
    *("<|END_OF_TURN_TOKEN|>", "<｜end▁of▁sentence｜>", "<|user|>", "<|observation|>"),
)


def parse_answer(
    text: str, *, prefix: str = "", ends: Iterable[str] = (), known: Mapping[str, Properties] | None = None
) -> Call:
    """A message of what a model wrote.

    Args:
        text: what the model wrote.
        prefix: the prompt, whose end may have opened the reasoning already.
        ends: tokens that end an answer, besides the usual ones.
        known: the arguments' schemas of tools by name, to cast arguments that were written as texts.

    Returns:
        ``{"role": "assistant", "content": ...}``, and where there are any ``"reasoning_content"`` and ``"tool_calls"``,
        each ``{"type": "function", "function": {"name": ..., "arguments": {...}}}``.
    """
    text = _until(text, [*ends, *ENDS])
    reasoning, rest = _reasoning(text, prefix)
    content, calls = read_calls(rest, known or {})
    message: Call = {"role": "assistant", "content": _bare(content.strip())}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = cast_call(calls, known or {})
    return message


def _bare(text: str) -> str:
    """A text without the tags around it."""
    for start, end in TEXT_TAGS:
        if text.startswith(start):
            return text.removeprefix(start).removesuffix(end).strip()
    return text


def _until(text: str, ends: list[str]) -> str:
    places = [place for end in ends if end and (place := text.find(end)) >= 0]
    return text[: min(places)] if places else text


def _reasoning(text: str, prefix: str) -> tuple[str, str]:
    """The reasoning that an answer begins with, and the rest."""
    for start, end in REASONING_TAGS:
        is_open = prefix.rstrip().endswith(start)
        begins = text.lstrip().startswith(start)
        before, closed, after = text.partition(end)
        # A template may have opened it where only the answer is at hand.
        if begins or is_open or (closed and start not in before):
            return (before.lstrip().removeprefix(start) if begins else before).strip(), after
    return "", text
