"""Beam search: the most likely whole sequences, by keeping several beginnings at each step (Wu et al. 2016).

Every prompt has W beams. A step scores all their continuations, takes the best ones, moves those that end to the finished
sequences, whose scores are divided by a power of their length, and goes on with the best W of the others. Diverse beam search
(Vijayakumar et al. 2018) has G groups of beams, each of which searches by itself and hears in each step what tokens the groups
before it have chosen, so that processors can keep it from them.

Shapes: B prompts, G groups, W beams of a group, K candidates (enough that W are left when some end), N new ids at most,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from transept.generation.decode import Decoding
from transept.generation.processors import LogitsProcessorList
from transept.generation.sample import Stopping

# What a candidate that may not be chosen loses; far above any score, and finite, so that scores can be compared.
_OUT = 1e9


@dataclass(frozen=True)
class BeamSettings:
    """How beams are searched.

    Args:
        beams: W.
        groups: G.
        returned: sequences returned for a prompt.
        ends: the tokens that end a sequence; for each of them W candidates more are needed.
        length_penalty: power of the length by which a finished score is divided.
        early_stopping: ``True`` stops at W finished sequences; ``False`` when the best open one, at its present length,
            cannot win; ``"never"`` only when none can at any length.
        sample: draw candidates by their probabilities.
        longest: N.
        filler: what follows the end of a sequence.
    """

    beams: int
    groups: int
    returned: int
    ends: Sequence[int]
    length_penalty: float
    early_stopping: bool | Literal["never"]
    sample: bool
    longest: int
    filler: int


@dataclass
class Found:
    """Sequences (B * returned, T), their scores, and the row that each new token came from (-1 behind the end)."""

    sequences: Tensor
    scores: Tensor
    rows: Tensor


@dataclass
class _Pool:
    """Beginnings or finished sequences of each prompt: ids (B, ., T), summed scores (B, .), origins (B, ., N)."""

    ids: Tensor
    scores: Tensor
    rows: Tensor

    def take(self, index: Tensor) -> _Pool:
        """Those at (B, .) indices."""
        wide = index[:, :, None]
        return _Pool(self.ids.take_along_dim(wide, 1), self.scores.take_along_dim(index, 1), self.rows.take_along_dim(wide, 1))

    def join(self, other: _Pool) -> _Pool:
        """Both, one behind the other."""
        parts = ((self.ids, other.ids), (self.scores, other.scores), (self.rows, other.rows))
        return _Pool(*(torch.cat(pair, dim=1) for pair in parts))


class BeamSearch:
    """One search; call :meth:`run` once.

    Args:
        decoding: B * G * W rows, those of a prompt side by side, and those of a group of them.
        processors, stopping: for log-probabilities, and for whole candidates.
        settings: how to search.
        seen: told the logits and log-probabilities (B * G * W, V) of each step.
    """

    def __init__(
        self,
        decoding: Decoding,
        processors: LogitsProcessorList,
        stopping: Stopping,
        settings: BeamSettings,
        seen: Callable[[Tensor, Tensor], None] | None = None,
    ) -> None:
        self.decoding, self.processors, self.settings, self.seen = decoding, processors, settings, seen
        self.shape = (decoding.rows // (settings.groups * settings.beams), settings.groups, settings.beams)
        ids = decoding.ids.view(*self.shape, -1)
        self.groups = [_Group(ids[:, number], number, stopping, settings) for number in range(settings.groups)]

    def run(self) -> Found:
        """Search to the end."""
        while any(group.searching for group in self.groups):
            logits = self.decoding.logits()
            self._step(logits, logits.log_softmax(dim=-1))
        return self._best()

    def _step(self, logits: Tensor, scores: Tensor) -> None:
        """Let one group after the other choose, and go on with what they chose."""
        ids, scores = self.decoding.ids.view(*self.shape, -1), scores.view(*self.shape, -1)
        heard, seen = torch.full(self.shape, -1, device=ids.device), []
        for number, group in enumerate(self.groups):
            own = scores[:, number].flatten(0, 1)
            if group.searching:
                more = {} if len(self.groups) == 1 else {"current_tokens": heard.flatten(), "beam_group_idx": number}
                own = self.processors(ids[:, number].flatten(0, 1), own, **more)
            heard[:, number] = group.step(own)
            seen.append(own.view(*self.shape[::2], -1))
        if self.seen is not None:
            self.seen(logits, torch.stack(seen, dim=1).flatten(0, 2))
        order = torch.stack([group.rows for group in self.groups], dim=1).flatten()
        self.decoding.reorder(order)
        self.processors.reorder(order)
        self.decoding.append(torch.stack([group.tokens for group in self.groups], dim=1).flatten())

    def _best(self) -> Found:
        """The best sequences of all groups, cut behind the longest."""
        pool = self.groups[0].finished
        for group in self.groups[1:]:
            pool = pool.join(group.finished)
        pool = pool.take(pool.scores.topk(self.settings.returned)[1])
        ids, scores, rows = (part.flatten(0, 1) for part in vars(pool).values())
        longest = int((rows >= 0).sum(dim=1).max())
        return Found(ids[:, : ids.shape[1] - self.settings.longest + longest], scores, rows[:, :longest])


class _Group:
    """The beams of one group, for all prompts.

    Args:
        ids: (B, W, T) of the prompts.
        number: which of the groups it is.
        stopping, settings: see :class:`BeamSearch`.
    """

    def __init__(self, ids: Tensor, number: int, stopping: Stopping, settings: BeamSettings) -> None:
        self.stopping, self.settings, self.written, device = stopping, settings, 0, ids.device
        self.prompts, self.start = ids.shape[0], ids.shape[2]
        each = torch.arange(self.prompts, device=device)[:, None] * settings.groups
        self.first = (each + number) * settings.beams  # (B, 1): the group's first row of each prompt
        shape = (self.prompts, settings.beams)
        room = torch.full((*shape, self.start + settings.longest), settings.filler, device=device)
        room[:, :, : self.start] = ids
        origins = torch.full((*shape, settings.longest), -1, device=device)
        # All beams begin alike: only the first counts, or each candidate would be there W times.
        scores = torch.full(shape, -_OUT, device=device)
        self.finished = _Pool(room.clone(), scores.clone(), origins.clone())
        self.ended = torch.zeros(shape, dtype=torch.bool, device=device)
        self.open = _Pool(room, scores.index_fill(1, torch.zeros(1, dtype=torch.long, device=device), 0.0), origins)
        self.hopeful = torch.ones((self.prompts, 1), dtype=torch.bool, device=device)
        self.searching, self.ends = True, torch.tensor(list(settings.ends), dtype=torch.long, device=device)
        self.places = self.first + torch.arange(settings.beams, device=device)
        self.rows = self.places  # (B, W): those to go on with
        self.tokens = torch.full(shape, max(settings.filler, 0), device=device)  # (B, W): what they get

    def step(self, scores: Tensor) -> Tensor:
        """Go on by one token; what was chosen (B, W), -1 where the search is over.

        Args:
            scores: (B * W, V) processed log-probabilities of the next token.
        """
        over = ~self.hopeful
        if self.settings.early_stopping is True:
            over = over | self.ended.all(dim=1, keepdim=True)
        if self.searching:
            self._advance(self._candidates(scores))
        else:
            self.rows, over = self.places, torch.ones_like(over)
        return self.tokens.masked_fill(over, -1)

    def _candidates(self, scores: Tensor) -> _Pool:
        """The best continuations (B, K) of all beams of a prompt, or drawn ones, with the new token written."""
        s, size = self.settings, scores.shape[-1]
        count = max(2, 1 + len(s.ends)) * s.beams
        summed = (scores.view(self.prompts, s.beams, size) + self.open.scores[:, :, None]).flatten(1)
        if s.sample:
            chosen = torch.multinomial(summed.softmax(dim=-1), count)
            values = summed.gather(1, chosen)
        else:
            values, chosen = summed.topk(count)
        beams = chosen // size
        found = self.open.take(beams)
        found.scores = values
        found.ids[:, :, self.start + self.written] = chosen % size
        found.rows[:, :, self.written] = beams + self.first
        return found

    def _advance(self, candidates: _Pool) -> None:
        """Sort candidates into finished and open ones, and find out whether to go on."""
        s, length = self.settings, self.start + self.written
        reached = candidates.ids[:, :, : length + 1].flatten(0, 1)
        done = self.stopping(reached).view(self.prompts, -1)
        last = bool(done.all())
        # At the last step, what goes on in name only is still what other groups hear.
        ended = torch.isin(candidates.ids[:, :, length], self.ends) if last else done
        running = candidates.scores - ended.float() * _OUT
        best = running.topk(s.beams)[1]
        self.open = candidates.take(best)
        self.open.scores = running.gather(1, best)
        self._finish(candidates, done)
        self.rows, self.tokens = self.open.rows[:, :, self.written], self.open.ids[:, :, length]
        self.written += 1
        self._judge()
        full = s.early_stopping is True and bool(self.ended.all())
        self.searching = bool(self.hopeful.any()) and not full and not last

    def _finish(self, candidates: _Pool, done: Tensor) -> None:
        """Keep the best W of the finished sequences; only what is among the first W candidates may become one."""
        s = self.settings
        done = done & (torch.arange(done.shape[1], device=done.device) < s.beams)
        scores = candidates.scores / (self.written + 1) ** s.length_penalty
        if s.early_stopping is True:
            scores = scores - self.ended.all(dim=1, keepdim=True).float() * _OUT
        scores = scores - (~self.hopeful).float() * _OUT - (~done).float() * _OUT
        both = self.finished.join(_Pool(candidates.ids, scores, candidates.rows))
        best = both.scores.topk(s.beams)[1]
        self.finished = both.take(best)
        self.ended = torch.cat((self.ended, done), dim=1).gather(1, best)

    def _judge(self) -> None:
        """Give up prompts whose best open beam can no longer beat their worst finished one."""
        s = self.settings
        length = s.longest if s.early_stopping == "never" and s.length_penalty > 0 else self.written
        reachable = self.open.scores[:, :1] / length**s.length_penalty
        worst = torch.where(self.ended, self.finished.scores.min(dim=1, keepdim=True)[0], -_OUT)
        self.hopeful = self.hopeful & (reachable > worst).any(dim=1, keepdim=True)
