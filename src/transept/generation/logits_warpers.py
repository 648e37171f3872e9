"""Logits processors that make tokens more or less likely: penalties, guidance, temperature, cuts of the distribution's tail.

See :mod:`transept.generation.logits_processors` for their form. Cut tokens get ``filter_value``. Sorting a whole vocabulary
costs more than a small model's layer, so only what can be kept is sorted where that is certain to give the same tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from transept.config.fields import Range
from transept.errors import refuse
from transept.generation.config import setting
from transept.generation.logits_processors import Ids, LogitsProcessor, SomeTokens, changed, per_row
from transept.generation.rules import number

_INSIDE = Range(0, 1, open="()")


class RepetitionPenaltyLogitsProcessor(LogitsProcessor):
    """Tokens that came before are less likely: positive scores are divided by the penalty, negative ones multiplied
    (Keskar et al., 2019).

    Args:
        penalty: above 1 against repetition, below 1 for it.
        prompt_ignore_length: how many tokens of each row's beginning do not count, one number or one a prompt (N,).
    """

    by_row = ("prompt_ignore_length",)

    def __init__(self, penalty: float, prompt_ignore_length: int | Tensor | None = None) -> None:
        self.penalty = setting("repetition_penalty", penalty)
        if isinstance(prompt_ignore_length, Tensor):
            shape = tuple(prompt_ignore_length.shape)
            refuse(len(shape) != 1, f"`prompt_ignore_length` must have one dimension, but has the shape {shape}.")
            prompt_ignore_length = prompt_ignore_length if bool((prompt_ignore_length > 0).any()) else None
        elif prompt_ignore_length is not None:
            number("prompt_ignore_length", prompt_ignore_length, Range(0), whole=True)
        self.prompt_ignore_length = prompt_ignore_length

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        ignored = self.prompt_ignore_length
        if isinstance(ignored, Tensor):
            ignored = per_row(ignored, scores, "prompt_ignore_length")
            positions = torch.arange(input_ids.shape[1], device=input_ids.device)
            input_ids = input_ids.masked_fill(positions < ignored.unsqueeze(-1), scores.shape[-1])
        elif ignored is not None:
            input_ids = input_ids[:, ignored:]
        return changed(scores, input_ids, _penalty(self.penalty))


def _penalty(penalty: float) -> Callable[[Tensor], Tensor]:
    return lambda scores: torch.where(scores < 0, scores * penalty, scores / penalty)


class EncoderRepetitionPenaltyLogitsProcessor(LogitsProcessor):
    """Tokens of the encoder's input (N, S) are more likely, by the same rule turned round; above 1 against invention."""

    by_row = ("encoder_input_ids",)

    def __init__(self, penalty: float, encoder_input_ids: Tensor) -> None:
        self.penalty = 1 / setting("encoder_repetition_penalty", penalty)
        self.encoder_input_ids = encoder_input_ids

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return changed(scores, per_row(self.encoder_input_ids, scores, "encoder_input_ids"), _penalty(self.penalty))


class ExponentialDecayLengthPenalty(SomeTokens):
    """The end, one token or several, becomes more likely with every token beyond a length.

    The penalty is the number of new tokens that are free, and the factor that grows with each other.
    """

    def __init__(
        self, exponential_decay_length_penalty: tuple[int, float], eos_token_id: Ids, input_ids_seq_length: int
    ) -> None:
        name, (start, factor) = "exponential_decay_length_penalty", exponential_decay_length_penalty
        self.regulation_start = number(name, start, Range(0), whole=True) + input_ids_seq_length
        self.regulation_factor = number(name, factor, Range(0))
        super().__init__("eos_token_id", eos_token_id, None, range(self.regulation_start + 1, 2**63))

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if input_ids.shape[-1] not in self._lengths:
            return scores
        eos, beyond = self.on(scores), input_ids.shape[-1] - self.regulation_start
        ends = scores[:, eos]
        bonus = ends.abs() * (self.regulation_factor**beyond - 1)
        return scores.index_copy(-1, eos, ends + bonus.masked_fill(~ends.isfinite(), 0.0))


