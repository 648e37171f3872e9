"""Forward passes over rows, each of which has a cache of its own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from transept.errors import InputError
from transept.layers.caches.cache import DynamicCache
from transept.layers.caches.rows import RowCache, RowCaches
from transept.quantized.fused import fuse
from transept.serving.engine.pictures import Pictures, embedded


class Part(NamedTuple):
    """Ids of a row that a pass reads; behind so many of the last ones is scored what follows."""

    number: int
    ids: list[int]
    scored: int
    pictures: Pictures | None = None  # of the row's prompt


class Runner:
    """A model and what it has cached of rows.

    Rows go through the layers together, and attend each to its own keys. Models for which that cannot be done, such as those
    with recurrent states, read one row after the other (:attr:`together`).

    Args:
        model: a causal language model.
    """

    def __init__(self, model: Any) -> None:
        self.model, self.caches = model, dict[int, DynamicCache]()
        self.together: bool = model.body.can_continue_rows
        fuse(model)

    def begin(self, number: int, room: int, prefix: tuple[int, int] | None = None) -> None:
        """Make the cache of a row, with room for so many positions, from the first positions of another one's."""
        if prefix is not None:
            self.caches[number] = self.caches[prefix[0]].prefix(prefix[1], room)  # type: ignore[attr-defined]
        else:
            self.caches[number] = RowCache() if self.together else DynamicCache()
        self.reserve(number, room)

    def reserve(self, number: int, room: int) -> None:
        """Let a row have room for so many positions."""
        if isinstance(cache := self.caches[number], RowCache) and room != cache.room:
            cache.reserve(room)

    def forget(self, number: int) -> None:
        """Drop the cache of a row."""
        self.caches.pop(number, None)

    def close(self) -> None:
        """Drop all caches, when no more passes come."""
        self.caches.clear()

    def go_back(self, number: int, positions: int) -> int:
        """Let a row have read so many positions again, after a pass that failed, or none where that cannot be."""
        cache = self.caches[number]
        try:
            cache.crop(positions)
            cache.check_finished()
        except InputError:
            cache.reset()
        return cache.get_seq_length()

    @torch.inference_mode()
    def run(self, parts: Sequence[Part]) -> Tensor:
        """Read, and score what follows the ids for which that is asked: (R, V) in float32, part by part."""
        if not self.together:
            return torch.cat([self._alone(part) for part in parts])
        # Single positions are computed by other kernels than longer parts, and must be in any company.
        halves = [[part for part in parts if (len(part.ids) == 1) is single] for single in (True, False)]
        if not all(halves):
            return self._together(parts)
        found = dict[int, Tensor]()
        for half in halves:
            logits = torch.split(self._together(half), [part.scored for part in half])
            found |= zip((part.number for part in half), logits, strict=True)
        return torch.cat([found[part.number] for part in parts])

    def _together(self, parts: Sequence[Part]) -> Tensor:
        """The scores behind parts, which go through the layers together."""
        lengths = [len(part.ids) for part in parts]
        inputs, count = self._inputs(parts), sum(lengths)
        ends = zip(accumulate(lengths), parts, strict=True)
        scored = [place for end, part in ends for place in range(end - part.scored, end)]
        keep = 0 if len(scored) == count else torch.tensor(scored, device=self.model.device) if scored else 1
        options: dict[str, Any] = {"lengths": lengths, "logits_to_keep": keep, "return_dict": True}
        caches = RowCaches(self.caches[part.number] for part in parts)
        logits: Tensor = self.model.step(**inputs, past_key_values=caches, **options).logits[0]
        return logits[: len(scored)].float()

    def _inputs(self, parts: Sequence[Part]) -> dict[str, Tensor]:
        """Ids of parts one behind the other, or their embeddings where some have pictures."""
        ids = torch.tensor([[index for part in parts for index in part.ids]], device=self.model.device)
        if all(part.pictures is None for part in parts):
            return {"input_ids": ids}
        own = torch.split(ids[0], [len(part.ids) for part in parts])
        begins = [self.caches[part.number].get_seq_length() for part in parts]
        return embedded(self.model, zip((part.pictures for part in parts), begins, own, strict=True))

    def _alone(self, part: Part) -> Tensor:
        """The scores behind the ids of one part for which that is asked."""
        inputs, cache = self._inputs([part]), self.caches[part.number]
        count = cache.get_seq_length() + len(part.ids)
        real = torch.ones(1, count, dtype=torch.long, device=self.model.device)  # whatever they are: none is taken for padding
        options: dict[str, Any] = {"use_cache": True, "logits_to_keep": max(part.scored, 1), "return_dict": True}
        logits: Tensor = self.model.step(**inputs, attention_mask=real, past_key_values=cache, **options).logits[0]
        return logits[len(logits) - part.scored :].float()
