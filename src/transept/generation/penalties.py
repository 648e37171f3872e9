"""Logits processors that make tokens more or less likely for what came before, or for what another input says.

See :mod:`transept.generation.processors` for their form.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from transept.errors import InputError
from transept.generation.checks import Range, biases, number, sequences, token_ids
from transept.generation.processors import Ids, LogitsProcessor

_SIZE = Range(1)


def _set(scores: Tensor, ids: Tensor, values: Callable[[Tensor], Tensor] | float) -> Tensor:
    """Scores (B, V) with other values at ids (B, N), of which those from V on stand for nothing."""
    vocabulary = scores.shape[-1]
    spare = F.pad(scores, (0, 1))
    ids = ids.clamp(max=vocabulary)
    if isinstance(values, float):
        spare.scatter_(1, ids, values)
    else:
        spare.scatter_(1, ids, values(spare.gather(1, ids)))
    return spare[:, :vocabulary]


def _per_row(rows: Tensor, scores: Tensor, name: str) -> Tensor:
    """One row of ``rows`` (N, ...) for each of the scores (B, V), where each prompt has B / N of them."""
    if rows.shape[0] == 0 or scores.shape[0] % rows.shape[0]:
        raise InputError(f"`{name}` has {rows.shape[0]} rows, of which {scores.shape[0]} rows of scores are no multiple.")
    rows = rows.to(scores.device)
    times = scores.shape[0] // rows.shape[0]
    return rows if times == 1 else rows.repeat_interleave(times, dim=0)


class RepetitionPenaltyLogitsProcessor(LogitsProcessor):
    """Tokens that came before are less likely: positive scores are divided by the penalty, negative ones multiplied
    (Keskar et al., 2019).

    Args:
        penalty: above 1 against repetition, below 1 for it.
        prompt_ignore_length: how many tokens of each row's beginning do not count, one number or one a prompt (N,).
    """

    def __init__(self, penalty: float, prompt_ignore_length: int | Tensor | None = None) -> None:
        self.penalty = number("repetition_penalty", penalty)
        if isinstance(prompt_ignore_length, Tensor):
            if prompt_ignore_length.dim() != 1:
                shape = tuple(prompt_ignore_length.shape)
                raise InputError(f"`prompt_ignore_length` must have one dimension, but has the shape {shape}.")
            prompt_ignore_length = prompt_ignore_length if bool((prompt_ignore_length > 0).any()) else None
        elif prompt_ignore_length is not None:
            number("prompt_ignore_length", prompt_ignore_length, Range(0), whole=True)
        self.prompt_ignore_length = prompt_ignore_length

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores (B, V) with lower ones for tokens that came before."""
        ignored = self.prompt_ignore_length
        if isinstance(ignored, Tensor):
            ignored = _per_row(ignored, scores, "prompt_ignore_length")
            positions = torch.arange(input_ids.shape[1], device=input_ids.device)
            input_ids = input_ids.masked_fill(positions < ignored.unsqueeze(-1), scores.shape[-1])
        elif ignored is not None:
            input_ids = input_ids[:, ignored:]
        return _set(scores, input_ids, self._penalised)

    def select(self, rows: Tensor) -> None:
        """Go on with these rows (R,) of the batch."""
        if isinstance(self.prompt_ignore_length, Tensor):
            self.prompt_ignore_length = self.prompt_ignore_length.index_select(0, rows)

    def _penalised(self, scores: Tensor) -> Tensor:
        return torch.where(scores < 0, scores * self.penalty, scores / self.penalty)


class _WithEncoder(LogitsProcessor):
    """A processor that looks at the encoder's input, (N, S) with B / N rows of scores for each."""

    encoder_input_ids: Tensor

    def select(self, rows: Tensor) -> None:
        """Go on with these rows (R,) of the batch, where there is an input for each."""
        self.encoder_input_ids = self.encoder_input_ids.index_select(0, rows)


class EncoderRepetitionPenaltyLogitsProcessor(_WithEncoder):
    """Tokens of the encoder's input (N, S) are more likely, by the same rule turned round; above 1 against invention."""

    def __init__(self, penalty: float, encoder_input_ids: Tensor) -> None:
        self.penalty = 1 / number("encoder_repetition_penalty", penalty)
        self.encoder_input_ids = encoder_input_ids

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores (B, V) with higher ones for tokens of the encoder's input."""
        ids = _per_row(self.encoder_input_ids, scores, "encoder_input_ids")
        return _set(scores, ids, lambda found: torch.where(found < 0, found * self.penalty, found / self.penalty))


def _ban_repeats(scores: Tensor, windows: Tensor, input_ids: Tensor) -> Tensor:
    """Scores (B, V) without the ends of those n-grams (B, N, n) whose beginning is what the ids (B, T) end with."""
    prefix = input_ids[:, input_ids.shape[1] + 1 - windows.shape[-1] :]
    matches = (windows[..., :-1] == prefix.unsqueeze(1)).all(-1)
    return _set(scores, windows[..., -1].masked_fill(~matches, scores.shape[-1]), -math.inf)


