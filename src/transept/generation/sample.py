"""One token a step and row: the most likely one (greedy), or one drawn at random (sampling).

Shapes: R rows, T ids so far, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from transept.generation.decode import Decoding
from transept.generation.processors import LogitsProcessorList

Processors = Callable[[Tensor, Tensor], Tensor]
# Of ids -> (R) of bool: rows that are done.
Stopping = Callable[[Tensor], Tensor]
# (scores (R', V), which of the prompts' rows these are (R')) -> (R') tokens.
Choice = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Step:
    """What one step wrote.

    ``rows`` (R') are the prompts' rows that were still being written, ``tokens`` (R') what they got, ``done`` (R') those
    that end with it, ``logits`` and ``scores`` (R', V) what the tokens were chosen by, before and after the processors.
    """

    rows: Tensor
    tokens: Tensor
    done: Tensor
    logits: Tensor
    scores: Tensor


def likeliest(scores: Tensor, rows: Tensor) -> Tensor:
    """Greedy choice."""
    return scores.argmax(dim=-1)


class Drawn:
    """Tokens drawn by their probabilities.

    Args:
        generators: one a row, which makes rows independent; or one for all of them; PyTorch's own when ``None``.
    """

    def __init__(self, generators: torch.Generator | Sequence[torch.Generator] | None = None) -> None:
        self.generators = generators

    @property
    def independent(self) -> bool:
        """Whether what a row gets does not depend on the others."""
        return isinstance(self.generators, Sequence)

    def __call__(self, scores: Tensor, rows: Tensor) -> Tensor:
        """One token for each of the rows that are left."""
        chances = scores.softmax(dim=-1)
        if not isinstance(self.generators, Sequence):
            return torch.multinomial(chances, 1, generator=self.generators).squeeze(1)
        own = [self.generators[row] for row in rows.tolist()]
        drawn = [torch.multinomial(line, 1, generator=generator) for line, generator in zip(chances, own, strict=True)]
        return torch.cat(drawn)


def write(decoding: Decoding, processors: Processors, stopping: Stopping, choose: Choice, *, filler: int) -> Iterator[Step]:
    """Write token after token until every row is done; rows that are done get the filler."""
    rows = torch.arange(decoding.rows, device=decoding.buffer.device)
    open_ = torch.ones(decoding.rows, dtype=torch.bool, device=rows.device)
    while True:
        logits = decoding.logits()
        scores = processors(decoding.ids, logits)
        tokens = torch.where(open_, choose(scores, rows), filler)
        decoding.append(tokens)
        open_ = open_ & ~stopping(decoding.ids)
        yield Step(rows, tokens, ~open_, logits, scores)
        if not open_.any():
            return


def write_shrinking(decoding: Decoding, processors: LogitsProcessorList, stopping: Stopping, choose: Choice) -> Iterator[Step]:
    """As :func:`write`, but rows that are done leave the batch; for choices and processors that treat rows alone."""
    rows = torch.arange(decoding.rows, device=decoding.buffer.device)
    while rows.numel():
        logits = decoding.logits()
        scores = processors(decoding.ids, logits)
        tokens = choose(scores, rows)
        decoding.append(tokens)
        done = stopping(decoding.ids)
        yield Step(rows, tokens, done, logits, scores)
        if done.any():
            left = (~done).nonzero()[:, 0]
            rows = rows[left]
            if left.numel():
                decoding.select(left)
                processors.select(left)
