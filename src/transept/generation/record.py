"""What a call of ``generate`` remembers of its steps, when it is asked to return more than ids.

Shapes: R rows, N new ids, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from transept.errors import InputError
from transept.generation.sample import Step
from transept.outputs import ModelOutput


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

    def step(self, outputs: ModelOutput | None, step: Step) -> None:
        """Keep what is wanted of one step, and the output of the model that it was chosen by."""
        self.seen(outputs, step.logits, step.scores)
        if self.best is not None:
            chances = step.scores.log_softmax(dim=-1)
            self._add("logprobs", self._open(chances.gather(1, step.tokens[:, None])[:, 0]))
            if self.best > 0:
                values, index = chances.topk(min(self.best, chances.shape[-1]))
                self._add("top_logprobs", self._open(values))
                self._add("top_tokens", self._open(index))
        self.done = step.done

    def seen(self, outputs: ModelOutput | None, logits: Tensor, scores: Tensor) -> None:
        """The same for steps that are certain of no token."""
        if self.logits:
            self._add("logits", logits)
        if self.scores:
            self._add("scores", scores)
        for name in (each for shown in self.shown for each in (shown, f"decoder_{shown}")):
            if outputs is not None and (value := outputs.get(name)) is not None:
                self._add(name, value)

    def _open(self, values: Tensor) -> Tensor:
        """Values (R, ...) with zeros for rows that were done before."""
        if self.done is None:
            return values
        return values.masked_fill(self.done.view(-1, *[1] * (values.ndim - 1)), 0)

    def _add(self, name: str, value: Any) -> None:
        self.kept.setdefault(name, []).append(value)

    def result(self) -> dict[str, Any]:
        """By the names of the output: tuples of steps, and tensors (R, N, ...) of log-probabilities."""
        stacked = ("logprobs", "top_logprobs", "top_tokens")
        return {name: torch.stack(steps, dim=1) if name in stacked else tuple(steps) for name, steps in self.kept.items()}


def transition_scores(
    sequences: Tensor, scores: Sequence[Tensor], beam_indices: Tensor | None, normalize_logits: bool
) -> Tensor:
    """What the new tokens of sequences (R, T) were scored, (R, N); 0 behind the end of beams.

    Args:
        sequences: as generate() returns them.
        scores: N of (R', V), one a step.
        beam_indices: (R, N) row that each token came from, -1 behind the end; its own row where absent.
        normalize_logits: turn scores into log-probabilities.

    Raises:
        InputError: scores and sequences that do not belong together.
    """
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
