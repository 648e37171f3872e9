"""Which times may come next (Radford et al. 2022, section 2.3): in pairs, never falling, the first one early."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from transept.generation.logits_processors import LogitsProcessor


class TimeRules(LogitsProcessor):
    """Times come in pairs, with text between, and never fall.

    Behind text and a time comes another time or the end, and behind two times comes text. The first new token is a time. Where
    all times together are more likely than any single other token, a time it is.

    Args:
        first_time: the id of the time 0.00, before which ``<|notimestamps|>`` stands.
        end: the id that ends a text; text has smaller ones.
        begin: how many ids stand before the first new one.
        latest: the first time is at most this one, counted from 0.00; ``None`` for any.
    """

    rows_alone = True

    def __init__(self, first_time: int, end: int, begin: int, latest: int | None = None) -> None:
        self.first_time, self.end, self.begin, self.latest = first_time, end, begin, latest

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        first, new = self.first_time, input_ids[:, self.begin :]
        scores = scores.clone()
        scores[:, first - 1] = -math.inf
        times = scores[:, first:]  # views: what is written to them is written to the scores
        if new.shape[1] == 0:
            scores[:, :first] = -math.inf
            if self.latest is not None:
                times[:, self.latest + 1 :] = -math.inf
            return scores
        is_time = new >= first
        last = is_time[:, -1:]
        before = is_time[:, -2:-1] if new.shape[1] > 1 else torch.ones_like(last)
        scores[:, : self.end].masked_fill_(last & ~before, -math.inf)
        # Only the second of a pair may repeat the time before it.
        lowest = torch.where(is_time, new - first, -1).amax(dim=1, keepdim=True) + ~(last & ~before)
        places = torch.arange(times.shape[1], device=scores.device)
        times.masked_fill_((places < lowest) | (last & before), -math.inf)
        likely = times.float().logsumexp(dim=1, keepdim=True) > scores[:, :first].amax(dim=1, keepdim=True)
        scores[:, :first].masked_fill_(likely, -math.inf)
        return scores
