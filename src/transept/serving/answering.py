"""Answers of one request: rows of the engine, whose tokens become text."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from transept.errors import TranseptError
from transept.generation.config import GenerationConfig
from transept.preprocess.text.answers import AnswerReader, Event
from transept.serving.engine.constraint import Constraint, Matcher
from transept.serving.engine.engine import Request
from transept.serving.engine.logprobs import Telling, Told
from transept.serving.engine.sampler import Chosen
from transept.serving.engine.writer import Writer
from transept.serving.models import WritingModel


class Piece(NamedTuple):
    """What a token of one answer makes certain; the last piece says why it ends."""

    choice: int
    events: list[Event]
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
    reader: AnswerReader | None = None
    logprobs: int | None = None  # how many of the likeliest tokens are told with each token
    matcher: Matcher | None = None  # of what the answer must look like


class Answers:
    """The answers to some prompts, ``n`` for each, numbered prompt by prompt.

    Iterate to have their pieces as they come; whoever stops early calls :meth:`close`, so that nothing more is written.

    Args:
        model: that writes.
        prompts: what it goes on from.
        n: answers for each.
        seed: of the drawing; the answers of a prompt have this one and those that follow it.
        salt: answers of another one share no prefix.
    """

    def __init__(
        self, model: WritingModel, prompts: Sequence[Prompt], *, n: int = 1, seed: int | None = None, salt: bytes = b""
    ) -> None:
        self.model, self.queue = model, asyncio.Queue[Piece | TranseptError]()
        self.writers: list[Writer] = []
        self.requests: list[Request] = []
        self.prompts = [len(prompt.ids) for prompt in prompts]
        for prompt in prompts:
            for number in range(n):
                self._add(prompt, None if seed is None else (seed + number) % 2**63, salt)

    def _add(self, prompt: Prompt, seed: int | None, salt: bytes) -> None:
        index, settings = len(self.writers), prompt.settings
        ends = settings.eos_token_id or []
        writer = Writer(
            self.model.tokenizer,
            prompt.ids,
            max_tokens=settings.max_new_tokens or 1,
            ends=[ends] if isinstance(ends, int) else ends,
            stop=prompt.stop,
            reader=copy.deepcopy(prompt.reader),
        )

        telling = None if prompt.logprobs is None else Telling(self.model.token_bytes, writer)
        told: list[Told] = []
        constraint = None if prompt.matcher is None else Constraint(prompt.matcher.copy(), lambda: writer.is_reasoning)

        def take(chosen: Chosen, finish: str | None) -> bool:
            complete = constraint is not None and constraint.accept(chosen.token)
            events = writer.feed([chosen.token])
            if complete:
                events += writer.end("stop")
                writer.finish_reason = "stop"  # whatever the number of tokens
            if telling is not None:
                told.extend(telling.feed(chosen))
            if events or writer.finish_reason is not None:
                self.model.mailbox.put(self.queue, Piece(index, events, writer.finish_reason, tuple(told)))
                told.clear()
            return writer.finish_reason is not None

        def fail(error: TranseptError) -> None:
            self.model.mailbox.put(self.queue, error)

        self.writers.append(writer)
        held = () if constraint is None else (constraint,)
        request = Request(prompt.ids, settings, take, fail, seed, prompt.logprobs, held, salt)
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

    async def __aiter__(self) -> AsyncIterator[Piece]:
        """The pieces, until all answers have ended; raises the error that ends one."""
        left = len(self.requests)
        while left:
            piece = await self.queue.get()
            if isinstance(piece, TranseptError):
                raise piece
            left -= piece.finish is not None
            yield piece

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
