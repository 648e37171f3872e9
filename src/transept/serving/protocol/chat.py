"""Chats: conversations that the model's template makes a prompt of."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, PrivateAttr, Tag, model_validator

from transept.errors import FormatError, InputError
from transept.preprocess.chats import encode_chat
from transept.preprocess.text.answers import REASONING_TAGS, AnswerReader, ReasoningDelta, TextDelta
from transept.preprocess.text.chat import ChatTokenizer
from transept.preprocess.text.sandbox import words_of
from transept.preprocess.text.tools import properties_of
from transept.preprocess.text.vocabulary import TokenBytes
from transept.serving.answering import Piece, Prompt
from transept.serving.engine.calls import ArgumentsDelta, CallBegin, CallReader, Delta, calls_of, joined
from transept.serving.engine.constraint import Constraint, schema_of
from transept.serving.engine.logprobs import Told, of_chat
from transept.serving.engine.pictures import Pictures
from transept.serving.errors import FieldError
from transept.serving.models import WritingModel
from transept.serving.protocol.base import Body, Count, Name, Text, Writing
from transept.serving.protocol.media import Media
from transept.serving.tasks import TaskModel
from transept.storage.files import parse_json

MAX_PICTURES = 64  # of a chat
# Names that templates may read and clients may not set: those of what makes prompts of chats.
_OURS = {"messages"}.union(*(inspect.signature(made).parameters for made in (ChatTokenizer.apply_chat_template, encode_chat)))


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


class Picture(Body):
    """A picture, as a ``data:`` URL."""

    url: Annotated[str, Field(max_length=2**30)]
    detail: Literal["auto"] | None = None


class ContentPart(Body):
    """A part of a message: text or a picture."""

    type: Literal["text", "image_url"]
    text: Text | None = None
    image_url: Picture | None = None

    @model_validator(mode="after")
    def _check_kind(self) -> ContentPart:
        if (self.text is None) == (self.type == "text") or (self.image_url is None) == (self.type == "image_url"):
            raise InputError(f"a part of the type {self.type} has `{self.type}`, and nothing else.")
        return self


_CONTENT = Discriminator(lambda value: "Parts" if isinstance(value, list) else "Text")
Content = Annotated[Annotated[Text, Tag("Text")] | Annotated[list[ContentPart], Field(max_length=256), Tag("Parts")], _CONTENT]


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
    content: Content | None = None
    name: Name | None = None
    tool_calls: Annotated[list[Called], Field(max_length=128)] | None = None
    tool_call_id: Name | None = None
    reasoning_content: Text | None = None
    refusal: None = None

    def rendered(self, *, sees: bool = False) -> dict[str, Any]:
        """As templates read it; those of models that see read a list of parts."""
        content: Any = self.content
        if sees and content is not None:
            texts = [content] if isinstance(content, str) else [part.text for part in content]
            content = [{"type": "image"} if text is None else {"type": "text", "text": text} for text in texts]
        elif isinstance(content, list):
            content = "".join(part.text or "" for part in content)
        found: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role, "content": content}
        found |= {name: value for name in ("name", "tool_call_id", "reasoning_content") if (value := getattr(self, name))}
        if self.tool_calls:
            found["tool_calls"] = [_call(call) for call in self.tool_calls]
        return found


def read_chat(model: WritingModel | TaskModel, messages: Sequence[Message], **how: Any) -> tuple[list[int], Pictures | None]:
    """The ids that the model's template makes of messages, and their pictures (``InputError`` where that cannot be)."""
    urls = {
        f"messages.{place}.content.{number}.image_url.url": part.image_url.url
        for place, message in enumerate(messages)
        for number, part in enumerate(message.content if isinstance(message.content, list) else ())
        if part.image_url is not None
    }
    if (processor := getattr(model, "processor", None)) is None:
        if urls:
            raise FieldError(next(iter(urls)), f"the model {model.name!r} sees no pictures.")
        rendered = [message.rendered() for message in messages]
        how |= {"sanitize_control_tokens": True, "return_dict": False}
        return list(model.tokenizer.apply_chat_template(rendered, **how)), None
    if len(urls) > MAX_PICTURES:
        raise FieldError("messages", f"the chat has {len(urls)} pictures, but {MAX_PICTURES} are the most.")
    media = Media()
    images = [media.picture(url, param) for param, url in urls.items()]
    ids, inputs = encode_chat(processor, [message.rendered(sees=True) for message in messages], images, **how)
    return ids, Pictures(ids, inputs) if images else None


