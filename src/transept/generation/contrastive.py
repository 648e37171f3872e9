"""Contrastive search: likely tokens whose states do not repeat what was there before (Su et al. 2022).

Each step reads the k most likely tokens, side by side, and takes the one with the best

    (1 - alpha) * its probability - alpha * the greatest cosine of its last hidden state with those of earlier positions.

Shapes: R rows, K candidates of each, S positions so far, D hidden size, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from transept.errors import InputError
from transept.generation.decoding import Decoding, Processors, Step, Stopping, grown, pick_rows
from transept.layers.context import reaching
from transept.outputs import ModelOutput


def write_contrastive(
    decoding: Decoding, processors: Processors, stopping: Stopping, *, alpha: float, most: int, filler: int
) -> Iterator[Step]:
    """Write token after token until every row is done; rows that are done get the filler.

    The decoding has K rows for each one while it goes on, and R again with the last step.

    Args:
        alpha: how much repetition counts, from 0 to 1.
        most: K, of which no more than V are taken.

    Raises:
        InputError: a cache holds the first positions, whose hidden states nobody has.
    """
    states = _States(decoding)
    logits, shown = decoding.logits(), decoding.outputs
    rows = torch.arange(decoding.rows, device=logits.device)
    open_, width = torch.ones_like(rows, dtype=torch.bool), min(most, logits.shape[1])
    states.begin()
    decoding.select(rows.repeat_interleave(width))
    while True:
        scores = processors(decoding.ids[::width], logits)
        values, candidates = scores.topk(width)
        decoding.append(candidates.flatten())
        after, outputs = decoding.logits(), decoding.outputs
        rank = (1 - alpha) * scores.softmax(dim=-1).gather(1, candidates) - alpha * states.likeness(width)
        best = rank.masked_fill(values == -math.inf, -math.inf).argmax(dim=1)
        chosen = rows * width + best
        tokens = torch.where(open_, candidates.gather(1, best[:, None])[:, 0], filler)
        states.append(chosen)
        decoding.reorder(chosen.repeat_interleave(width))
        decoding.buffer[:, decoding.length - 1] = tokens.repeat_interleave(width)
        open_ = open_ & ~stopping(decoding.ids[::width])
        decoding.outputs = shown  # what the token was chosen by, and not what read it
        if not open_.any():
            _leave(decoding, rows * width)
        yield Step(rows, tokens, ~open_, logits, scores)
        if not open_.any():
            return
        logits, shown = after[chosen], _shown(outputs, chosen)


def _shown(outputs: ModelOutput | None, rows: Tensor) -> ModelOutput:
    """What the decoder has recorded of some rows."""
    assert outputs is not None  # the model has just run
    names = [name for name in outputs if name.endswith(("hidden_states", "attentions")) and not name.startswith("encoder")]
    return type(outputs)(**{name: pick_rows(outputs[name], rows) for name in names})


def _leave(decoding: Decoding, rows: Tensor) -> None:
    """Go back to one row each, and to a cache without the last token, as other strategies leave it."""
    decoding.select(rows)
    if decoding.cache is not None:
        try:
            decoding.cache.crop(decoding.positions - 1)
        except InputError:  # a state that has read the last token; nobody can go on from it
            decoding.cache = None


class _States:
    """The last hidden states of all positions, scaled to length 1."""

    def __init__(self, decoding: Decoding) -> None:
        if decoding.read:
            raise InputError(
                f"contrastive search compares with the states of all positions, but those of {decoding.read} are only cached.",
                hint="Pass the whole prompt without `past_key_values`.",
            )
        self.decoding, self.fresh, self.length = decoding, list[Tensor](), 0
        self.kept, self.real = torch.empty(0), decoding.mask
        decoding.watch, decoding.extra = self._hear, decoding.extra | {"output_hidden_states": True}

    def _hear(self, outputs: Any) -> None:
        self.fresh.append(F.normalize(outputs.get(f"{self.decoding.prefix}hidden_states")[-1].float(), dim=-1))

    def begin(self) -> None:
        """Keep those of the prompt (R, S, D)."""
        found, self.fresh = torch.cat(self.fresh, dim=1), []
        self.kept, self.length = found, found.shape[1]

    def likeness(self, width: int) -> Tensor:
        """(R, K): how like the most similar earlier state each candidate's is."""
        last = self.fresh[-1][:, -1].view(-1, width, self.kept.shape[2])
        cosine = last @ self.kept[:, : self.length].mT
        if self.real is not None:
            cosine = cosine.masked_fill(~reaching(self.real, self.length)[:, None], -math.inf)
        return cosine.amax(dim=-1)

    def append(self, chosen: Tensor) -> None:
        """Keep those of the chosen candidates, at rows (R) of all."""
        self.kept = grown(self.kept, self.length + 1)
        self.kept[:, self.length] = self.fresh.pop()[chosen, -1]
        self.length += 1
