"""Beam search: the most likely whole sequences, by keeping several hypotheses at each step (Wu et al. 2016).

Every prompt has W beams. A step scores all their continuations, takes the best ones, moves those that end to the finished
hypotheses, whose scores are divided by a power of their length, and goes on with the best W of the others. In diverse beam
search (Vijayakumar et al. 2018) each of G groups searches by itself, kept by processors from tokens of the groups before it.

Shapes: B prompts, G groups, W beams of a group, K candidates (enough that W are left when some end), N new ids, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from transept.generation.config import GenerationConfig
from transept.generation.decoding import Decoding
from transept.generation.outputs import Record
from transept.generation.prompt import end_tokens

# What a candidate that may not be chosen loses; far above any score, and finite, so that scores can be compared.
_OUT = 1e9


class BeamSearch:
    """One search; call :meth:`run` once.

    Args:
        decoding: B * G * W rows, those of a prompt side by side, and those of a group of them.
        settings: complete; ``early_stopping=True`` stops at W finished hypotheses, ``False`` when the best open one, at its
            present length, cannot win, and ``"never"`` only when none can at any length.
        longest: N at most.
        record: told the logits and log-probabilities (B * G * W, V) of each step.
    """

    def __init__(self, decoding: Decoding, settings: GenerationConfig, longest: int, record: Record) -> None:
        self.decoding, self.settings, self.longest, self.record = decoding, settings, longest, record
        ends = end_tokens(settings)  # for each of them W candidates more are needed
        # What follows the end of a sequence; as the reference has it, beams take a padding id of 0 for none.
        self.filler = settings.pad_token_id or next(iter(ends), -1)
        self.length_penalty = 1.0 if settings.length_penalty is None else settings.length_penalty
        self.ends = torch.tensor(ends, dtype=torch.long, device=decoding.buffer.device)
        groups = settings.num_beam_groups or 1
        beams = (settings.num_beams or 1) // groups
        self.shape = (decoding.rows // (groups * beams), groups, beams)
        self.prompts = decoding.ids[:: groups * beams]
        self.groups = [_Group(self, number) for number in range(groups)]

    def run(self) -> tuple[Tensor, Tensor, Tensor]:
        """Search to the end: the best sequences of all groups (R, T), cut behind the longest, their scores (R), and the rows
        (R, N) that new tokens came from, -1 behind the end.
        """
        while any(group.searching for group in self.groups):
            logits = self.decoding.logits()
            self._step(logits, logits.log_softmax(dim=-1))
        steps = max(len(group.tokens) for group in self.groups)
        parts = [(*group.traced(steps), group.finished) for group in self.groups]
        ids, rows, scores = (torch.cat(each, dim=1) for each in zip(*parts, strict=True))
        returned = self.settings.num_return_sequences or 1
        scores, best = scores.topk(returned)
        ids, rows = (part.take_along_dim(best[:, :, None], 1).flatten(0, 1) for part in (ids, rows))
        longest = int((rows >= 0).sum(dim=1).max())
        whole = torch.cat([self.prompts.repeat_interleave(returned, dim=0), ids[:, :longest]], dim=1)
        return whole, scores.flatten(), rows[:, :longest]

    def _step(self, logits: Tensor, scores: Tensor) -> None:
        """Let one group after the other choose, and go on with what they chose."""
        ids, scores = self.decoding.ids.view(*self.shape, -1), scores.view(*self.shape, -1)
        heard, seen = torch.full(self.shape, -1, device=ids.device), []
        for number, group in enumerate(self.groups):
            own = scores[:, number].flatten(0, 1)
            if group.searching:
                more = {} if len(self.groups) == 1 else {"current_tokens": heard.flatten(), "beam_group_idx": number}
                own = self.decoding.processors(ids[:, number].flatten(0, 1), own, **more)
            heard[:, number] = group.step(ids[:, number], own)
            seen.append(own.view(*self.shape[::2], -1))
        self.record.step(self.decoding.outputs, logits, torch.stack(seen, dim=1).flatten(0, 2))
        order = torch.stack([group.rows for group in self.groups], dim=1).flatten()
        self.decoding.reorder(order)
        self.decoding.processors.reorder(order)
        self.decoding.append(torch.stack([group.chosen for group in self.groups], dim=1).flatten())


class _Group:
    """The beams of one group, for all prompts; ``number`` is which of the groups it is."""

    def __init__(self, search: BeamSearch, number: int) -> None:
        self.search, device = search, search.ends.device
        prompts, groups, beams = search.shape
        each = torch.arange(prompts, device=device)[:, None] * groups
        self.first = (each + number) * beams  # (B, 1): the group's first row of each prompt
        shape = (prompts, beams)
        self.finished = torch.full(shape, -_OUT, device=device)  # their scores
        self.ended = torch.zeros(shape, dtype=torch.bool, device=device)
        # Of the finished: the step they ended at, the beam they went on from, and their last token.
        self.last = torch.zeros((3, *shape), dtype=torch.long, device=device)
        # All beams begin alike: only the first counts, or each candidate would be there W times.
        self.open = self.finished.index_fill(1, torch.zeros(1, dtype=torch.long, device=device), 0.0)  # summed scores
        # Of each step (B, W): the beams that the open ones went on from, and their tokens.
        self.origins: list[Tensor] = []
        self.tokens: list[Tensor] = []
        self.hopeful = torch.ones((prompts, 1), dtype=torch.bool, device=device)
        self.searching = True
        self.places = self.first + torch.arange(beams, device=device)
        self.rows = self.places  # (B, W): those to go on with
        self.chosen = torch.full(shape, max(search.filler, 0), device=device)  # (B, W): what they get

    def step(self, ids: Tensor, scores: Tensor) -> Tensor:
        """Ids (B, W, T) of open beams, log-probabilities (B * W, V) -> what was chosen (B, W), -1 where the search is over."""
        over = ~self.hopeful
        if self.search.settings.early_stopping is True:
            over = over | self.ended.all(dim=1, keepdim=True)
        if self.searching:
            self._advance(ids, *self._candidates(scores))
        else:
            self.rows, over = self.places, torch.ones_like(over)
        return self.chosen.masked_fill(over, -1)

    def _candidates(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The best continuations of all beams of a prompt, or drawn ones: scores, beams and tokens, (B, K) each."""
        (prompts, _, beams), size = self.search.shape, scores.shape[-1]
        count = max(2, 1 + len(self.search.ends)) * beams
        summed = (scores.view(prompts, beams, size) + self.open[:, :, None]).flatten(1)
        if self.search.settings.do_sample:
            index = torch.multinomial(summed.softmax(dim=-1), count)
            values = summed.gather(1, index)
        else:
            values, index = summed.topk(count)
        return values, index // size, index % size

    def _advance(self, ids: Tensor, scores: Tensor, beams: Tensor, tokens: Tensor) -> None:
        """Sort candidates into finished and open ones, and find out whether to go on."""
        search, width = self.search, self.search.shape[2]
        reached = torch.cat([ids.take_along_dim(beams[:, :, None], 1), tokens[:, :, None]], dim=2)
        done = search.decoding.stopping(reached.flatten(0, 1)).view(tokens.shape)
        last = bool(done.all())
        # At the last step, what goes on in name only is still what other groups hear.
        ended = torch.isin(tokens, search.ends) if last else done
        self.open, best = (scores - ended.float() * _OUT).topk(width)
        self._finish(scores, beams, tokens, done)
        self.origins.append(beams.gather(1, best))
        self.tokens.append(tokens.gather(1, best))
        self.rows, self.chosen = self.first + self.origins[-1], self.tokens[-1]
        self._judge()
        full = search.settings.early_stopping is True and bool(self.ended.all())
        self.searching = bool(self.hopeful.any()) and not full and not last

    def _finish(self, scores: Tensor, beams: Tensor, tokens: Tensor, done: Tensor) -> None:
        """Keep the best W of the finished hypotheses; only what is among the first W candidates may become one."""
        width, step = self.search.shape[2], len(self.tokens)
        done = done & (torch.arange(done.shape[1], device=done.device) < width)
        scores = scores / (step + 1) ** self.search.length_penalty
        if self.search.settings.early_stopping is True:
            scores = scores - self.ended.all(dim=1, keepdim=True).float() * _OUT
        scores = scores - (~self.hopeful).float() * _OUT - (~done).float() * _OUT
        self.finished, best = torch.cat((self.finished, scores), dim=1).topk(width)
        self.ended = torch.cat((self.ended, done), dim=1).gather(1, best)
        new = torch.stack([torch.full_like(beams, step), beams, tokens])
        self.last = torch.cat((self.last, new), dim=2).gather(2, best.expand(3, -1, -1))

    def _judge(self) -> None:
        """Give up prompts whose best open beam can no longer beat their worst finished one."""
        search, penalty = self.search, self.search.length_penalty
        length = search.longest if search.settings.early_stopping == "never" and penalty > 0 else len(self.tokens)
        reachable = self.open[:, :1] / length**penalty
        worst = torch.where(self.ended, self.finished.min(dim=1, keepdim=True)[0], -_OUT)
        self.hopeful = self.hopeful & (reachable > worst).any(dim=1, keepdim=True)

    def traced(self, steps: int) -> tuple[Tensor, Tensor]:
        """The new ids (B, W, N) of the finished hypotheses, and the rows that they came from, followed from their ends."""
        step, beam, token = self.last
        ids = beam.new_full((*beam.shape, steps), self.search.filler)
        rows = torch.full_like(ids, -1)
        now = beam
        for place in reversed(range(len(self.tokens))):
            origin, last, earlier = self.origins[place].gather(1, now), step == place, place < step
            own = torch.where(last, token, self.tokens[place].gather(1, now))
            ids[:, :, place] = torch.where(last | earlier, own, self.search.filler)
            now = torch.where(earlier, origin, now)
            rows[:, :, place] = torch.where(last | earlier, now + self.first, -1)
        return ids, rows