def _call(call: Called) -> dict[str, Any]:
    try:
        arguments = parse_json(call.function.arguments)
    except FormatError:
        arguments = call.function.arguments  # as the model wrote it
    return call_of(call.id, call.function.name, arguments)


class Function(Body):
    """What may be called: its name, what it does, and the schema of its arguments."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Body):
    """A function that the model may call."""

    type: Literal["function"]
    function: Function


class Named(Body):
    """A name."""

    name: Name


class NamedTool(Body):
    """The function that is to be called."""

    type: Literal["function"]
    function: Named


class ChatRequest(Writing):
    """Messages, and what the model may call."""

    reads, names = "messages", ("chat.completion", "chat.completion.chunk", "chatcmpl")

    messages: Annotated[list[Message], Field(min_length=1, max_length=2048)]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    tools: Annotated[list[Tool], Field(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    modalities: list[Literal["text"]] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    reasoning_effort: Effort | None = None
    chat_template_kwargs: Annotated[dict[Name, Any], Field(max_length=64)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False

    @model_validator(mode="after")
    def _check_pairs(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise FieldError("top_logprobs", "`top_logprobs` needs `logprobs`.")
        if self.schema_of_answer is not None and self.tools and self.tool_choice != "none":
            raise FieldError(
                "response_format", "`response_format` leaves no place for calls of `tools`; set `tool_choice` to none."
            )
        if self.continue_final_message and self.add_generation_prompt:
            raise FieldError("continue_final_message", "`continue_final_message` leaves no place for `add_generation_prompt`.")
        if self.must_call and not self.tools:
            raise FieldError("tool_choice", "`tool_choice` asks for a call, but there are no `tools`.")
        if isinstance(self.tool_choice, NamedTool) and not self._offered:
            raise FieldError(
                "tool_choice", f"`tool_choice` asks for {self.tool_choice.function.name!r:.80}, which is none of the `tools`."
            )
        return self

    @property
    def must_call(self) -> bool:
        """Whether the answer must be a call."""
        return self.tool_choice not in (None, "none", "auto")

    @property
    def _offered(self) -> list[Function]:
        """The functions that may be called."""
        choice, functions = self.tool_choice, [tool.function for tool in self.tools or () if self.tool_choice != "none"]
        return [each for each in functions if not isinstance(choice, NamedTool) or each.name == choice.function.name]

    @property
    def form(self) -> Callable[[WritingModel], Constraint] | None:
        """As of all, or what compiles what a call in the answer must look like."""
        return self._form_of_calls if self.must_call or any(each.strict for each in self._offered) else super().form

    def _form_of_calls(self, model: WritingModel) -> Constraint:
        functions = [each.model_dump() for each in self._offered]
        if isinstance(self.tool_choice, NamedTool):
            return model.grammars.json_schema(schema_of(functions[0]))
        template, parallel = model.tokenizer.get_chat_template(tools=functions), self.parallel_tool_calls is not False
        return model.grammars.calls(functions, template, parallel=parallel, free=not self.must_call)

    def prompts(self, model: WritingModel) -> list[Prompt]:
        """The prompt, as the template and the tokenizer make it (``InputError`` where that cannot be)."""
        shown = () if self.tool_choice == "none" else self.tools or ()
        offered = [tool.model_dump(exclude_none=True, exclude={"function": {"strict"}}) for tool in shown]
        self._bytes = model.token_bytes
        begins = not self.continue_final_message if self.add_generation_prompt is None else self.add_generation_prompt
        ids, pictures = read_chat(
            model,
            self.messages,
            tools=offered or None,
            add_generation_prompt=begins,
            continue_final_message=self.continue_final_message,
            **self._variables(model, offered),
        )
        prefix = model.tokenizer.decode(ids[-16:])
        name = self.tool_choice.function.name if isinstance(self.tool_choice, NamedTool) else None
        read = AnswerReader(prefix=prefix, known=properties_of(offered), calls=bool(offered) and name is None)
        may_reason = begins and not any(end in prefix for end in REASONING_TAGS.values())
        reader = CallReader(read, name=name, parallel=self.parallel_tool_calls is not False, may_reason=may_reason)
        new = self.max_completion_tokens or self.max_tokens or model.room(len(ids))
        settings = self.settings(model.model.generation_config, new, model.vocabulary)
        told = (self.top_logprobs or 0) if self.logprobs else None
        return [Prompt(ids, settings, self.stop or (), reader, told, pictures=pictures)]

    def _variables(self, model: WritingModel, offered: list[dict[str, Any]]) -> dict[str, Any]:
        """What the template is told beside the messages: names that it reads, and none that we set (``InputError``)."""
        found = dict(self.chat_template_kwargs or {})
        if not found and self.reasoning_effort is None:
            return found
        names = words_of(model.tokenizer.get_chat_template(tools=offered or None))[0]
        for name in found:
            if name not in names or name in _OURS or name in model.tokenizer.special_tokens_map:
                what = f"`chat_template_kwargs` has {name!r:.80}, but the template reads no such name that is free."
                raise FieldError("chat_template_kwargs", what)
        if (effort := self.reasoning_effort) is not None:
            if "reasoning_effort" in names:
                found["reasoning_effort"] = effort
            elif "enable_thinking" in names:
                found["enable_thinking"] = effort != "none"
            else:
                raise FieldError(
                    "reasoning_effort", "`reasoning_effort` has no effect on this model, whose chat template does not read it."
                )
        return found

    def opening(self, answers: int) -> list[dict[str, Any]]:
        """The choices that begin a stream: who speaks, in each."""
        return [_delta(index, {"role": "assistant", "content": ""}) for index in range(answers)]

    def choices(self, piece: Piece) -> list[dict[str, Any]]:
        """What chunks tell of a piece; the reason of its end stands by itself, behind all else."""
        found = [_delta(piece.choice, self._told(event, piece.choice)) for event in piece.events]
        found += [] if piece.finish is None else [_delta(piece.choice, {}, piece.finish)]
        if self.logprobs and piece.tokens:
            first = next((each for each in found if "content" in each["delta"]), found[0])
            first["logprobs"] = self.logprobs_of(piece.tokens)
        return found

    def choice(self, index: int, pieces: list[Piece]) -> dict[str, Any]:
        """An answer that is not streamed."""
        events = [event for piece in pieces for event in piece.events]
        content, reasoning = (joined(events, kind) for kind in (TextDelta, ReasoningDelta))
        calls = [call_of(begin.number, begin.name, arguments) for begin, arguments in calls_of(events)]
        message: dict[str, Any] = {"role": "assistant", "content": None if calls and not content else content, "refusal": None}
        message |= {"reasoning_content": reasoning} if reasoning else {}
        message |= {"tool_calls": calls} if calls else {}
        told = self.logprobs_of([token for piece in pieces for token in piece.tokens])
        return {"index": index, "message": message, "logprobs": told, "finish_reason": pieces[-1].finish}

    def logprobs_of(self, tokens: Sequence[Told]) -> dict[str, Any] | None:
        """What is told of tokens, where that is asked for."""
        return of_chat(tokens, self._bytes) if self.logprobs else None

    def _told(self, event: Delta, choice: int) -> dict[str, Any]:
        if isinstance(event, CallBegin):
            self._calls[choice] = self._calls.get(choice, -1) + 1
            return {"tool_calls": [{"index": self._calls[choice], **call_of(event.number, event.name, "")}]}
        if isinstance(event, ArgumentsDelta):
            return {"tool_calls": [{"index": self._calls[choice], "function": {"arguments": event.text}}]}
        return {"content" if isinstance(event, TextDelta) else "reasoning_content": event.text}

    _bytes: TokenBytes = PrivateAttr()
    _calls: dict[int, int] = PrivateAttr(default_factory=dict)  # the last call of each choice


def _delta(index: int, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}


def call_of(number: str, name: str, arguments: Any) -> dict[str, Any]:
    """A call as clients and templates know it."""
    return {"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}
