"""Rows laid end to end in one, without padding."""

from __future__ import annotations

from itertools import accumulate, chain
from typing import Any

import torch
from torch import Tensor

from transept.errors import InputError
from transept.objectives.classification import IGNORED
from transept.training.collate.rows import Collator, checked_rows, ids_of, of_kind


class DataCollatorWithFlattening(Collator):
    """Lays rows of tokens end to end: a batch (1, sum of lengths) whose ``seq_idx`` are the numbers of the rows.

    Models see by these that the rows are apart: none sees another, and none is predicted from another.

    Args:
        return_tensors: ``pt`` or ``np``.
        return_position_ids: make ``position_ids``, which begin anew with each row.
        separator_id: the label of each row's first token, which nothing predicts.
        return_flash_attn_kwargs: make ``cu_seq_lens_q`` and ``cu_seq_lens_k`` (rows + 1), where rows begin and end, and
            ``max_length_q`` and ``max_length_k``.
        return_seq_idx: make ``seq_idx`` (1, N), the number of each token's row. Without these and the above, only families that
            infer it from positions keep the rows apart.
        position_ids_start: the number of the first position; the model's ``first_position``.
    """

    def __init__(
        self,
        return_tensors: str = "pt",
        *,
        return_position_ids: bool = True,
        separator_id: int = IGNORED,
        return_flash_attn_kwargs: bool = False,
        return_seq_idx: bool = True,
        position_ids_start: int = 0,
    ) -> None:
        self.return_tensors, self.separator_id = return_tensors, separator_id
        self.return_position_ids, self.position_ids_start = return_position_ids, position_ids_start
        self.return_flash_attn_kwargs, self.return_seq_idx = return_flash_attn_kwargs, return_seq_idx

    def __call__(self, features: Any, return_tensors: str | None = None, separator_id: int | None = None) -> Any:
        """Rows -> batch (``InputError``: a row that does not fit, by its number)."""
        batch = self.flatten(features, self.separator_id if separator_id is None else separator_id)
        return of_kind(batch, return_tensors or self.return_tensors)

    def flatten(self, features: Any, separator: int) -> dict[str, Any]:
        """The rows' ids, labels and what else is asked for, as one row."""
        rows = checked_rows(features, "input_ids")
        ids = [ids_of(row, number) for number, row in enumerate(rows)]
        labels = [ids_of(row, number, "labels") for number, row in enumerate(rows)] if "labels" in rows[0] else ids
        for number, (own, labelled) in enumerate(zip(ids, labels)):
            if not own or len(own) != len(labelled):
                raise InputError(f"row {number} has {len(own)} tokens and {len(labelled)} labels.")
        batch: dict[str, Any] = {"input_ids": _joined(ids), "labels": _joined([[separator, *row[1:]] for row in labels])}
        lengths = list(map(len, ids))
        if self.return_position_ids:
            batch["position_ids"] = _joined([range(length) for length in lengths]) + self.position_ids_start
        if self.return_seq_idx:
            batch["seq_idx"] = _joined([[number] * length for number, length in enumerate(lengths)]).int()
        if self.return_flash_attn_kwargs:
            bounds = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
            batch |= {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds}
            batch |= {"max_length_q": max(lengths), "max_length_k": max(lengths)}
        return batch


def _joined(rows: Any) -> Tensor:
    return torch.tensor(list(chain.from_iterable(rows)), dtype=torch.int64)[None]
