"""What bodies of requests share: strict types, bounds, and the settings of writing."""

from __future__ import annotations

import json
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, model_validator

from transept.environment.units import seconds
from transept.generation.config import GenerationConfig
from transept.generation.prompt import end_tokens
from transept.preprocess.text.answers import TextDelta
from transept.serving.answering import Chunk, Piece, Usage
from transept.serving.engine.constraint import JSON_OBJECT, Constraint
from transept.serving.errors import FieldError
from transept.serving.models import WritingModel
from transept.serving.tasks import TaskModel

to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_MARK = "\0"  # in the place of text
MAX_STOPS, MAX_STOP_IDS, MAX_BIASES = 16, 64, 1024

Text = Annotated[str, Field(max_length=2**22)]
Name = Annotated[str, Field(min_length=1, max_length=256)]
Stop = Annotated[str, Field(min_length=1, max_length=512)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Token = Annotated[int, Field(ge=0, le=2**31 - 1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Stops = Annotated[list[Stop], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]
# Seconds, or such as "5m", for which a model stays loaded; below 0 for ever.
KeepAlive = Annotated[
    Annotated[float, Field(ge=-1, le=2**31 - 1)] | Annotated[str, Field(max_length=32)], AfterValidator(seconds)
]


class Body(BaseModel):
    """The body of a request: a field that is not named here is refused, and so is a value of another type."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Using(Body):
    """A request that uses a model, and may say how long that stays loaded."""

    keep_alive: KeepAlive | None = None


class Reading(Using, ABC):
    """Inputs that a model reads; the model may be left out where one alone is for them."""

    model: Name | None = None

    @property
    @abstractmethod
    def items(self) -> Collection[Any]:
        """What is read; texts by their places in the request."""

    @abstractmethod
    async def answer(self, model: TaskModel, task: str) -> tuple[Any, int]:
        """The answer of that task, and how many tokens were read.

        Raises:
            InputError, ContextLengthError: what cannot be read.
        """


class StreamOptions(Body):
    """What a stream tells beside its text."""

    include_usage: bool = False


class Schema(Body):
    """A JSON schema that an answer is to fit, with its name."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    wanted: Annotated[dict[str, Any], Field(alias="schema")]
    description: Text | None = None
    strict: bool | None = None


class AnyText(Body):
    """Text as it comes."""

    type: Literal["text"]


class AnyObject(Body):
    """A JSON object of any form."""

    type: Literal["json_object"]


class OfSchema(Body):
    """JSON of a schema."""

    type: Literal["json_schema"]
    json_schema: Schema


class TextRequest(Using):
    """What all requests for texts have in common."""

    model: Name
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    stream: bool | None = None
    cache_salt: Annotated[str, Field(max_length=128)] | None = None
    # Taken, since clients send them, and of no effect.
    user: Annotated[str, Field(max_length=512)] | None = None
    metadata: Annotated[dict[str, Annotated[str, Field(max_length=512)]], Field(max_length=16)] | None = None
    safety_identifier: Annotated[str, Field(max_length=512)] | None = None
    prompt_cache_key: Annotated[str, Field(max_length=512)] | None = None
    store: Literal[False] | None = None
    service_tier: Literal["auto", "default"] | None = None


class Writing(TextRequest, ABC):
    """What completions and chats have in common; settings that are absent are the model's own."""

    reads: ClassVar[str]  # the field that prompts are made of
    names: ClassVar[tuple[str, str, str]]  # of an answer, of a chunk of one, and what its id begins with
    top_k: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    n: Annotated[int, Field(ge=1, le=16)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: Annotated[Stops, Field(max_length=MAX_STOPS)] | None = None
    stop_token_ids: Annotated[list[Token], Field(max_length=MAX_STOP_IDS)] | None = None
    logit_bias: Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=MAX_BIASES)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    ignore_eos: bool = False
    response_format: Annotated[AnyText | AnyObject | OfSchema, Field(discriminator="type")] | None = None
    stream_options: StreamOptions | None = None

    @property
    def form(self) -> Callable[[WritingModel], Constraint] | None:
        """What compiles what the answer must look like, where that matters (``InputError`` where that cannot be)."""
        schema = self.schema_of_answer
        return None if schema is None else lambda model: model.grammars.json_schema(schema)

    @property
    def schema_of_answer(self) -> dict[str, Any] | None:
        """The JSON schema that the answer is to fit, if any."""
        form = self.response_format
        return form.json_schema.wanted if isinstance(form, OfSchema) else JSON_OBJECT if isinstance(form, AnyObject) else None

    def settings(self, own: GenerationConfig, new: int, vocabulary: int) -> GenerationConfig:
        """Complete settings for so many new tokens: those of the request over the model's ``own``.

        Raises:
            InputError: a bias of a token that there is not, and what else cannot be.
        """
        found = GenerationConfig(max_new_tokens=new, do_sample=self.temperature != 0)
        for name in ("top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"):
            setattr(found, name, getattr(self, name))
        found.temperature = self.temperature or None
        if found.top_k is None:
            found.top_k = own.top_k or 0  # the library's own default is for texts that are sampled by hand
        found.min_new_tokens = self.min_tokens
        found.fill(own)
        found.max_length = None
        ends = [] if self.ignore_eos else end_tokens(found)
        found.eos_token_id = [*ends, *(self.stop_token_ids or ())] or None
        biases = {self._biased(token, vocabulary): bias for token, bias in (self.logit_bias or {}).items()}
        if self.ignore_eos:
            found.suppress_tokens = [*(found.suppress_tokens or ()), *end_tokens(own)] or None
        if biases:
            found.sequence_bias = {(token,): bias for token, bias in biases.items()}
        return found

    @staticmethod
    def _biased(token: str, vocabulary: int) -> int:
        if not token.isascii() or not token.isdigit() or len(token) > 10 or int(token) >= vocabulary:
            what = f"`logit_bias` names the token {token!r:.20}, but tokens are 0 to {vocabulary - 1}."
            raise FieldError("logit_bias", what)
        return int(token)

    @model_validator(mode="after")
    def _check_stream(self) -> Writing:
        if self.stream_options is not None and not self.stream:
            raise FieldError("stream_options", "`stream_options` is for streams alone; set `stream`.")
        return self

    @cached_property
    def head(self) -> dict[str, Any]:
        """What the answer and every chunk of it begins with."""
        whole, chunk, prefix = self.names
        about: dict[str, Any] = {"id": f"{prefix}-{uuid.uuid4().hex}", "object": chunk if self.stream else whole}
        about |= {"created": int(time.time()), "model": self.model}
        return about | ({"usage": None} if self.stream_options is not None and self.stream_options.include_usage else {})

    def opening(self, answers: int) -> list[dict[str, Any]]:
        """The choices that begin a stream."""
        return []

    def choices(self, piece: Piece) -> list[dict[str, Any]]:
        """The choices that chunks tell of a piece."""
        return [self.choice(piece.choice, [piece])]

    @abstractmethod
    def choice(self, index: int, pieces: list[Piece]) -> dict[str, Any]:
        """A choice that is not streamed."""

    def begins(self, answers: int) -> Iterator[Chunk]:
        """The chunks before the first piece."""
        return ({**self.head, "choices": [choice]} for choice in self.opening(answers))

    def tells(self, piece: Piece) -> Iterator[Chunk]:
        """The chunks of a piece; of plain text, all but the text is written once for the whole stream."""
        events, finish, tokens = piece.events, piece.finish, piece.tokens
        if finish is None and not tokens and len(events) == 1 and isinstance(events[0], TextDelta):
            if piece.choice not in self._around:
                (example,) = self.choices(piece._replace(events=[TextDelta(_MARK)]))
                before, _, after = to_json({**self.head, "choices": [example]}).partition(to_json(_MARK))
                self._around[piece.choice] = before, after
            before, after = self._around[piece.choice]
            return iter((f"{before}{to_json(events[0].text)}{after}",))
        return ({**self.head, "choices": [choice]} for choice in self.choices(piece))

    def ends(self, usage: Usage) -> Iterator[Chunk]:
        """The last chunks."""
        if "usage" in self.head:
            yield {**self.head, "choices": [], "usage": usage.told()}
        yield "[DONE]"

    def fails(self, error: dict[str, Any]) -> Iterator[Chunk]:
        """The last chunk of an answer that cannot be finished."""
        yield error

    def whole(self, pieces: list[list[Piece]], usage: Usage) -> dict[str, Any]:
        """An answer that is not streamed."""
        choices = [self.choice(index, own) for index, own in enumerate(pieces)]
        return {**self.head, "choices": choices, "usage": usage.told()}

    _around: dict[int, tuple[str, str]] = PrivateAttr(default_factory=dict)  # the JSON around the text, for each choice
