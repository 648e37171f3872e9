"""Answers of one request: rows of the engine, whose tokens become text."""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from transept.errors import TranseptError
from transept.generation.config import GenerationConfig
from transept.preprocess.text.answers import TextDelta
from transept.preprocess.text.token_bytes import TokenBytes
from transept.serving.engine.calls import CallReader, Delta
from transept.serving.engine.constraint import Constraint
from transept.serving.engine.engine import Request
from transept.serving.engine.logprobs import Telling, Told, of_prompt
from transept.serving.engine.pictures import Pictures
from transept.serving.engine.sampler import Chosen
from transept.serving.engine.writer import Writer
from transept.serving.models import WritingModel


class Piece(NamedTuple):
    """What a token of one answer makes certain; the last piece says why it ends."""

    choice: int
    events: list[Delta]
    finish: str | None
    tokens: Sequence[Told] = ()  # of the text so far, where log-probabilities are asked for


@dataclass
class Usage:
    """Tokens of a request."""

    prompt: int = 0
    written: int = 0
    cached: int = 0
    reasoning: int = 0

    def told(self) -> dict[str, object]:
        """As clients know it."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.written,
            "total_tokens": self.prompt + self.written,
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning},
        }


@dataclass
class Prompt:
    """One prompt, and what is to be made of the text behind it."""

    ids: list[int]
    settings: GenerationConfig
    stop: Sequence[str] = ()
    reader: CallReader | None = None
    logprobs: int | None = None  # how many of the likeliest tokens are told with each token
    constraint: Constraint | None = None  # of the answers
    echo: str | None = None  # what is shown before the answer
    pictures: Pictures | None = None
    writes: bool = True  # else the prompt is read and scored alone


class _Answer:
    """Makes pieces of the tokens of one row.

    Args:
        index: of the answer, in its request.
        prompt, tokenizer, bytes_of: what the text depends on.
        put: takes the pieces.
    """

    def __init__(
        self, index: int, prompt: Prompt, tokenizer: Any, bytes_of: TokenBytes, put: Callable[[Piece | TranseptError], object]
    ) -> None:
        self._index, self._prompt, self._bytes, self.put = index, prompt, bytes_of, put
        ends = prompt.settings.eos_token_id or []
        self.writer = writer = Writer(
            tokenizer,
            prompt.ids,
            max_tokens=prompt.settings.max_new_tokens or 1,
            ends=[ends] if isinstance(ends, int) else ends,
            stop=prompt.stop,
            reader=copy.deepcopy(prompt.reader),
        )
        tells, echoes = prompt.logprobs is not None, prompt.echo is not None
        self._telling = Telling(bytes_of, writer, ends=echoes) if tells else None
        self._told: list[Told] = []
        self.echoed = [Chosen(index) for index in prompt.ids[:1]]  # the tokens of the prompt with their scores
        opens = prompt.reader is not None and prompt.reader.may_reason
        form = prompt.constraint
        self.constraint = None if form is None else form.of_row(lambda: writer.is_reasoning, may_open=opens)

    def take(self, chosen: Chosen, finish: str | None) -> bool:
        """Take a token, in the engine's thread; gives whether nothing more is to be written."""
        prompt, writer, events = self._prompt, self.writer, list[Delta]()
        if prompt.echo is not None and not writer.tokens:
            events.append(TextDelta(prompt.echo))
            self._told += [] if self._telling is None else of_prompt(prompt.echo, self.echoed, self._bytes)
        events += self._write(chosen) if prompt.writes else writer.end("length")
        if events or writer.finish_reason is not None:
            self.put(Piece(self._index, events, writer.finish_reason, tuple(self._told)))
            self._told.clear()
        return writer.finish_reason is not None

    def _write(self, chosen: Chosen) -> list[Delta]:
        complete = self.constraint is not None and self.constraint.accept(chosen.token)
        events = self.writer.feed([chosen.token], complete=complete)
        if self._telling is not None:
            self._told += self._telling.feed(chosen)
        return events


