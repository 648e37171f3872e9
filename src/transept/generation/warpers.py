"""What shapes the distribution that a token is sampled from: temperature, and ways to cut off its tail.

All work per row on scores (B, V) that are logits or log-probabilities, and leave the tensor passed in as it was. Cut tokens
get ``filter_value``. Sorting a whole vocabulary costs more than a small model's layer, so only what can be kept is sorted
where that is certain to give the same tokens.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from transept.generation.checks import Range, number
from transept.generation.processors import LogitsProcessor

_KEEP = Range(1)
_CUTOFF = Range(0, 1, open="()")


class TemperatureLogitsWarper(LogitsProcessor):
    """Divides by the temperature: below 1 sharper, above 1 flatter.

    Raises:
        InputError: a temperature that is not above 0.
    """

    def __init__(self, temperature: float) -> None:
        self.temperature: float = number("temperature", temperature)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores (B, V) over the temperature."""
        return scores / self.temperature


class _Truncation(LogitsProcessor):
    """A warper that keeps some tokens and cuts the others.

    Args:
        filter_value: the score of tokens that are cut.
        min_tokens_to_keep: how many of the most probable tokens stay in any case.
    """

    def __init__(self, filter_value: float, min_tokens_to_keep: int) -> None:
        self.filter_value = number("filter_value", filter_value, Range(-math.inf))
        self.min_tokens_to_keep = number("min_tokens_to_keep", min_tokens_to_keep, _KEEP, whole=True)

    def _keep(self, scores: Tensor, index: Tensor, values: Tensor) -> Tensor:
        """Only ``values`` (B, N) at ``index`` (B, N) of the vocabulary."""
        return torch.full_like(scores, self.filter_value).scatter_(1, index, values)

    def _unlike_best(self, scores: Tensor) -> Tensor:
        """Where tokens are not among the most probable ones that stay in any case (B, V)."""
        count = min(self.min_tokens_to_keep, scores.shape[-1])
        least = scores.amax(-1, keepdim=True) if count == 1 else torch.topk(scores, count).values[:, -1:]
        return scores < least


class TopKLogitsWarper(_Truncation):
    """Keeps the ``top_k`` most probable tokens, and those as probable as the last of them (Fan et al., 2018)."""

    def __init__(self, top_k: int, filter_value: float = -math.inf, min_tokens_to_keep: int = 1) -> None:
        super().__init__(filter_value, min_tokens_to_keep)
        self.top_k = max(number("top_k", top_k, Range(1), whole=True), self.min_tokens_to_keep)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores (B, V) in which all but the top are cut."""
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
        self.top_p = number("top_p", top_p)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores (B, V) in which all but the nucleus are cut."""
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
        super().__init__(filter_value, 1)
        self.top_h = number("top_h", top_h)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores (B, V) in which all but those within the budget of entropy are cut."""
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
        self.min_p = number("min_p", min_p)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores (B, V) in which tokens far below the best are cut."""
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
        self.mass = number("typical_p", mass, _CUTOFF)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores (B, V) in which untypical tokens are cut."""
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
        self.epsilon = number("epsilon_cutoff", epsilon, _CUTOFF)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores (B, V) in which improbable tokens are cut."""
        cut = (scores.softmax(-1) < self.epsilon) & self._unlike_best(scores)
        return scores.masked_fill(cut, self.filter_value)


class EtaLogitsWarper(_Truncation):
    """Cuts tokens less probable than ``epsilon``, or than what the entropy makes of it (Hewitt et al., 2022).

    Args:
        epsilon: the bound where the distribution is sharp; where it is flat, ``sqrt(epsilon) * exp(-entropy)``.
    """

    def __init__(self, epsilon: float, filter_value: float = -math.inf, min_tokens_to_keep: int = 1) -> None:
        super().__init__(filter_value, min_tokens_to_keep)
        self.epsilon = torch.tensor(number("eta_cutoff", epsilon, _CUTOFF))

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores (B, V) in which improbable tokens are cut."""
        logits = scores - scores.logsumexp(-1, keepdim=True)
        entropy = _entropy(logits, logits.softmax(-1))
        epsilon = self.epsilon.to(scores.device)
        bound = torch.minimum(epsilon, epsilon.sqrt() * torch.exp(-entropy)).unsqueeze(-1)
        return scores.masked_fill((scores.softmax(-1) < bound) & self._unlike_best(scores), self.filter_value)


def _entropy(logits: Tensor, probabilities: Tensor) -> Tensor:
    """Entropy (B,) of normalised logits (B, V), in which impossible tokens count nothing."""
    return -(logits.clamp(min=torch.finfo(logits.dtype).min) * probabilities).sum(-1)
