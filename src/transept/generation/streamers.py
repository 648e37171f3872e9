"""Text as it is written: whole characters only, and together the same text as decoding it all at once."""

from __future__ import annotations

import asyncio
import queue
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from transept.errors import GenerationError, InputError

# What decoders give for bytes that are no character yet.
_INCOMPLETE = "\ufffd"
# Bytes of one character at most; more tokens that decode to nothing whole will never become a character.
_PATIENCE = 8


@dataclass(frozen=True)
class Stats:
    """How fast it went: ids read and written, seconds to the first token and in all."""

    prompt_tokens: int
    new_tokens: int
    seconds_to_first_token: float
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """New tokens a second behind the first one."""
        return (self.new_tokens - 1) / max(self.seconds - self.seconds_to_first_token, 1e-9)


@dataclass(frozen=True)
class Piece:
    """What one step added to one row.

    ``text`` may be empty while a character is incomplete. ``finish_reason`` stands in a row's last piece: ``"stop"`` for an
    end token or a stopping criterion, ``"length"`` where the row is full; ``stats`` in the very last piece.
    """

    text: str
    ids: list[int]
    logprobs: list[float]
    row: int = 0
    finish_reason: str | None = None
    stats: Stats | None = None


@dataclass
class Detokenizer:
    """Ids to text, a few at a time.

    A token's text depends on its neighbours (spaces, joined bytes), so each piece is what the last tokens decode to beyond
    what they decoded to without the new ones.

    Args:
        tokenizer: of the model.
        skip_special_tokens: leave them out.
    """

    tokenizer: Any
    skip_special_tokens: bool = True
    ids: list[int] = field(default_factory=list)
    begin: int = 0
    shown: int = 0

    def add(self, ids: list[int]) -> str:
        """The text that these ids complete."""
        self.ids += ids
        return self.end(last=False)

    def end(self, last: bool = True) -> str:
        """What was held back, or, if more ids may come, what of it is sure."""
        before, text = self._decode(self.ids[self.begin : self.shown]), self._decode(self.ids[self.begin :])
        incomplete = text.endswith(_INCOMPLETE) and len(self.ids) - self.shown < _PATIENCE
        if not last and (len(text) <= len(before) or incomplete):
            return ""
        self.begin, self.shown = self.shown, len(self.ids)
        return text[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        text: str = self.tokenizer.decode(ids, skip_special_tokens=self.skip_special_tokens)
        return text


class TextStreamer:
    """Prints text while ``generate`` writes it; one row only.

    Args:
        tokenizer: of the model.
        skip_prompt: do not print the prompt.
        decode_kwargs: ``skip_special_tokens``.
    """

    def __init__(self, tokenizer: Any, skip_prompt: bool = False, **decode_kwargs: Any) -> None:
        self.tokenizer, self.skip_prompt = tokenizer, skip_prompt
        self.skip_special_tokens = bool(decode_kwargs.pop("skip_special_tokens", False))
        self._begin()

    def _begin(self) -> None:
        self.decoder, self.in_prompt = Detokenizer(self.tokenizer, self.skip_special_tokens), True

    def put(self, value: Tensor) -> None:
        """Take ids (1, T) or (1).

        Raises:
            InputError: more than one row.
        """
        if value.ndim > 1 and value.shape[0] > 1:
            raise InputError(f"a streamer takes one row, but the batch has {value.shape[0]}.", hint="Use model.stream(...).")
        skipped, self.in_prompt = self.in_prompt and self.skip_prompt, False
        if not skipped and (text := self.decoder.add(value.flatten().tolist())):
            self.on_finalized_text(text)

    def end(self) -> None:
        """Show the rest, and be ready for another answer."""
        self.on_finalized_text(self.decoder.end(), stream_end=True)
        self._begin()

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """What is done with text that will not change; subclasses send it elsewhere."""
        sys.stdout.write(text + ("\n" if stream_end else ""))
        sys.stdout.flush()


class _Queued(TextStreamer):
    """Puts text into a queue, ``None`` behind the last piece, for a reader while ``generate`` runs in another thread.

    Args:
        tokenizer, skip_prompt, decode_kwargs: see :class:`TextStreamer`.
        timeout: seconds to wait for a piece; without end when ``None``.
    """

    def __init__(self, tokenizer: Any, skip_prompt: bool = False, timeout: float | None = None, **decode_kwargs: Any) -> None:
        super().__init__(tokenizer, skip_prompt, **decode_kwargs)
        self.timeout, self.pieces = timeout, self._queue()

    def _queue(self) -> Any:
        raise NotImplementedError

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        for piece in (text, None) if stream_end else (text,):
            self._put(piece)

    def _put(self, piece: str | None) -> None:
        raise NotImplementedError

    def _late(self) -> GenerationError:
        return GenerationError(f"no text came for {self.timeout} seconds.", hint="Look at the thread that runs generate().")


class TextIteratorStreamer(_Queued):
    """Text as an iterator, from a ``generate`` that runs in another thread; arguments as for :class:`_Queued`."""

    def _queue(self) -> queue.Queue[str | None]:
        return queue.Queue()

    def _put(self, piece: str | None) -> None:
        self.pieces.put(piece)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        try:
            piece: str | None = self.pieces.get(timeout=self.timeout)
        except queue.Empty as error:
            raise self._late() from error
        if piece is None:
            raise StopIteration
        return piece


class AsyncTextIteratorStreamer(_Queued):
    """Text for ``async for``, from a ``generate`` that runs in another thread; arguments as for :class:`_Queued`.

    Raises:
        InputError: no event loop runs where it is made.
    """

    def _queue(self) -> asyncio.Queue[str | None]:
        try:
            self.loop = asyncio.get_running_loop()
        except RuntimeError:
            hint = "Make it in the coroutine that reads it."
            raise InputError("an AsyncTextIteratorStreamer needs a running event loop.", hint=hint) from None
        return asyncio.Queue()

    def _put(self, piece: str | None) -> None:
        self.loop.call_soon_threadsafe(self.pieces.put_nowait, piece)

    def __aiter__(self) -> AsyncTextIteratorStreamer:
        return self

    async def __anext__(self) -> str:
        try:
            async with asyncio.timeout(self.timeout):
                piece: str | None = await self.pieces.get()
        except TimeoutError as error:
            raise self._late() from error
        if piece is None:
            raise StopAsyncIteration
        return piece


class Clock:
    """Seconds to the first token and to the last one."""

    def __init__(self, prompt_tokens: int) -> None:
        self.prompt_tokens, self.start, self.first = prompt_tokens, time.perf_counter(), 0.0

    def stats(self, written: int) -> Stats:
        return Stats(self.prompt_tokens, written, self.first, time.perf_counter() - self.start)

    def tick(self) -> None:
        self.first = self.first or time.perf_counter() - self.start