Chunk = dict[str, Any] | str


class Answers:
    """The answers to some prompts, ``n`` for each, numbered prompt by prompt.

    :meth:`pieces` gives them as they come; whoever stops early calls :meth:`close`, so that nothing more is written.

    Args:
        model: that writes.
        prompts: what it goes on from.
        streams: whether pieces are wanted one by one; without, nobody is woken before an answer is whole.
        n: answers for each.
        seed: of the drawing; the answers of a prompt have this one and those that follow it.
        salt: answers of another one share no prefix.
    """

    def __init__(
        self,
        model: WritingModel,
        prompts: Sequence[Prompt],
        *,
        streams: bool,
        n: int = 1,
        seed: int | None = None,
        salt: bytes = b"",
    ) -> None:
        self.model, self.streams, self._arrived, self._event = (
            model,
            streams,
            deque[Piece | TranseptError | None](),
            asyncio.Event(),
        )
        self.writers: list[Writer] = []
        self.requests: list[Request] = []
        self.prompts = [len(prompt.ids) for prompt in prompts]
        for prompt in prompts:
            for number in range(n):
                self._add(prompt, None if seed is None else (seed + number) % 2**63, salt)

    def _add(self, prompt: Prompt, seed: int | None, salt: bytes) -> None:
        index, model = len(self.requests), self.model
        answer = _Answer(index, prompt, model.tokenizer, model.token_bytes, self._put)
        held = () if answer.constraint is None else (answer.constraint,)
        salt += b"" if prompt.pictures is None else prompt.pictures.digest
        request = Request(prompt.ids, prompt.settings, answer.take, answer.put, seed, prompt.logprobs, held, salt)
        request.echo = answer.echoed.extend if prompt.echo is not None and prompt.logprobs is not None else None
        request.pictures = prompt.pictures
        self.writers.append(answer.writer)
        self.requests.append(request)

    def submit(self) -> None:
        """Give all to the engine, or none.

        Raises:
            InputError, BusyError: the engine refuses one.
        """
        try:
            for request in self.requests:
                self.model.engine.submit(request)
        except TranseptError:
            self.close()
            raise

    def _put(self, item: Piece | TranseptError) -> None:
        """Take a piece, or what ends an answer, in the engine's thread."""
        self._arrived.append(item)
        if self.streams or isinstance(item, TranseptError) or item.finish is not None:
            self.model.mailbox.put(self._event)

    async def pieces(self, quiet: float) -> AsyncIterator[list[Piece]]:
        """The pieces that have come each time, until all answers have ended, and none where none came for so many seconds.

        Raises:
            TranseptError: what ends an answer.
        """
        left, loop = len(self.requests), asyncio.get_running_loop()
        while left:
            timer = loop.call_later(quiet, self._tick)  # a fifth of what a timeout costs
            try:
                await self._event.wait()
            finally:
                timer.cancel()
            self._event.clear()
            arrived = [self._arrived.popleft() for _ in range(len(self._arrived))]
            found = [each for each in arrived if isinstance(each, Piece)]
            left -= sum(piece.finish is not None for piece in found)
            if found or None in arrived:  # else what it was woken for had come before
                yield found
            for error in arrived:
                if isinstance(error, TranseptError):
                    raise error

    def _tick(self) -> None:
        """Say that nothing has come for a while."""
        self._arrived.append(None)
        self._event.set()

    def close(self) -> None:
        """Write nothing more."""
        for request, writer in zip(self.requests, self.writers, strict=True):
            if request.number >= 0 and writer.finish_reason is None:
                self.model.engine.cancel(request.number)

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        written, reasoning = (sum(getattr(each, name) for each in self.writers) for name in ("tokens", "reasoning_tokens"))
        first = self.requests[:: max(len(self.requests) // len(self.prompts), 1)]
        return Usage(sum(self.prompts), written, sum(request.cached for request in first), reasoning)