class HammingDiversityLogitsProcessor(LogitsProcessor):
    """A group of beams is kept from the tokens that the groups before it chose at this step (Vijayakumar et al., 2016).

    ``diversity_penalty`` is subtracted for each beam that chose the token; ``num_beams`` are those of all groups of a prompt.
    """

    def __init__(self, diversity_penalty: float, num_beams: int, num_beam_groups: int) -> None:
        self.diversity_penalty: float = number("diversity_penalty", diversity_penalty, Range(0, open="("))
        self.num_beams = number("num_beams", num_beams, Range(2), whole=True)
        groups = number("num_beam_groups", num_beam_groups, Range(2, num_beams), whole=True)
        refuse(num_beams % groups, f"`num_beam_groups` ({groups}) must divide `num_beams` ({num_beams}).")
        self.group_size = num_beams // groups

    def __call__(  # type: ignore[override]  # the list passes what a processor's own signature asks for
        self, input_ids: Tensor, scores: Tensor, current_tokens: Tensor, beam_group_idx: int
    ) -> Tensor:
        """Scores (N * beams of the group, V) of group ``beam_group_idx``.

        ``current_tokens`` (N * ``num_beams``,) are what each beam of each prompt has chosen at this step, -1 for nothing.
        """
        earlier = current_tokens.view(-1, self.num_beams)[:, : beam_group_idx * self.group_size]
        if not earlier.shape[1]:
            return scores
        chosen = scores.new_zeros(earlier.shape[0], scores.shape[-1])
        chosen.scatter_add_(1, earlier.clamp(min=0), (earlier >= 0).to(scores.dtype))
        return scores - self.diversity_penalty * chosen.repeat_interleave(self.group_size, dim=0)


class ClassifierFreeGuidanceLogitsProcessor(LogitsProcessor):
    """Away from what the model says without the condition, so far as a scale above 1 says; both come in one batch (Ho and
    Salimans, 2022).
    """

    def __init__(self, guidance_scale: float) -> None:
        self.guidance_scale: float = number("guidance_scale", guidance_scale, Range(1, open="("))

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        rows, own = scores.shape[0], input_ids.shape[0]
        what = f"Guidance needs two rows of scores a row of ids, but there are {rows} for {own}."
        refuse(rows != 2 * own, what, "Pass the rows with the condition first, then those without it.")
        guided, free = scores.chunk(2)
        return free + (guided - free) * self.guidance_scale


class UnbatchedClassifierFreeGuidanceLogitsProcessor(LogitsProcessor):
    """Away from what the model says of another prompt, which it runs on beside the first (Sanchez et al., 2023).

    Args:
        guidance_scale: how far; 1 for not at all, below 1 towards the other prompt.
        model: called with ``input_ids, attention_mask, use_cache, past_key_values``; returns logits (B, T, V) and a cache.
        unconditional_ids, unconditional_attention_mask: the other prompt (B, S); the last token of the first by default.
    """

    by_row = ("_ids", "_mask")

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
        self._ids, self._mask, self._begun = unconditional_ids, unconditional_attention_mask, False
        self._cache: Any = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        scores = scores.log_softmax(-1)
        if self.guidance_scale == 1:
            return scores
        free = self._unconditional(input_ids[:, -1:])[:, -1].log_softmax(-1)
        return self.guidance_scale * (scores - free) + free

    def select(self, rows: Tensor) -> None:
        super().select(rows)
        if self._cache is not None:
            self._cache.reorder_cache(rows)

    reorder = select

    def _unconditional(self, last: Tensor) -> Tensor:
        """Logits (B, T, V) after the other prompt and the new tokens, of which the last (B, 1) has not been read."""
        if self._ids is not None and self._mask is not None and self._begun:
            self._ids = last if self.use_cache else torch.cat([self._ids, last], dim=1)
            self._mask = torch.cat([self._mask, torch.ones_like(last)], dim=1)
        else:
            ids, mask, self._begun = self._ids, self._mask, True
            self._ids = last if ids is None else per_row(ids, last, "unconditional_ids")
            self._mask = torch.ones_like(self._ids) if mask is None else per_row(mask, last, "unconditional_attention_mask")
        output = self.model(self._ids, attention_mask=self._mask, use_cache=self.use_cache, past_key_values=self._cache)
        self._cache = getattr(output, "past_key_values", None)
        logits: Tensor = output.logits
        return logits


class LogitNormalization(LogitsProcessor):
    """Scores become log-probabilities again, which search over beams takes them for."""

    reads_ids = False

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores.log_softmax(-1)


class TemperatureLogitsWarper(LogitsProcessor):
    """Divides by the temperature, a number above 0: below 1 makes the distribution sharper, above 1 flatter."""

    reads_ids = False

    def __init__(self, temperature: float) -> None:
        self.temperature: float = setting("temperature", temperature)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores / self.temperature


