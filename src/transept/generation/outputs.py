"""What ``generate`` gives beside ids: outputs with what was recorded of its steps, and text while it is written.

Shapes: R rows (prompts times returned sequences), T ids, N new ids, V vocabulary.
"""

from __future__ import annotations

import asyncio
import queue
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from transept.errors import GenerationError, InputError, refuse
from transept.generation.config import GenerationConfig
from transept.generation.detokenizer import Detokenizer
from transept.layers.caches.cache import Cache
from transept.outputs import ModelOutput

# One entry a step, each one a layer.
Steps = tuple[tuple[Tensor, ...], ...]


class GenerateOutput(ModelOutput):
    """``sequences`` (R, T) with the prompt, of the decoder where there is an encoder, and what was chosen by.

    ``scores`` and ``logits`` are one (R, V) a new token, with and without processors; ``logprobs`` (R, N) those of the new
    tokens after the processors; ``top_logprobs`` and ``top_tokens`` (R, N, k) those of the most likely ones.
    """

    # What a subclass shows of the model stands before these.
    _ranks = dict.fromkeys(("past_key_values", "logprobs", "top_logprobs", "top_tokens"), 1)
    _ranks |= {"sequences_scores": 2, "beam_indices": 2}

    sequences: Tensor
    scores: tuple[Tensor, ...] | None = None
    logits: tuple[Tensor, ...] | None = None
    past_key_values: Cache | None = None
    logprobs: Tensor | None = None
    top_logprobs: Tensor | None = None
    top_tokens: Tensor | None = None


class GenerateDecoderOnlyOutput(GenerateOutput):
    """With what the decoder has shown."""

    attentions: Steps | None = None
    hidden_states: Steps | None = None


class GenerateEncoderDecoderOutput(GenerateOutput):
    """With what the encoder and the decoder have shown."""

    encoder_attentions: tuple[Tensor, ...] | None = None
    encoder_hidden_states: tuple[Tensor, ...] | None = None
    decoder_attentions: Steps | None = None
    cross_attentions: Steps | None = None
    decoder_hidden_states: Steps | None = None


class GenerateBeamDecoderOnlyOutput(GenerateDecoderOnlyOutput):
    """``sequences_scores`` (R) are the beams' final scores; ``beam_indices`` (R, N) the row each token came from, -1 after."""

    sequences_scores: Tensor | None = None
    beam_indices: Tensor | None = None


class GenerateBeamEncoderDecoderOutput(GenerateEncoderDecoderOutput):
    """The same of an encoder–decoder."""

    sequences_scores: Tensor | None = None
    beam_indices: Tensor | None = None


DECODER = (GenerateDecoderOnlyOutput, GenerateBeamDecoderOnlyOutput)  # without and with beams
SEQ2SEQ = (GenerateEncoderDecoderOutput, GenerateBeamEncoderDecoderOutput)


class Record:
    """Lists with one entry a step, of what the settings ask for."""

    def __init__(self, settings: GenerationConfig) -> None:
        self.settings, self.kept = settings, dict[str, list[Any]]()
        self.done: Tensor | None = None

    def step(self, outputs: Any, logits: Tensor, scores: Tensor, tokens: Any = None, done: Tensor | None = None) -> None:
        """Keep what is wanted of a step: of the model's output, and of what tokens (R) were chosen by, (R, V) each.

        Log-probabilities are those of the tokens, and zeros for rows that were done before.
        """
        s, best = self.settings, self.settings.output_logprobs
        if not s.return_dict_in_generate:
            return
        found: dict[str, Any] = {"logits": logits if s.output_logits else None, "scores": scores if s.output_scores else None}
        shown = ["attentions", "cross_attentions"] if s.output_attentions else []
        shown += ["hidden_states"] if s.output_hidden_states else []
        if outputs is not None:
            found |= {name: outputs.get(name) for each in shown for name in (each, f"decoder_{each}")}
        if best is not None and best is not False and tokens is not None:
            chances = scores.log_softmax(dim=-1)
            values, index = chances.topk(0 if best is True else min(best, chances.shape[-1]))
            ended = torch.zeros_like(tokens, dtype=torch.bool) if self.done is None else self.done
            found["logprobs"] = chances.gather(1, tokens[:, None])[:, 0].masked_fill(ended, 0)
            if values.shape[1]:
                found["top_logprobs"] = values.masked_fill(ended[:, None], 0)
                found["top_tokens"] = index.masked_fill(ended[:, None], 0)
        self.done = done
        for name, value in found.items():
            if value is not None:
                self.kept.setdefault(name, []).append(value)

    def result(self) -> dict[str, Any]:
        """By the names of the output: tuples of steps, and tensors (R, N, ...) of log-probabilities."""
        stacked = ("logprobs", "top_logprobs", "top_tokens")
        return {name: torch.stack(steps, dim=1) if name in stacked else tuple(steps) for name, steps in self.kept.items()}


