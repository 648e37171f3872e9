"""Chats: conversations that the model's template makes a prompt of."""

from __future__ import annotations

import json
import uuid
from itertools import count
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr

from transept.errors import FormatError
from transept.preprocess.text.answers import AnswerReader, Event, ReasoningDelta, TextDelta, ToolCall
from transept.preprocess.text.tools import properties_of
from transept.serving.answering import Answers, Piece, Prompt
from transept.serving.models import WritingModel
from transept.serving.protocol.base import Body, Count, Name, Text, Writing, head
from transept.storage.files import parse_json


class TextPart(Body):
    """A part of a message."""

    type: Literal["text"]
    text: Text


class CalledFunction(Body):
    """What was called, with its arguments as JSON."""

    name: Name
    arguments: Text


class Called(Body):
    """A call that the assistant made before."""

    id: Name
    type: Literal["function"]
    function: CalledFunction


class Message(Body):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | Annotated[list[TextPart], Field(max_length=256)] | None = None
    name: Name | None = None
    tool_calls: Annotated[list[Called], Field(max_length=128)] | None = None
    tool_call_id: Name | None = None
    reasoning_content: Text | None = None
    refusal: None = None

    def rendered(self) -> dict[str, Any]:
        """As templates read it."""
        content = self.content
        text = content if isinstance(content, str) or content is None else "".join(part.text for part in content)
        found: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role, "content": text}
        found |= {name: value for name in ("name", "tool_call_id", "reasoning_content") if (value := getattr(self, name))}
        if self.tool_calls:
            found["tool_calls"] = [_call(call) for call in self.tool_calls]
        return found


def _call(call: Called) -> dict[str, Any]:
    try:
        arguments = parse_json(call.function.arguments)
    except FormatError:
        arguments = call.function.arguments  # as the model wrote it
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}


class Function(Body):
    """What may be called: its name, what it does, and the schema of its arguments."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: Literal[False] | None = None


class Tool(Body):
    """A function that the model may call."""

    type: Literal["function"]
    function: Function


class ChatRequest(Writing):
    """Messages, and what the model may call."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=2048)]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    tools: Annotated[list[Tool], Field(max_length=128)] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    modalities: list[Literal["text"]] | None = None

    def prompts(self, model: WritingModel) -> list[Prompt]:
        """The prompt, as the template and the tokenizer make it (``InputError`` where that cannot be)."""
        offered = [] if self.tool_choice == "none" else [tool.model_dump(exclude_none=True) for tool in self.tools or ()]
        messages = [message.rendered() for message in self.messages]
        rendered = model.tokenizer.apply_chat_template(
            messages, tools=offered or None, add_generation_prompt=True, sanitize_control_tokens=True, return_dict=False
        )
        ids = list(rendered)
        prefix = model.tokenizer.decode(ids[-16:])
        reader = AnswerReader(prefix=prefix, known=properties_of(offered), calls=bool(offered))
        new = self.max_completion_tokens or self.max_tokens or max(model.context - len(ids), 1)
        return [Prompt(ids, self.settings(model.model.generation_config, new, model.vocabulary), self.stop or (), reader)]

    def head(self) -> dict[str, Any]:
        """What the answer begins with."""
        return head("chat.completion.chunk" if self.stream else "chat.completion", "chatcmpl", self.model)

    def opening(self, answers: Answers) -> list[dict[str, Any]]:
        """The choices that begin a stream: who speaks, in each."""
        return [_delta(index, {"role": "assistant", "content": ""}) for index in range(len(answers.requests))]

    def choice(self, piece: Piece) -> list[dict[str, Any]]:
        """What chunks tell of a piece; the reason of its end stands by itself, behind all else."""
        found = [_delta(piece.choice, _told(event, self._numbers(piece.choice))) for event in piece.events]
        return found if piece.finish is None else [*found, _delta(piece.choice, {}, piece.finish)]

    def whole(self, index: int, pieces: list[Piece]) -> dict[str, Any]:
        """An answer that is not streamed."""
        events = [event for piece in pieces for event in piece.events]
        content, reasoning = (_joined(events, kind) for kind in (TextDelta, ReasoningDelta))
        calls = [_called(event) for event in events if isinstance(event, ToolCall)]
        message: dict[str, Any] = {"role": "assistant", "content": None if calls and not content else content, "refusal": None}
        message |= {"reasoning_content": reasoning} if reasoning else {}
        message |= {"tool_calls": calls} if calls else {}
        return {"index": index, "message": message, "logprobs": None, "finish_reason": pieces[-1].finish}

    def _numbers(self, index: int) -> count[int]:
        """Counts the calls of an answer."""
        return self._counted.setdefault(index, count())

    _counted: dict[int, count[int]] = PrivateAttr(default_factory=dict)


def _delta(index: int, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}


def _told(event: Event, numbers: count[int]) -> dict[str, Any]:
    if isinstance(event, ToolCall):
        return {"tool_calls": [{"index": next(numbers), **_called(event)}]}
    return {"content" if isinstance(event, TextDelta) else "reasoning_content": event.text}


def _called(event: ToolCall) -> dict[str, Any]:
    """A call as clients know it: with an id, and its arguments as JSON."""
    function = event.call["function"]
    arguments = function.get("arguments", {})
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    number = event.call.get("id") or f"call_{uuid.uuid4().hex[:24]}"
    return {"id": number, "type": "function", "function": {"name": function["name"], "arguments": text}}


def _joined(events: list[Event], kind: type[TextDelta] | type[ReasoningDelta]) -> str:
    return "".join(event.text for event in events if isinstance(event, kind))
