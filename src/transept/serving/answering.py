"""Answers of one request: rows of the engine, whose tokens become text."""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

from transept.errors import TranseptError
from transept.generation.config import GenerationConfig
from transept.generation.prompt import end_tokens
from transept.preprocess.text.answers import TextDelta
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


Put = Callable[[Piece | TranseptError], object]
Chunk = dict[str, Any] | str


class _Answer:
    """One answer: a row of the engine, whose tokens become pieces.

    Args:
        index: of the answer, in its request.
        prompt, model: what is written on from, and who writes.
        put: takes the pieces, or the error that ends the answer.
        seed, salt: of the row.
    """

    def __init__(self, index: int, prompt: Prompt, model: WritingModel, put: Put, seed: int | None, salt: bytes) -> None:
        self._index, self._prompt, self._bytes, self._put = index, prompt, model.token_bytes, put
        self.writer = writer = Writer(
            model.tokenizer,
            prompt.ids,
            max_tokens=prompt.settings.max_new_tokens or 1,
            ends=end_tokens(prompt.settings),
            stop=prompt.stop,
            reader=copy.deepcopy(prompt.reader),
        )
        self._telling = None if prompt.logprobs is None else Telling(self._bytes, writer, ends=prompt.echo is not None)
        self._told: list[Told] = []
        self._echoed = [Chosen(index) for index in prompt.ids[:1]]  # the tokens of the prompt with their scores
        opens, form = prompt.reader is not None and prompt.reader.may_reason, prompt.constraint
        self._constraint = None if form is None else form.of_row(lambda: writer.is_reasoning, may_open=opens)
        held = () if self._constraint is None else (self._constraint,)
        salt += b"" if prompt.pictures is None else prompt.pictures.digest
        self.request = Request(prompt.ids, prompt.settings, self._take, put, seed, prompt.logprobs, held, salt)
        self.request.echo = None if prompt.echo is None or self._telling is None else self._echoed.extend
        self.request.pictures = prompt.pictures

    def _take(self, chosen: Chosen, finish: str | None) -> bool:
        """Take a token, in the engine's thread; gives whether nothing more is to be written."""
        prompt, writer, events = self._prompt, self.writer, list[Delta]()
        if prompt.echo is not None and not writer.tokens:
            events.append(TextDelta(prompt.echo))
            self._told += [] if self._telling is None else of_prompt(prompt.echo, self._echoed, self._bytes)
        if prompt.writes:
            complete = self._constraint is not None and self._constraint.accept(chosen.token)
            events += writer.feed(chosen.token, complete=complete)
            self._told += [] if self._telling is None else self._telling.feed(chosen)
        else:
            events += writer.end("length")
        if events or writer.finish_reason is not None:
            self._put(Piece(self._index, events, writer.finish_reason, tuple(self._told)))
            self._told.clear()
        return writer.finish_reason is not None


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
        self, model: WritingModel, prompts: Sequence[Prompt], *, streams: bool, n: int, seed: int | None, salt: bytes
    ) -> None:
        self._model, self._streams, self._n = model, streams, n
        self._arrived, self._event = deque[Piece | TranseptError | None](), asyncio.Event()
        seeds = [None if seed is None else (seed + number) % 2**63 for number in range(n)]
        rows = enumerate(product(prompts, seeds))
        self._answers = [_Answer(index, prompt, model, self._put, own, salt) for index, (prompt, own) in rows]

    def _put(self, item: Piece | TranseptError) -> None:
        """Take a piece, or what ends an answer, in the engine's thread."""
        self._arrived.append(item)
        if self._streams or isinstance(item, TranseptError) or item.finish is not None:
            self._model.mailbox.put(self._event)

    def __len__(self) -> int:
        return len(self._answers)

    def submit(self) -> None:
        """Give all to the engine, or none.

        Raises:
            InputError, BusyError: the engine refuses one.
        """
        try:
            for answer in self._answers:
                self._model.engine.submit(answer.request)
        except TranseptError:
            self.close()
            raise

    async def pieces(self, quiet: float) -> AsyncIterator[list[Piece]]:
        """The pieces that have come each time, until all answers have ended, and none where none came for so many seconds.

        Raises:
            TranseptError: what ends an answer.
        """
        left, loop = len(self), asyncio.get_running_loop()
        while left:
            timer = loop.call_later(quiet, self._tick)  # a fifth of what a timeout costs
            try:
                await self._event.wait()
            finally:
                timer.cancel()
            self._event.clear()
            found, is_quiet, error = list[Piece](), False, None
            while self._arrived and error is None:
                item = self._arrived.popleft()
                if isinstance(item, Piece):
                    found.append(item)
                    left -= item.finish is not None
                else:
                    is_quiet, error = item is None, item
            if found or is_quiet:  # else what it was woken for had come before
                yield found
            if error is not None:
                raise error

    def _tick(self) -> None:
        """Say that nothing has come for a while."""
        self._arrived.append(None)
        self._event.set()

    def close(self) -> bool:
        """Write nothing more; gives whether there was more to write."""
        left = [answer.request for answer in self._answers if answer.writer.finish_reason is None]
        for request in left:
            if request.number >= 0:
                self._model.engine.cancel(request.number)
        return bool(left)

    @property
    def usage(self) -> Usage:
        """Tokens so far; those of a prompt count once."""
        firsts, writers = [each.request for each in self._answers[:: self._n]], [each.writer for each in self._answers]
        read, cached = sum(len(request.ids) for request in firsts), sum(request.cached for request in firsts)
        written, reasoning = sum(each.tokens for each in writers), sum(each.reasoning_tokens for each in writers)
        return Usage(read, written, cached, reasoning)