class NoRepeatNGramLogitsProcessor(LogitsProcessor):
    """No n-gram comes twice (Paulus et al., 2017)."""

    def __init__(self, ngram_size: int) -> None:
        self.ngram_size = number("ngram_size", ngram_size, _SIZE, whole=True)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores (B, V) without tokens that would complete an n-gram for the second time."""
        if input_ids.shape[1] < self.ngram_size:
            return scores
        return _ban_repeats(scores, input_ids.unfold(1, self.ngram_size, 1), input_ids)


class EncoderNoRepeatNGramLogitsProcessor(_WithEncoder):
    """No n-gram of the encoder's input, (N, S) or (S,), comes again."""

    def __init__(self, encoder_ngram_size: int, encoder_input_ids: Tensor) -> None:
        self.ngram_size = number("encoder_ngram_size", encoder_ngram_size, _SIZE, whole=True)
        self.encoder_input_ids = encoder_input_ids.unsqueeze(0) if encoder_input_ids.dim() == 1 else encoder_input_ids

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores (B, V) without tokens that would complete an n-gram of the encoder's input."""
        if self.encoder_input_ids.shape[1] < self.ngram_size or input_ids.shape[1] + 1 < self.ngram_size:
            return scores
        windows = self.encoder_input_ids.unfold(1, self.ngram_size, 1)
        return _ban_repeats(scores, _per_row(windows, scores, "encoder_input_ids"), input_ids)


class SequenceBiasLogitsProcessor(LogitsProcessor):
    """Adds a bias to the token that would complete a sequence.

    Args:
        sequence_bias: ``{(1, 2): 3.0}`` or ``[[[1, 2], 3.0]]``; ``-inf`` bans, ``inf`` forces.

    Raises:
        InputError: another form, or when called an id beyond the vocabulary.
    """

    name = "sequence_bias"

    def __init__(self, sequence_bias: Any) -> None:
        self.sequence_bias = biases(self.name, sequence_bias)
        self._single = torch.empty(0)
        self._longer: list[tuple[Tensor, Tensor, Tensor]] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores (B, V) with biases."""
        if self._single.device != scores.device or self._single.shape[0] != scores.shape[-1]:
            self._prepare(scores)
        bias = self._single
        for prefixes, last, values in self._longer:
            length = prefixes.shape[1]
            if length <= input_ids.shape[1]:
                found = (input_ids[:, None, -length:] == prefixes).all(-1)
                bias = bias.expand_as(scores) if bias.dim() == 1 else bias
                bias = bias.index_add(1, last, torch.where(found, values, 0.0).to(bias.dtype))
        return scores + bias

    def _prepare(self, scores: Tensor) -> None:
        """Tensors on the scores' device: the biases of single tokens (V,), and the longer sequences by length."""
        vocabulary, device = scores.shape[-1], scores.device
        if beyond := [ids for ids in self.sequence_bias if max(ids) >= vocabulary]:
            raise InputError(f"`{self.name}` names tokens beyond the {vocabulary} of the model: {str(beyond)[:80]}.")
        self._single = scores.new_zeros(vocabulary)
        by_length: dict[int, list[tuple[tuple[int, ...], float]]] = {}
        for ids, bias in self.sequence_bias.items():
            if len(ids) == 1:
                self._single[ids[0]] = bias
            else:
                by_length.setdefault(len(ids), []).append((ids, bias))
        self._longer = [
            (
                torch.tensor([ids[:-1] for ids, _ in group], device=device),
                torch.tensor([ids[-1] for ids, _ in group], device=device),
                torch.tensor([bias for _, bias in group], device=device),
            )
            for group in by_length.values()
        ]


class NoBadWordsLogitsProcessor(SequenceBiasLogitsProcessor):
    """Some sequences of tokens never come; the end of the text is not one of them.

    Raises:
        InputError: no list of lists of ids, or none but the end.
    """

    name = "bad_words_ids"

    def __init__(self, bad_words_ids: list[list[int]], eos_token_id: Ids | None = None) -> None:
        self.bad_word_ids = sequences(self.name, bad_words_ids)
        ends = [] if eos_token_id is None else [[index] for index in token_ids("eos_token_id", eos_token_id)]
        words = [ids for ids in self.bad_word_ids if ids not in ends]
        if not words:
            raise InputError(
                f"`{self.name}` holds only the end of the sequence, {ends}.",
                hint="To keep texts from ending early use min_new_tokens.",
            )
        super().__init__({tuple(ids): -math.inf for ids in words})


