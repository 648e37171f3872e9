"""What ``generate`` returns when asked for more than ids, and what it records of its steps for that.

Shapes: R rows (prompts times returned sequences), T ids, N new ids, V vocabulary, W beams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from transept.errors import InputError
from transept.layers.cache import Cache
from transept.outputs import ModelOutput

# One entry a step, each one a layer.
Steps = tuple[tuple[Tensor, ...], ...]


class GenerateDecoderOnlyOutput(ModelOutput):
    """``sequences`` (R, T), with the prompt; ``scores`` and ``logits`` one (R, V) a new token, with and without processors.

    ``logprobs`` (R, N) are those of the new tokens after the processors; ``top_logprobs`` and ``top_tokens`` (R, N, k) those
    of the most likely ones.
    """

    sequences: Tensor
    scores: tuple[Tensor, ...] | None = None
    logits: tuple[Tensor, ...] | None = None
    attentions: Steps | None = None
    hidden_states: Steps | None = None
    past_key_values: Cache | None = None
    logprobs: Tensor | None = None
    top_logprobs: Tensor | None = None
    top_tokens: Tensor | None = None


class GenerateEncoderDecoderOutput(ModelOutput):
    """``sequences`` (R, T) of the decoder; what the encoder showed beside what the decoder did."""

    sequences: Tensor
    scores: tuple[Tensor, ...] | None = None
    logits: tuple[Tensor, ...] | None = None
    encoder_attentions: tuple[Tensor, ...] | None = None
    encoder_hidden_states: tuple[Tensor, ...] | None = None
    decoder_attentions: Steps | None = None
    cross_attentions: Steps | None = None
    decoder_hidden_states: Steps | None = None
    past_key_values: Cache | None = None
    logprobs: Tensor | None = None
    top_logprobs: Tensor | None = None
    top_tokens: Tensor | None = None


class GenerateBeamDecoderOnlyOutput(GenerateDecoderOnlyOutput):
    """``sequences_scores`` (R) are the beams' final scores; ``beam_indices`` (R, N) the row each token came from, -1 after."""

    sequences_scores: Tensor | None = None
    beam_indices: Tensor | None = None


class GenerateBeamEncoderDecoderOutput(GenerateEncoderDecoderOutput):
    """``sequences_scores`` (R) are the beams' final scores; ``beam_indices`` (R, N) the row each token came from, -1 after."""

    sequences_scores: Tensor | None = None
    beam_indices: Tensor | None = None


# By whether there are beams, and whether there is an encoder.
OUTPUTS: dict[tuple[bool, bool], Callable[..., ModelOutput]] = {
    (False, False): GenerateDecoderOnlyOutput,
    (False, True): GenerateEncoderDecoderOutput,
    (True, False): GenerateBeamDecoderOnlyOutput,
    (True, True): GenerateBeamEncoderDecoderOutput,
}


@dataclass
class Record:
    """Lists with one entry a step; those that nobody asked for stay empty.

    Args:
        logits, scores: keep (R, V) before and after the processors.
        best: how many of the most likely tokens to keep log-probabilities of; ``None`` for none, also of those chosen.
        shown: what to keep of the model's outputs, such as ``attentions``.
    """

    logits: bool = False
    scores: bool = False
    best: int | None = None
    shown: tuple[str, ...] = ()
    kept: dict[str, list[Any]] = field(default_factory=dict)
    done: Tensor | None = None

    def step(self, outputs: ModelOutput | None, logits: Tensor, scores: Tensor) -> None:
        """Keep what is wanted of a step: of the model's output, and of what tokens were chosen by."""
        if self.logits:
            self._add("logits", logits)
        if self.scores:
            self._add("scores", scores)
        for name in (each for shown in self.shown for each in (shown, f"decoder_{shown}")):
            if outputs is not None and (value := outputs.get(name)) is not None:
                self._add(name, value)

    def chosen(self, scores: Tensor, tokens: Tensor, done: Tensor) -> None:
        """Keep the log-probabilities of tokens (R), with zeros for rows that were done before."""
        if self.best is not None:
            chances = scores.log_softmax(dim=-1)
            values, index = chances.topk(min(self.best, chances.shape[-1]))
            found = {"logprobs": chances.gather(1, tokens[:, None])[:, 0]}
            found |= {"top_logprobs": values, "top_tokens": index} if self.best else {}
            for name, part in found.items():
                ended = None if self.done is None else self.done.view(-1, *[1] * (part.ndim - 1))
                self._add(name, part if ended is None else part.masked_fill(ended, 0))
        self.done = done

    def _add(self, name: str, value: Any) -> None:
        self.kept.setdefault(name, []).append(value)

    def result(self) -> dict[str, Any]:
        """By the names of the output: tuples of steps, and tensors (R, N, ...) of log-probabilities."""
        stacked = ("logprobs", "top_logprobs", "top_tokens")
        return {name: torch.stack(steps, dim=1) if name in stacked else tuple(steps) for name, steps in self.kept.items()}


def transition_scores(
    sequences: Tensor, scores: Sequence[Tensor], beam_indices: Tensor | None, normalize_logits: bool
) -> Tensor:
    """What the new tokens of sequences (R, T) were scored: see :meth:`Generates.compute_transition_scores`."""
    if not scores:
        raise InputError("there are no scores.", hint="Pass what generate() returns with output_scores=True.")
    if beam_indices is None:
        beam_indices = torch.arange(sequences.shape[0], device=sequences.device)[:, None].expand(-1, len(scores))
    beam_indices = beam_indices[:, : int((beam_indices >= 0).sum(dim=1).max())]
    new = beam_indices.shape[1]
    if not 0 < new <= min(len(scores), sequences.shape[1]) or int(beam_indices.max()) >= scores[0].shape[0]:
        raise InputError(
            f"{len(scores)} scores of {tuple(scores[0].shape)} are not those of sequences of {tuple(sequences.shape)}.",
            hint="Pass all that one call has returned; `beam_indices` too, where there are beams.",
        )
    found = []
    for place in range(new):
        values = scores[place].log_softmax(dim=-1) if normalize_logits else scores[place]
        found.append(values[beam_indices[:, place].clamp(min=0), sequences[:, sequences.shape[1] - new + place]])
    return torch.stack(found, dim=1).masked_fill(beam_indices < 0, 0.0)
