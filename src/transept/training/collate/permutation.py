"""The collator for permutation language models (Yang et al. 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from transept.errors import refuse
from transept.objectives.classification import IGNORED
from transept.training.collate.rows import DrawingCollator, checked_rows, ids_of, padded


@dataclass
class DataCollatorForPermutationLanguageModeling(DrawingCollator):
    """Hides spans, and draws for each row an order in which these are predicted: each sees those before it in the order.

    Rows are padded to an even length, since the halves of a row are ordered apart: a model may remember the first for the
    second. Random numbers are drawn in the reference's order.

    The batch has ``input_ids``, ``perm_mask`` (B, T, T), 1 where position i may not see j, ``target_mapping`` (B, T, T), the
    unit matrices, and ``labels`` (B, T); with padding also ``attention_mask``.

    Args:
        tokenizer: what pads and has the mask token.
        plm_probability: the share of tokens that are hidden.
        max_span_length: the longest span.
        return_tensors: ``pt`` or ``np``.
        seed, generator: where random numbers come from; see :class:`~transept.training.collate.rows.DrawingCollator`.

    Raises:
        InputError: a tokenizer without a mask token, a share outside 0 to 1, or a row that does not fit, by its number.
    """

    tokenizer: Any
    plm_probability: float = 1 / 6
    max_span_length: int = 5
    return_tensors: str = "pt"
    seed: int | None = None
    generator: torch.Generator | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        share, longest = self.plm_probability, self.max_span_length
        refuse(not 0 < share <= 1, f"`plm_probability` must be above 0 and at most 1, but is {share!r}.")
        refuse(longest < 1, f"`max_span_length` must be at least 1, but is {longest!r}.")

    def collate(self, features: Any) -> Any:
        refuse(self.tokenizer.mask_token is None, "this tokenizer has no mask token.", "Add one to it.")
        bare = len(features) > 0 and not isinstance(features[0], Mapping)
        rows = checked_rows([{"input_ids": row} for row in features] if bare else features, "input_ids")
        ids = [{"input_ids": ids_of(row, number)} for number, row in enumerate(rows)]
        batch = padded(self.tokenizer, ids, pad_to_multiple_of=2)
        mask = batch.get("attention_mask")
        found = self.permute(batch["input_ids"])
        return found if mask is None or bool(mask.all()) else found | {"attention_mask": mask}

    def permute(self, ids: Tensor) -> dict[str, Tensor]:
        """(B, T) ids -> the batch."""
        rows, length = ids.shape
        chosen = torch.zeros(ids.shape, dtype=torch.bool)
        for row in range(rows):
            at = 0
            while at < length:
                span = int(torch.randint(1, self.max_span_length + 1, (1,), generator=self.generator))
                context = int(span / self.plm_probability)
                start = at + int(torch.randint(context - span + 1, (1,), generator=self.generator))
                chosen[row, start : start + span] = True
                at += context
        special = torch.isin(ids, torch.tensor(self.tokenizer.all_special_ids, dtype=ids.dtype))
        chosen &= ~special
        orders = torch.stack([self._order(length) for _ in range(rows)]).masked_fill(~chosen & ~special, -1)
        return {
            "input_ids": ids.masked_fill(chosen, self.tokenizer.mask_token_id),
            "perm_mask": ((orders[:, :, None] <= orders[:, None, :]) & chosen[:, None, :]).float(),
            "target_mapping": torch.eye(length).repeat(rows, 1, 1),
            "labels": ids.masked_fill(~chosen, IGNORED),
        }

    def _order(self, length: int) -> Tensor:
        """The places of an order, in which the halves do not mix but are ordered alike."""
        halves = torch.arange(length).view(2, -1)
        return halves[:, torch.randperm(length // 2, generator=self.generator)].flatten()