class _Truncation(LogitsProcessor):
    """A warper that cuts tokens, which get ``filter_value``, but never the ``min_tokens_to_keep`` most probable ones."""

    reads_ids = False

    def __init__(self, filter_value: float, min_tokens_to_keep: int = 1) -> None:
        self.filter_value = number("filter_value", filter_value, Range(-math.inf))
        self.min_tokens_to_keep = number("min_tokens_to_keep", min_tokens_to_keep, Range(1), whole=True)

    def _keep(self, scores: Tensor, index: Tensor, values: Tensor) -> Tensor:
        """Only ``values`` (B, N) at ``index`` (B, N) of the vocabulary."""
        return torch.full_like(scores, self.filter_value).scatter_(1, index, values)

    def _cut_below(self, scores: Tensor, bound: Tensor | float) -> Tensor:
        """Without tokens less probable than a bound, but for those that stay in any case."""
        count = min(self.min_tokens_to_keep, scores.shape[-1])
        least = scores.amax(-1, keepdim=True) if count == 1 else torch.topk(scores, count).values[:, -1:]
        return scores.masked_fill((scores.softmax(-1) < bound) & (scores < least), self.filter_value)


class TopKLogitsWarper(_Truncation):
    """Keeps the ``top_k`` most probable tokens, and those as probable as the last of them (Fan et al., 2018)."""

    def __init__(self, top_k: int, filter_value: float = -math.inf, min_tokens_to_keep: int = 1) -> None:
        super().__init__(filter_value, min_tokens_to_keep)
        self.top_k = max(number("top_k", top_k, Range(1), whole=True), self.min_tokens_to_keep)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        count, vocabulary = self.top_k, scores.shape[-1]
        if count >= vocabulary:
            return scores
        values, index = torch.topk(scores, count + 1)
        if scores.is_cpu and bool((values[:, -1] < values[:, -2]).all()):
            return self._keep(scores, index[:, :-1], values[:, :-1])
        return scores.masked_fill(scores < values[:, -2:-1], self.filter_value)


