"""Responses: chats whose input and output are lists of items, such as messages, calls, and what was called gave."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Discriminator, Field, PrivateAttr, Tag, ValidationError, model_validator

from transept.errors import InputError
from transept.preprocess.text.answers import ReasoningDelta, TextDelta
from transept.serving.answering import Piece, Usage
from transept.serving.engine.calls import CallBegin, Delta
from transept.serving.protocol.base import AnyObject, AnyText, Body, Count, Name, Schema, Text, TextRequest
from transept.serving.protocol.chat import ChatRequest, Effort, Function, Named, call_of


class Part(Body):
    """A part of a text; what it was told with is taken, and has no effect."""

    type: Literal["input_text", "output_text", "reasoning_text", "summary_text"]
    text: Text
    annotations: Annotated[list[Any], Field(max_length=256)] | None = None
    logprobs: Annotated[list[Any], Field(max_length=2**20)] | None = None


Parts = Annotated[list[Part], Field(max_length=256)]


class Item(Body):
    """What items have in common."""

    id: Name | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class MessageItem(Item):
    """What someone says."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Parts


class CallItem(Item):
    """A call that the assistant made before."""

    type: Literal["function_call"]
    call_id: Name
    name: Name
    arguments: Text


class OutputItem(Item):
    """What a call gave."""

    type: Literal["function_call_output"]
    call_id: Name
    output: Text | Parts


class ReasoningItem(Item):
    """What the assistant thought before."""

    type: Literal["reasoning"]
    summary: Parts = []
    content: Parts | None = None
    encrypted_content: None = None


def _messages(items: Iterable[MessageItem | CallItem | OutputItem | ReasoningItem]) -> list[dict[str, Any]]:
    """The messages of a chat that items are; what the assistant thinks, says and calls one after the other is one of them."""
    found: list[dict[str, Any]] = []
    for item in items:
        if isinstance(item, OutputItem):
            found.append({"role": "tool", "tool_call_id": item.call_id, "content": _joined(item.output)})
        elif isinstance(item, MessageItem) and item.role != "assistant":
            found.append({"role": item.role, "content": _joined(item.content)})
        else:
            later = set() if isinstance(item, CallItem) else {"content", "tool_calls"}
            if not found or found[-1]["role"] != "assistant" or found[-1].keys() & later:
                found.append({"role": "assistant"})
            if isinstance(item, CallItem):
                found[-1].setdefault("tool_calls", []).append(call_of(item.call_id, item.name, item.arguments))
            elif isinstance(item, MessageItem):
                found[-1]["content"] = _joined(item.content)
            else:
                found[-1]["reasoning_content"] = _joined(item.content or item.summary)
    return found


def _joined(content: str | list[Part]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


def _kind(item: Any) -> str:
    return str(item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", None))


AnyItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[OutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(_kind),
]


class FunctionTool(Function):
    """A function that the model may call."""

    type: Literal["function"]


class Choice(Named):
    """The function that is to be called."""

    type: Literal["function"]


class OfSchema(Schema):
    """JSON of a schema."""

    type: Literal["json_schema"]


class TextOptions(Body):
    """What the text must look like."""

    format: Annotated[AnyText | AnyObject | OfSchema, Field(discriminator="type")] = AnyText(type="text")


class Reasoning(Body):
    """How much the model is to think."""

    effort: Effort | None = None


class ResponsesRequest(TextRequest):
    """Items, and what the model may call; nothing is stored."""

    input: Text | Annotated[list[AnyItem], Field(min_length=1, max_length=2048)]
    instructions: Text | None = None
    max_output_tokens: Count | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=128)] = []
    tool_choice: Literal["none", "auto", "required"] | Choice = "auto"
    parallel_tool_calls: bool | None = True
    text: TextOptions = TextOptions()
    reasoning: Reasoning | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    include: Annotated[list[Literal["message.output_text.logprobs"]], Field(max_length=1)] | None = None
    previous_response_id: None = None
    truncation: Literal["disabled"] | None = "disabled"
    background: Literal[False] | None = False

    @model_validator(mode="after")
    def _check_chat(self) -> ResponsesRequest:
        try:
            self._chat = ChatRequest.model_validate(self._as_chat())
        except ValidationError as error:
            raise InputError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None
        return self

    @property
    def chat(self) -> ChatRequest:
        """The same as a chat."""
        return self._chat

    def _as_chat(self) -> dict[str, Any]:
        told = [] if self.instructions is None else [MessageItem(role="system", content=self.instructions)]
        items = [MessageItem(role="user", content=self.input)] if isinstance(self.input, str) else self.input
        form, choice = self.text.format.model_dump(by_alias=True), self.tool_choice
        return {name: getattr(self, name) for name in TextRequest.model_fields} | {
            "messages": _messages([*told, *items]),
            "max_completion_tokens": self.max_output_tokens,
            "tools": [{"type": "function", "function": tool.model_dump(exclude={"type"})} for tool in self.tools],
            "tool_choice": choice if isinstance(choice, str) else {"type": "function", "function": {"name": choice.name}},
            "parallel_tool_calls": self.parallel_tool_calls,
            "response_format": {"type": form.pop("type")} | ({"json_schema": form} if form else {}),
            "reasoning_effort": self.reasoning and self.reasoning.effort,
            "logprobs": self.top_logprobs is not None or bool(self.include),
            "top_logprobs": self.top_logprobs,
        }

    _chat: ChatRequest = PrivateAttr()


