"""Logits processors against repetition that count what was written, and never what the prompt holds.

They are those of OpenAI's API: the logit of a token that was written ``n`` times becomes
``logit - presence_penalty * (n > 0) - frequency_penalty * n``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from transept.config.fields import Range
from transept.generation.config import setting
from transept.generation.logits_processors import LogitsProcessor, changed
from transept.generation.rules import number


class PresencePenaltyLogitsProcessor(LogitsProcessor):
    """Tokens that were written lose ``penalty``, however often they were.

    Args:
        penalty: -2 to 2; above 0 against repetition, below 0 for it.
        prompt_length: how many tokens of each row belong to the prompt and do not count.
    """

    def __init__(self, penalty: float, prompt_length: int = 0) -> None:
        self.penalty = setting("presence_penalty", penalty)
        self.prompt_length = number("prompt_length", prompt_length, Range(0), whole=True)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return changed(scores, input_ids[:, self.prompt_length :], lambda chosen: chosen - self.penalty)


class FrequencyPenaltyLogitsProcessor(LogitsProcessor):
    """Tokens that were written lose ``penalty`` for each time.

    Args:
        penalty: -2 to 2; above 0 against repetition, below 0 for it.
        prompt_length: how many tokens of each row belong to the prompt and do not count.
    """

    def __init__(self, penalty: float, prompt_length: int = 0) -> None:
        self.penalty = setting("frequency_penalty", penalty)
        self.prompt_length = number("prompt_length", prompt_length, Range(0), whole=True)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        written, vocabulary = input_ids[:, self.prompt_length :], scores.shape[-1]
        counts = torch.zeros(scores.shape[0], vocabulary + 1, device=scores.device)  # float32: bfloat16 counts to 256 only
        counts.scatter_add_(1, written.clamp(max=vocabulary), torch.ones_like(written, dtype=counts.dtype))
        lost: Tensor = (self.penalty * counts[:, :vocabulary]).to(scores.dtype)
        return scores - lost