class HammingDiversityLogitsProcessor(LogitsProcessor):
    """A group of beams is kept from the tokens that the groups before it chose at this step (Vijayakumar et al., 2016).

    Args:
        diversity_penalty: what is subtracted for each beam that chose the token.
        num_beams: beams per prompt, of all groups.
        num_beam_groups: groups.
    """

    def __init__(self, diversity_penalty: float, num_beams: int, num_beam_groups: int) -> None:
        self.diversity_penalty: float = number("diversity_penalty", diversity_penalty, Range(0, open="("))
        self.num_beams = number("num_beams", num_beams, Range(2), whole=True)
        groups = number("num_beam_groups", num_beam_groups, Range(2, num_beams), whole=True)
        if num_beams % groups:
            raise InputError(f"`num_beam_groups` ({groups}) must divide `num_beams` ({num_beams}).")
        self.group_size = num_beams // groups

    def __call__(  # type: ignore[override]  # the list passes what a processor's own signature asks for
        self, input_ids: Tensor, scores: Tensor, current_tokens: Tensor, beam_group_idx: int
    ) -> Tensor:
        """Scores (N * beams of the group, V) of one group.

        Args:
            current_tokens: what each beam of each prompt has chosen at this step (N * ``num_beams``,), -1 for nothing.
            beam_group_idx: the number of this group; the beams of those before it count.
        """
        earlier = current_tokens.view(-1, self.num_beams)[:, : beam_group_idx * self.group_size]
        if not earlier.shape[1]:
            return scores
        chosen = scores.new_zeros(earlier.shape[0], scores.shape[-1])
        chosen.scatter_add_(1, earlier.clamp(min=0), (earlier >= 0).to(scores.dtype))
        return scores - self.diversity_penalty * chosen.repeat_interleave(self.group_size, dim=0)


class ClassifierFreeGuidanceLogitsProcessor(LogitsProcessor):
    """Away from what the model says without the condition; both come in one batch (Ho and Salimans, 2022).

    Args:
        guidance_scale: above 1; how far.
    """

    def __init__(self, guidance_scale: float) -> None:
        self.guidance_scale: float = number("guidance_scale", guidance_scale, Range(1, open="("))

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores (B, V) from those with the condition and those without it, stacked to (2B, V)."""
        if scores.shape[0] != 2 * input_ids.shape[0]:
            raise InputError(
                f"Guidance needs two rows of scores a row of ids, but there are {scores.shape[0]} for {input_ids.shape[0]}.",
                hint="Pass the rows with the condition first, then those without it.",
            )
        guided, free = scores.chunk(2)
        return free + (guided - free) * self.guidance_scale


class UnbatchedClassifierFreeGuidanceLogitsProcessor(LogitsProcessor):
    """Away from what the model says of another prompt, which it runs on beside the first (Sanchez et al., 2023).

    One object serves one generation: it keeps the other prompt's ids and cache.

    Args:
        guidance_scale: how far; 1 for not at all, below 1 towards the other prompt.
        model: called with ``input_ids, attention_mask, use_cache, past_key_values``; returns logits (B, T, V) and a cache.
        unconditional_ids: the other prompt (B, S); the last token of the first by default.
        unconditional_attention_mask: 1 for its tokens, 0 for its padding (B, S).
        use_cache: whether to keep keys and values, or to run over all tokens again.
    """

    def __init__(
        self,
        guidance_scale: float,
        model: Callable[..., Any],
        unconditional_ids: Tensor | None = None,
        unconditional_attention_mask: Tensor | None = None,
        use_cache: bool = True,
    ) -> None:
        self.guidance_scale: float = number("guidance_scale", guidance_scale, Range(-math.inf))
        self.model, self.use_cache = model, use_cache
        self._given = unconditional_ids, unconditional_attention_mask
        self._state: tuple[Tensor, Tensor, Any] | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Log-probabilities (B, V), not normalised again."""
        scores = scores.log_softmax(-1)
        if self.guidance_scale == 1:
            return scores
        free = self._unconditional(input_ids)[:, -1].log_softmax(-1)
        return self.guidance_scale * (scores - free) + free

    def select(self, rows: Tensor) -> None:
        """Go on with these rows (R,) of the batch."""
        if self._state is not None:
            ids, mask, cache = self._state
            self._state = ids.index_select(0, rows), mask.index_select(0, rows), cache
            if cache is not None:
                cache.reorder_cache(rows)

    reorder = select

    def _unconditional(self, input_ids: Tensor) -> Tensor:
        """Logits (B, T, V) after the other prompt and the new tokens."""
        last = input_ids[:, -1:]
        if self._state is None:
            ids = last if self._given[0] is None else _per_row(self._given[0], last, "unconditional_ids")
            ones = torch.ones_like(ids)
            mask = ones if self._given[1] is None else _per_row(self._given[1], last, "unconditional_attention_mask")
            cache = None
        else:
            ids, mask, cache = self._state
            ids = last if self.use_cache else torch.cat([ids, last], dim=1)
            mask = torch.cat([mask, torch.ones_like(last)], dim=1)
        output = self.model(ids, attention_mask=mask, use_cache=self.use_cache, past_key_values=cache)
        self._state = ids, mask, getattr(output, "past_key_values", None)
        logits: Tensor = output.logits
        return logits