def transition_scores(
    sequences: Tensor, scores: tuple[Tensor, ...], beam_indices: Tensor | None = None, normalize_logits: bool = False
) -> Tensor:
    """What each new token was scored when it was written, (R, N), 0 behind the end of beams.

    Args:
        sequences, scores, beam_indices: what ``generate`` returned, with ``output_scores=True``; the last for beams.
        normalize_logits: turn scores into log-probabilities first, which those of beams already are.

    Raises:
        InputError: they do not belong together.
    """
    refuse(not scores, "there are no scores.", "Pass what generate() returns with output_scores=True.")
    if beam_indices is None:
        beam_indices = torch.arange(sequences.shape[0], device=sequences.device)[:, None].expand(-1, len(scores))
    beam_indices = beam_indices[:, : int((beam_indices >= 0).sum(dim=1).max())]
    new = beam_indices.shape[1]
    wrong = not 0 < new <= min(len(scores), sequences.shape[1]) or int(beam_indices.max()) >= scores[0].shape[0]
    what = f"{len(scores)} scores of {tuple(scores[0].shape)} are not those of sequences of {tuple(sequences.shape)}."
    refuse(wrong, what, "Pass all that one call has returned; `beam_indices` too, where there are beams.")
    steps = (step.log_softmax(dim=-1) if normalize_logits else step for step in scores[:new])
    rows, tokens = beam_indices.clamp(min=0), sequences[:, -new:]
    found = [step[rows[:, place], tokens[:, place]] for place, step in enumerate(steps)]
    return torch.stack(found, dim=1).masked_fill(beam_indices < 0, 0.0)


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


class BaseStreamer:
    """Base of what ``generate`` passes new tokens to."""

    def put(self, value: Any) -> None:
        """Take ids: first those of the prompt, then each new one."""
        raise NotImplementedError

    def end(self) -> None:
        """Nothing more comes."""
        raise NotImplementedError


class TextStreamer(BaseStreamer):
    """Prints text while ``generate`` writes it; one row only.

    Args:
        tokenizer: of the model.
        skip_prompt: do not print the prompt.
        decode_kwargs: ``skip_special_tokens``.
    """

    def __init__(self, tokenizer: Any, skip_prompt: bool = False, **decode_kwargs: Any) -> None:
        self.tokenizer, self.skip_prompt, self.in_prompt = tokenizer, skip_prompt, True
        self.skip_special_tokens = bool(decode_kwargs.get("skip_special_tokens"))
        self.decoder = Detokenizer(tokenizer, self.skip_special_tokens)

    def put(self, value: Tensor) -> None:
        """Take ids (1, T) or (1); ``InputError`` for more than one row."""
        if value.ndim > 1 and value.shape[0] > 1:
            raise InputError(f"a streamer takes one row, but the batch has {value.shape[0]}.", hint="Use model.stream(...).")
        skipped, self.in_prompt = self.in_prompt and self.skip_prompt, False
        if not skipped and (text := self.decoder.add(value.flatten().tolist())):
            self.on_finalized_text(text)

    def end(self) -> None:
        """Show the rest, and be ready for another answer."""
        self.on_finalized_text(self.decoder.end(), stream_end=True)
        self.decoder, self.in_prompt = Detokenizer(self.tokenizer, self.skip_special_tokens), True

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """What is done with text that will not change; subclasses send it elsewhere."""
        sys.stdout.write(text + ("\n" if stream_end else ""))
        sys.stdout.flush()


class TextIteratorStreamer(TextStreamer):
    """Text as an iterator, from a ``generate`` that runs in another thread; see :class:`TextStreamer`.

    ``timeout`` is in seconds for each piece; without end when ``None``.
    """

    def __init__(self, tokenizer: Any, skip_prompt: bool = False, timeout: float | None = None, **decode_kwargs: Any) -> None:
        super().__init__(tokenizer, skip_prompt, **decode_kwargs)
        self.timeout, self.pieces = timeout, self._queue()

    def _queue(self) -> Any:
        return queue.Queue()

    def _put(self, piece: str | None) -> None:
        self.pieces.put(piece)

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        for piece in (text, None) if stream_end else (text,):
            self._put(piece)

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

    def _late(self) -> GenerationError:
        return GenerationError(f"no text came for {self.timeout} seconds.", hint="Look at the thread that runs generate().")


class AsyncTextIteratorStreamer(TextIteratorStreamer):
    """The same for ``async for``; ``InputError`` where it is made and no event loop runs."""

    def _queue(self) -> Any:
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