class _Item(NamedTuple):
    """An item that is being told: itself, and what its text is a part of, by which key, under the name of which events."""

    item: dict[str, Any]
    part: dict[str, Any]
    key: str
    name: str

    @classmethod
    def of(cls, delta: Delta, *, logprobs: bool) -> _Item:
        """A new one that begins with this."""
        item: dict[str, Any] = {"id": _id("rs"), "type": _kind_of(delta), "status": "in_progress"}
        if isinstance(delta, CallBegin):
            item |= {"id": _id("fc"), "call_id": delta.number, "name": delta.name, "arguments": ""}
            return cls(item, item, "arguments", "function_call_arguments")
        if isinstance(delta, ReasoningDelta):
            return cls(item | {"summary": [], "content": []}, {"type": "reasoning_text", "text": ""}, "text", "reasoning_text")
        part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": []} | ({"logprobs": []} if logprobs else {})
        return cls(item | {"id": _id("msg"), "role": "assistant", "content": []}, part, "text", "output_text")


def _kind_of(delta: Delta) -> str:
    return "message" if isinstance(delta, TextDelta) else "reasoning" if isinstance(delta, ReasoningDelta) else "function_call"


class ResponseTeller:
    """Tells of an answer by events, each of which changes what is told at its end: the response.

    Args:
        body: the request.
    """

    reads = "input"

    def __init__(self, body: ResponsesRequest) -> None:
        told = body.model_dump(by_alias=True, exclude={"input", "stream", "include", "cache_salt", "keep_alive"})
        self._chat, self._numbers, self._logprobs = body.chat, count(), list[Any]()
        self._item: _Item | None = None
        self._finish: str | None = None
        head = {"id": _id("resp"), "object": "response", "created_at": int(time.time()), "status": "in_progress"}
        fixed = {"store": False, "metadata": body.metadata or {}, "parallel_tool_calls": body.parallel_tool_calls is not False}
        self.response: dict[str, Any] = {**head, **told, **fixed, "output": [], "error": None, "incomplete_details": None}

    def begins(self, answers: int) -> Iterator[dict[str, Any]]:
        """The events before the first piece."""
        yield self._event("created", response=self.response)
        yield self._event("in_progress", response=self.response)

    def tells(self, piece: Piece) -> Iterator[dict[str, Any]]:
        """The events of a piece."""
        told = self._chat.logprobs_of(piece.tokens)
        self._logprobs += told["content"] if told else []
        for delta in piece.events:
            if self._item is None or isinstance(delta, CallBegin) or self._item.item["type"] != _kind_of(delta):
                yield from self._close("completed")
                yield from self._open(_Item.of(delta, logprobs=told is not None))
            if not isinstance(delta, CallBegin):
                yield from self._grow(delta.text)
        if piece.finish is not None:
            self._finish = piece.finish
            yield from self._close("incomplete" if piece.finish == "length" else "completed")

    def ends(self, usage: Usage) -> Iterator[dict[str, Any]]:
        """The last event."""
        is_cut = self._finish == "length"
        status = "incomplete" if is_cut else "completed"
        details = {"reason": "max_output_tokens"} if is_cut else None
        self.response |= {"status": status, "incomplete_details": details, "usage": _used(usage)}
        yield self._event(status, response=self.response)

    def fails(self, error: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The last event of an answer that cannot be finished."""
        self.response |= {"status": "failed", "error": {"code": "server_error", "message": error["error"]["message"]}}
        yield self._event("failed", response=self.response)

    def whole(self, pieces: list[list[Piece]], usage: Usage) -> dict[str, Any]:
        """The response, where nothing is streamed."""
        for piece in pieces[0]:
            list(self.tells(piece))
        list(self.ends(usage))
        return self.response

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        return {"type": f"response.{kind}", "sequence_number": next(self._numbers), **fields}

    def _of_item(self, kind: str, **fields: Any) -> dict[str, Any]:
        assert self._item is not None
        place = {"item_id": self._item.item["id"], "output_index": len(self.response["output"]) - 1}
        return self._event(kind, **place, **({"content_index": 0} if "content" in self._item.item else {}), **fields)

    def _open(self, opened: _Item) -> Iterator[dict[str, Any]]:
        self._item, output = opened, self.response["output"]
        output.append(opened.item)
        yield self._event("output_item.added", output_index=len(output) - 1, item=opened.item)
        if opened.part is not opened.item:
            opened.item["content"].append(opened.part)
            yield self._of_item("content_part.added", part=opened.part)

    def _grow(self, text: str) -> Iterator[dict[str, Any]]:
        assert self._item is not None
        _, part, key, name = self._item
        part[key] += text
        yield self._of_item(f"{name}.delta", delta=text, **self._logprobs_of(part))

    def _close(self, status: str) -> Iterator[dict[str, Any]]:
        if self._item is None:
            return
        item, part, key, name = self._item
        self._logprobs_of(part)
        known = {field: part[field] for field in (key, "name", "logprobs") if field in part}
        yield self._of_item(f"{name}.done", **({"logprobs": []} if name == "output_text" else {}) | known)
        if part is not item:
            yield self._of_item("content_part.done", part=part)
        item["status"] = status
        yield self._event("output_item.done", output_index=len(self.response["output"]) - 1, item=item)
        self._item = None

    def _logprobs_of(self, part: dict[str, Any]) -> dict[str, Any]:
        """What a text is told with: the log-probabilities that came with it, which its part keeps."""
        if part.get("type") != "output_text":
            return {}
        told, self._logprobs = self._logprobs, []
        part.get("logprobs", []).extend(told)
        return {"logprobs": told}


def _id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"


def _used(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.written,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.written,
    }