class TopPLogitsWarper(_Truncation):
    """Keeps the fewest tokens whose probabilities sum to ``top_p`` (nucleus sampling; Holtzman et al., 2019)."""

    def __init__(self, top_p: float, filter_value: float = -math.inf, min_tokens_to_keep: int = 1) -> None:
        super().__init__(filter_value, min_tokens_to_keep)
        self.top_p = setting("top_p", top_p)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if not scores.is_cpu or scores.dtype is not torch.float32 or (likely := self._count_likely(scores)) is None:
            return self._by_sorting(scores)
        result, doubtful = self._among_likely(scores, *likely)
        if bool(doubtful.any()):
            result[doubtful] = self._by_sorting(scores[doubtful])
        return result

    def _by_sorting(self, scores: Tensor) -> Tensor:
        ordered, index = torch.sort(scores)
        cut = ordered.softmax(-1).cumsum(-1) <= 1 - self.top_p
        cut[:, -self.min_tokens_to_keep :] = False
        return scores.masked_fill(cut.scatter(1, index, cut), self.filter_value)

    def _count_likely(self, scores: Tensor) -> tuple[Tensor, int] | None:
        """Probabilities (B, V), and how many tokens at most are not cut for certain; ``None`` where they are too many."""
        probabilities, vocabulary = scores.softmax(-1), scores.shape[-1]
        # Tokens up to this probability make half of the tail at most, all together.
        likely = int((probabilities > (1 - self.top_p) / (2 * vocabulary)).sum(-1).amax())
        count = max(likely, self.min_tokens_to_keep) + 1
        return (probabilities, count) if count * 4 <= vocabulary else None

    def _among_likely(self, scores: Tensor, probabilities: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The result from sorting ``count`` tokens, and for which rows (B,) ties or rounding could make it another one."""
        values, index = torch.topk(scores, count)
        mass, tail = probabilities.gather(1, index).double(), 1 - self.top_p
        mass /= probabilities.sum(-1, keepdim=True, dtype=torch.float64)
        up_to = 1 - mass.cumsum(-1) + mass
        # How far a softmax in single precision, which sums in four or more parts, can be from that.
        margin = tail * scores.shape[-1] * 2**-26 + 1e-7
        cut = up_to <= tail
        cut[:, : self.min_tokens_to_keep] = False
        tied = cut[:, 1:] & ~cut[:, :-1] & (values[:, 1:] == values[:, :-1])
        doubtful = tied.any(-1) | ~((up_to - tail).abs() > margin).all(-1)
        return self._keep(scores, index, values.masked_fill_(cut, self.filter_value)), doubtful


class TopHLogitsWarper(_Truncation):
    """Keeps the most probable tokens up to the share ``top_h`` of the entropy of the first hundred (Baghaei Potraghloo et
    al., 2025).
    """

    top_n = 100

    def __init__(self, top_h: float, filter_value: float = -math.inf) -> None:
        super().__init__(filter_value)
        self.top_h = setting("top_h", top_h)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        values, index = torch.topk(scores, min(self.top_n, scores.shape[-1]))
        logits = values - values.logsumexp(-1, keepdim=True)
        probabilities = logits.softmax(-1)
        budget = _entropy(logits, probabilities) * self.top_h
        spent = (-probabilities * probabilities.log()).cumsum(-1)
        kept = spent <= budget.unsqueeze(-1)
        kept[:, 0] = True
        return self._keep(scores, index, values.masked_fill(~kept, self.filter_value))


class MinPLogitsWarper(_Truncation):
    """Keeps tokens with at least the share ``min_p`` of the most probable one's probability (Nguyen et al., 2024)."""

    def __init__(self, min_p: float, filter_value: float = -math.inf, min_tokens_to_keep: int = 1) -> None:
        super().__init__(filter_value, min_tokens_to_keep)
        self.min_p = setting("min_p", min_p)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        probabilities = scores.softmax(-1)
        cut = probabilities < self.min_p * probabilities.amax(-1, keepdim=True)
        if self.min_tokens_to_keep > 1:
            count = min(self.min_tokens_to_keep, scores.shape[-1])
            cut.scatter_(1, torch.topk(probabilities, count).indices, False)
        return scores.masked_fill(cut, self.filter_value)


class TypicalLogitsWarper(_Truncation):
    """Keeps the tokens whose information is nearest to the entropy, up to the probability ``mass`` (Meister et al., 2022)."""

    def __init__(self, mass: float = 0.9, filter_value: float = -math.inf, min_tokens_to_keep: int = 1) -> None:
        super().__init__(filter_value, min_tokens_to_keep)
        self.mass = number("typical_p", mass, _INSIDE)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        logs = scores.log_softmax(-1)
        entropy = -(logs * logs.exp()).nansum(-1, keepdim=True)
        distance, index = torch.sort((-logs - entropy).abs())
        mass = scores.gather(1, index).softmax(-1).cumsum(-1)
        last = (mass < self.mass).sum(-1, keepdim=True).clamp_(max=scores.shape[-1] - 1)
        cut = distance > distance.gather(1, last)
        cut[:, : self.min_tokens_to_keep] = False
        return scores.masked_fill(cut.scatter(1, index, cut), self.filter_value)


class EpsilonLogitsWarper(_Truncation):
    """Cuts tokens less probable than ``epsilon`` (Hewitt et al., 2022)."""

    def __init__(self, epsilon: float, filter_value: float = -math.inf, min_tokens_to_keep: int = 1) -> None:
        super().__init__(filter_value, min_tokens_to_keep)
        self.epsilon = number("epsilon_cutoff", epsilon, _INSIDE)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return self._cut_below(scores, self.epsilon)


class EtaLogitsWarper(_Truncation):
    """Cuts tokens less probable than ``epsilon``, or, where the distribution is flat, ``sqrt(epsilon) * exp(-entropy)``
    (Hewitt et al., 2022).
    """

    def __init__(self, epsilon: float, filter_value: float = -math.inf, min_tokens_to_keep: int = 1) -> None:
        super().__init__(filter_value, min_tokens_to_keep)
        self.epsilon = torch.tensor(number("eta_cutoff", epsilon, _INSIDE))

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        logits = scores - scores.logsumexp(-1, keepdim=True)
        entropy = _entropy(logits, logits.softmax(-1))
        epsilon = self.epsilon.to(scores.device)
        return self._cut_below(scores, torch.minimum(epsilon, epsilon.sqrt() * torch.exp(-entropy)).unsqueeze(-1))


def _entropy(logits: Tensor, probabilities: Tensor) -> Tensor:
    """Entropy (B,) of normalised logits (B, V), in which impossible tokens count nothing."""
    return -(logits.clamp(min=torch.finfo(logits.dtype).min) * probabilities).sum(-1)
